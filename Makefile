# Needs Python 3.11 and make; everything else is installed into .venv, pinned.
#
#   make demo    a running site with two nodes and three jobs (Ctrl-C ends it)
#   make test    lint, types, import contracts, every test
#   make help    the rest

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
MAIN_STAMP := $(VENV)/.main-$(shell cat requirements.txt | sha256sum | cut -c1-16)
DEV_STAMP := $(VENV)/.dev-$(shell cat requirements.txt requirements/dev.txt | sha256sum | cut -c1-16)
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help demo test lint types contracts pytest pytest-engine pytest-pure pytest-sqlite conformance format lock clean distclean
.DEFAULT_GOAL := help

help:
	@echo "make demo       run the site, two nodes and three jobs on this machine"
	@echo "make test       lint, types, import contracts and every test"
	@echo "make lint       ruff check and format check"
	@echo "make format     let ruff rewrite what it can"
	@echo "make types      mypy"
	@echo "make contracts  which package may import which"
	@echo "make pytest     the tests alone; ARGS='tests/core -k plan' picks some"
	@echo "make conformance  every public class of Keras, trained here as by Keras (an hour on two cores)"
	@echo "make lock       pin requirements/*.in again"
	@echo "make clean      remove caches and the demo's state (var/)"
	@echo "make distclean  remove .venv as well"

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: install Python 3.11, or name it: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "$(PYTHON) is not Python 3.11" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "$(PYTHON) -m venv failed: on Debian install python3.11-venv" >&2; exit 1; }

$(MAIN_STAMP): | $(BIN)/python
	@echo "Installing what the product needs into $(VENV) (about 2 GB; a few minutes the first time)"
	@$(INSTALL) --requirement requirements.txt
	@touch $@

$(DEV_STAMP): | $(MAIN_STAMP)
	@echo "Installing what the checks need into $(VENV)"
	@$(INSTALL) --requirement requirements/dev.txt
	@touch $@

demo: $(MAIN_STAMP)
	@exec $(BIN)/python manage.py demo $(ARGS)

# Two lanes, for two cores: trainers and whole stories, and beside them everything else with those
# tests of trainers that make both equally long. What fails in one keeps nobody from seeing the rest.
test: lint
	@$(MAKE) --no-print-directory -j2 --keep-going pytest-engine types contracts pytest-sqlite pytest-pure
	@echo "All checks passed. Next: 'make demo' shows the product running; docs/development.md says how to change it."

lint: $(DEV_STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(DEV_STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

types: $(DEV_STAMP)
	VIRTUALFLOW_DEBUG=1 $(BIN)/mypy

contracts: $(DEV_STAMP)
	$(BIN)/lint-imports --no-logo

pytest: $(DEV_STAMP)
	$(BIN)/python -m pytest $(ARGS)

# Slow ones are named; what runs beside them is shown when it is over.
PYTEST_LANE := $(BIN)/python -m pytest --durations=0 --durations-min=5
SHOWN_WHEN_OVER = @shown() { out=$$(mktemp) && { "$$@" >$$out 2>&1; status=$$?; cat $$out; rm $$out; return $$status; }; }; shown

TRAINER_TESTS := $(wildcard tests/agents/trainer/test_*.py)
EVENING_TESTS := tests/agents/trainer/test_resize.py tests/agents/trainer/test_peer_failures.py
ENGINE_TESTS := $(filter-out $(EVENING_TESTS),$(TRAINER_TESTS)) tests/e2e

pytest-engine: $(DEV_STAMP)
	$(PYTEST_LANE) $(ENGINE_TESTS)

pytest-pure: $(DEV_STAMP)
	$(SHOWN_WHEN_OVER) $(PYTEST_LANE) --quiet $(addprefix --ignore ,$(ENGINE_TESTS)) tests

# What the demo runs on; the whole test run uses PostgreSQL where it is installed.
pytest-sqlite: $(DEV_STAMP)
	$(SHOWN_WHEN_OVER) env TEST_DATABASE=sqlite $(PYTEST_LANE) --quiet tests/jobs

# Every case anew, the page about them, then mixtures of options; `make test` tries a sample.
conformance: $(DEV_STAMP)
	$(BIN)/python -m benchmarks.conformance --fresh $(ARGS)
	CONFORMANCE_ALL=1 $(BIN)/python -m pytest tests/conformance/test_combinations.py \
		tests/conformance/test_live_changes.py tests/conformance/test_page.py

lock: $(DEV_STAMP)
	$(BIN)/uv pip compile -q --no-header --python-version 3.11 requirements/main.in -o requirements.txt
	$(BIN)/uv pip compile -q --no-header --python-version 3.11 requirements/dev.in -o requirements/dev.txt

clean:
	rm -rf var staticfiles .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
