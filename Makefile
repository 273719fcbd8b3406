# `make help` lists the targets. Environments are created as needed and updated when pyproject.toml changes.
PYTHON   ?= python3
VERSIONS ?= 3.11 3.12 3.13
WORKERS  ?= auto
ARGS     ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Each worker compiles many programs: beyond a few workers, memory is the limit.
PYTEST := -m pytest -n $(WORKERS) --maxprocesses 8 --dist loadgroup $(ARGS)

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-versions lint format docs package clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/.installed ## secateur fit on a real table: train, prune, report (about a minute)
	@$(BIN)/python examples/demo.py

test: .venv/.installed-dev ## all tests
	$(BIN)/python $(PYTEST)

test-fast: .venv/.installed-dev ## the quick tests of every kind, for daily work (a minute or so)
	$(BIN)/python $(PYTEST) --fast --durations=10 --durations-min=1

test-versions: ## all tests on every Python of VERSIONS ("3.11 3.12 3.13") that is installed
	@PYTEST='$(PYTEST)' .ci/test-versions $(VERSIONS)

lint: .venv/.installed-dev ## ruff (rules and formatting) and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/.installed-dev ## format the code with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/.installed-docs ## build the documentation site in build/site; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo 'build/site/index.html'

# Without isolation, building needs nothing from an index once the environment is there.
package: .venv/.installed-release ## build wheel and sdist in dist, and check them with twine
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist . >/dev/null
	$(BIN)/python -m twine check --strict dist/*

clean: ## remove environments, caches and build output
	rm -rf .venv .venvs build dist demo .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo 'secateur needs Python 3.11 or later; choose one with: make PYTHON=python3.12 ...' >&2; exit 1; }
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
