# Needs Python 3.11 and make; everything else is installed into .venv, pinned.
#
#   make demo    a running site with two nodes and three jobs (Ctrl-C ends it)
#   make test    lint, types, import contracts, tests
#   make help    the rest

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# Dozens of processes import the product, which takes a third longer without bytecode.
unexport PYTHONDONTWRITEBYTECODE
MAIN_STAMP := $(VENV)/.main-$(shell cat requirements.txt | sha256sum | cut -c1-16)
DEV_STAMP := $(VENV)/.dev-$(shell cat requirements.txt requirements/dev.txt | sha256sum | cut -c1-16)
PLOTLY := frontend/static/frontend/vendor/plotly/plotly-basic.min.js
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes
# uv takes a third of pip's time. It does not read pip's configuration, so where packages come from
# an index that only pip knows, pip installs them.
INSTALL = $(BIN)/uv pip install --quiet --python $(BIN)/python --system-certs --compile-bytecode \
	--require-hashes --requirement $(1) || { echo "Trying again with pip" >&2; $(PIP) --requirement $(1); }

.PHONY: help demo test test-containers nightly advisories lock-images check-images lint types contracts beside pytest pytest-all pytest-sqlite conformance format lock clean distclean
.DEFAULT_GOAL := help

help:
	@echo "make demo       run the site, two nodes and three jobs on this machine"
	@echo "make test       lint, types, import contracts and tests; ARGS='tests/core -k plan' picks some"
	@echo "make nightly    the deep and long tests as well (hours)"
	@echo "make test-containers  build and run docker-compose.yml on this machine's engine (an hour)"
	@echo "make lint       ruff check and format check"
	@echo "make format     let ruff rewrite what it can"
	@echo "make types      mypy"
	@echo "make contracts  which package may import which"
	@echo "make advisories  known vulnerabilities of the pinned packages"
	@echo "make lock-images  pull the base images of containers and record their digests"
	@echo "make check-images  compare the base images on this machine with the recorded digests"
	@echo "make conformance  every public class of Keras, trained here as by Keras (an hour on two cores)"
	@echo "make lock       pin requirements/*.in again"
	@echo "make clean      remove caches and the demo's state (var/)"
	@echo "make distclean  remove .venv as well"

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: install Python 3.11, or name it: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "$(PYTHON) is not Python 3.11" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "$(PYTHON) -m venv failed: on Debian install python3.11-venv" >&2; exit 1; }

$(BIN)/uv: | $(BIN)/python
	@$(PIP) --requirement requirements/installer.txt

$(MAIN_STAMP): | $(BIN)/uv
	@echo "Installing what the product needs into $(VENV) (about 2 GB; a minute or more the first time)"
	@$(call INSTALL,requirements.txt)
	@touch $@

$(DEV_STAMP): | $(MAIN_STAMP)
	@echo "Installing what the checks need into $(VENV)"
	@$(call INSTALL,requirements/dev.txt)
	@touch $@

$(PLOTLY).br: $(PLOTLY) | $(MAIN_STAMP)
	@$(BIN)/python -m whitenoise.compress --quiet $(dir $@) && touch $@

demo: $(MAIN_STAMP) $(PLOTLY).br
	@exec $(BIN)/python manage.py demo $(ARGS)

# `make test ARGS="tests/core -k plan"` runs a part of the tests alone.
test: lint
ifdef ARGS
	@$(MAKE) --no-print-directory pytest
else
	@mkdir -p $(BESIDE_LOGS)
	@status=0; \
	$(MAKE) --no-print-directory --jobs 2 --keep-going pytest-all beside || status=$$?; \
	for name in $(BESIDE); do echo "== make $$name"; cat $(BESIDE_LOGS)/$$name; done; \
	exit $$status
	@echo "All checks passed. Next: 'make demo' shows the product running; CONTRIBUTING.md says how to change it."
endif

# Checks that run beside the tests, one after the other; their output follows the tests' own.
BESIDE := types contracts pytest-sqlite
BESIDE_LOGS := var/checks

beside: $(DEV_STAMP)
	@status=0; for name in $(BESIDE); do \
		$(MAKE) --no-print-directory $$name >$(BESIDE_LOGS)/$$name 2>&1 || status=$$?; \
	done; exit $$status

lint: $(DEV_STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(DEV_STAMP)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

types: $(DEV_STAMP)
	VIRTUALFLOW_DEBUG=1 $(BIN)/mypy

contracts: $(DEV_STAMP)
	$(BIN)/lint-imports --no-logo

pytest: $(DEV_STAMP)
	$(BIN)/python -m pytest $(ARGS)

# A file runs on one worker, and so do all of tests/e2e and of tests/browser (tests/conftest.py).
# Tests often wait for processes: on two cores four workers take a sixth less time than three,
# five more than four.
WORKERS ?= 4
PYTEST_ALONE := $(BIN)/python -m pytest --quiet --durations=0 --durations-min=3
PYTEST_ALL := $(PYTEST_ALONE) --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

pytest-all: $(DEV_STAMP)
	$(PYTEST_ALL)

# What depends on the database, on the one that the demo uses; the others are PostgreSQL's. One
# process, as each worker imports all and migrates a database of its own.
pytest-sqlite: $(DEV_STAMP)
	TEST_DATABASE=sqlite $(PYTEST_ALONE) -m "database and not nightly" \
		$$(grep -rl --include "test_*.py" "mark.database" tests)

# Needs a running engine on this machine (DOCKER_HOST), docker-compose, and root to kill containers.
test-containers: $(DEV_STAMP)
	$(BIN)/python -m pytest tests/containers/container_stories.py $(ARGS)

# The deep and long tests as well, with ten times the examples, and everything on both databases.
nightly: lint types contracts
	HYPOTHESIS_PROFILE=nightly $(PYTEST_ALL) -m "nightly or not nightly"
	TEST_DATABASE=sqlite $(PYTEST_ALL) -m "nightly or not nightly" tests/jobs
	@$(MAKE) --no-print-directory advisories
	@$(MAKE) --no-print-directory conformance

# Known vulnerabilities of all pinned packages; says so where no index of them can be reached.
advisories: $(DEV_STAMP)
	$(BIN)/python -m tests.support.advisories

# Both need a container engine (DOCKER_HOST); the digests are in requirements/images.txt.
lock-images: $(DEV_STAMP)
	$(BIN)/python -m tests.support.base_images lock

check-images: $(DEV_STAMP)
	$(BIN)/python -m tests.support.base_images check

# Every case anew, the page about them, then mixtures of options; `make test` tries a sample.
conformance: $(DEV_STAMP)
	$(BIN)/python -m benchmarks.conformance --fresh $(ARGS)
	CONFORMANCE_ALL=1 $(BIN)/python -m pytest -m "nightly or not nightly" \
		tests/conformance/test_combinations.py \
		tests/conformance/test_live_changes.py tests/conformance/test_page.py

COMPILE := $(BIN)/uv pip compile -q --no-header --python-version 3.11 --generate-hashes

# The whole set first; the parts take its versions.
lock: $(DEV_STAMP)
	$(COMPILE) requirements/installer.in -o requirements/installer.txt
	$(COMPILE) requirements/main.in -o requirements.txt
	$(COMPILE) -c requirements.txt requirements/site.in -o requirements/site.txt
	$(COMPILE) -c requirements.txt requirements/agent.in -o requirements/agent.txt
	$(COMPILE) requirements/dev.in -o requirements/dev.txt

clean:
	rm -rf var staticfiles client/build client/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
