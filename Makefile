# Each target is one line of work; `make help` lists them.
PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= auto

.PHONY: help setup demo test up check lint types layers docs docs-check bench fmt clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: .venv/ready ## make .venv with all that development needs

.venv/ready: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@$(BIN)/python -m compileall -q src
	@touch $@

demo: setup ## the story in a minute, in a temporary home
	@$(BIN)/python -m corral.demo

test: setup ## every test, on SQLite and on a PostgreSQL that it starts itself
	@$(BIN)/pytest -n $(WORKERS)

up: setup ## put letters when their moments come, until stopped
	@$(BIN)/corral schedule fire --watch

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

docs-check: setup
	@$(BIN)/python tools/docs.py --check

check: lint types layers docs-check test ## what CI runs

bench: setup ## measure the hot paths against the raw drivers and against peers
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@$(BIN)/python -m compileall -q src
	@$(BIN)/python -m bench

clean: ## remove what the targets above made
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
