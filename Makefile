# `make help` lists what there is. Environments are made as needed and renewed when pyproject.toml changes.
PYTHON   ?= python3
VERSIONS ?= 3.11 3.12 3.13
WORKERS  ?= auto
ARGS     ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Each worker compiles many programs: past a few, memory rather than time is what runs out.
PYTEST := -m pytest -n $(WORKERS) --maxprocesses 8 --dist loadgroup $(ARGS)

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-versions lint format docs clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/.installed ## secateur fit on a real table: train, prune, report (about a minute)
	@$(BIN)/python examples/demo.py

test: .venv/.installed-dev ## all tests
	$(BIN)/python $(PYTEST)

test-fast: .venv/.installed-dev ## the quick tests of every kind, for daily work (a minute or so)
	$(BIN)/python $(PYTEST) --fast --durations=10 --durations-min=1

test-versions: ## all tests on every Python of VERSIONS ("3.11 3.12 3.13") that is here
	@PYTEST='$(PYTEST)' .ci/test-versions $(VERSIONS)

lint: .venv/.installed-dev ## ruff (rules and format) and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/.installed-dev ## let ruff put the format right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/.installed-docs ## the documentation as a site in build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo 'build/site/index.html'

clean: ## remove environments, caches and build output
	rm -rf .venv .venvs build dist demo .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo 'secateur needs Python 3.11 or later; say which with: make PYTHON=python3.12 ...' >&2; exit 1; }
	$(PYTHON) -m venv .venv

.venv/.installed: pyproject.toml | .venv/bin/python
	@echo 'installing secateur into .venv'
	@$(PIP) --editable .
	@touch $@

# .installed-dev: with the extra of that name
.venv/.installed-%: pyproject.toml | .venv/bin/python
	@echo 'installing secateur[$*] into .venv'
	@$(PIP) --editable '.[$*]'
	@touch $@
