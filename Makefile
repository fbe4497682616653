# Every target sets itself up: a virtual environment in .venv, from constraints.txt. Needs Python 3.11 to 3.14 with
# venv, nothing else, no root. Choose another interpreter with `make PYTHON=/path/to/python ...`.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint diagrams setup clean FORCE

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --no-input
PYTHON ?=
# The versions of Python for which every pin of constraints.txt has a wheel.
PYTHONS := $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python3.14)
ARGS ?=

# A demo or a test must not report to anybody.
export RAY_USAGE_STATS_ENABLED ?= 0
# Packages of the caller's own must not leak into the environment.
export PYTHONNOUSERSITE := 1
unexport PYTHONPATH PYTHONHOME PIP_USER PIP_TARGET PIP_PREFIX VIRTUAL_ENV

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' Makefile | while IFS='|' read -r target text; do \
		printf '%-18s%s\n' "$$target" "$$text"; done

demo: $(STAMP) ## the main job: train, kill a shard, rebuild, take it back (ARGS=...)
	@$(BIN)/reknit demo $(ARGS)

test: lint ## lint, then all tests (ARGS=... goes to pytest)
	@$(BIN)/pytest $(ARGS)

lint: $(STAMP) ## ruff check, ruff format --check, mypy --strict
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy --strict

diagrams: $(STAMP) ## write docs/diagrams and docs/reference from the table
	@$(BIN)/reknit diagram --write docs

setup: $(STAMP) ## only set up .venv; done again when pyproject.toml or constraints.txt changes
	@:

clean: ## remove .venv, caches and build results
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp holds the folder that it was made in: a moved or copied environment has wrong paths inside and is made anew.
ifneq ($(shell test -x $(BIN)/python && cat $(STAMP) 2>/dev/null),$(CURDIR))
$(STAMP): FORCE
endif

$(STAMP): pyproject.toml constraints.txt
	@set -e; \
	usable='import sys, venv, ensurepip; sys.exit(sys.version_info[:2] < (3, 11) or sys.version_info[:2] > (3, 14))'; \
	python=; \
	for candidate in $(if $(PYTHON),'$(PYTHON)',$(PYTHONS)); do \
		if "$$candidate" -c "$$usable" >/dev/null 2>&1; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
		echo "reknit needs Python 3.11 to 3.14, for which the pinned torch and Ray have wheels, with venv and" >&2; \
		echo "ensurepip (on Debian: python3-venv); tried: $(PYTHONS)." >&2; \
		echo "Install one, or name it: make PYTHON=/path/to/python3 ..." >&2; \
		exit 1; \
	fi; \
	echo "setting up $(VENV) with $$("$$python" -V), a minute or two" >&2; \
	if ! [ -x $(BIN)/python ] || [ "$$(cat $(STAMP) 2>/dev/null)" != '$(CURDIR)' ]; then \
		"$$python" -m venv --clear $(VENV); \
	fi; \
	rm -f $(STAMP); \
	$(PIP) install -c constraints.txt hatchling editables; \
	$(PIP) install -c constraints.txt --no-build-isolation -e '.[ray,cli,test,dev]'; \
	$(PIP) check; \
	printf '%s\n' '$(CURDIR)' > $(STAMP)
