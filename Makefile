# Everything one does with this repository. `make` alone lists it.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
WORKERS ?= 2
SEEDS ?= 1000
FUZZ_SECONDS ?= 60
MINUTES ?= 10
ARGS ?=

BIN := .venv/bin
STAMP := .venv/.installed
# Spark's tests share a JVM: the group keeps them on one worker.
PYTEST := $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup

# Folders that are checked, of which some may not exist yet.
SOURCES := $(wildcard tidelog tests bench examples)

.PHONY: help setup demo test test-fast test-long check format bench bench-quick sim faults fuzz mutants lock clean

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: $(STAMP) ## make .venv with everything pinned (the other targets do it by themselves)

$(STAMP): pyproject.toml requirements.lock requirements-spark.lock tools/setup
	@PYTHON=$(PYTHON) tools/setup
	@touch $@

demo: setup ## start what there is and show it at work (ARGS=--exit: stop by itself)
	@$(BIN)/tidelog demo $(ARGS)

test: check ## everything CI checks: lint, types, import rules, all tests
	@$(PYTEST) $(ARGS)

test-fast: setup ## the inner loop: all tests but the slow ones (ARGS="tests/raft -k vote")
	@$(PYTEST) -m "not slow and not long" $(ARGS)

test-long: setup ## the tests that take minutes each: hundreds of kills, 100,000 commands, Spark on a cluster
	@$(PYTEST) -m long $(ARGS)

check: setup ## lint, format, types, import rules
	@$(BIN)/ruff check --quiet $(SOURCES)
	@$(BIN)/ruff format --check --quiet $(SOURCES) || { echo "not formatted: run make format" >&2; exit 1; }
	@$(BIN)/basedpyright --level error
	@PYTHONPATH=. $(BIN)/lint-imports --no-cache

format: setup ## format, and fix what can be fixed by itself
	@$(BIN)/ruff check --fix-only --quiet $(SOURCES)
	@$(BIN)/ruff format --quiet $(SOURCES)

bench: setup ## benchmarks: ratios against a floor measured in the same run
	@$(BIN)/python -m bench $(ARGS)

bench-quick: setup ## the guard: ratios to the floor against bench/baseline.json; fails on a loss of over 25 % (< 2 min)
	@$(BIN)/tidelog bench guard $(ARGS)

sim: setup ## the simulator, longer (SEEDS=N)
	@$(BIN)/python -m tests.sim --seeds $(SEEDS) $(ARGS)

faults: setup ## real nodes under kill -9, cut links, full disks … (MINUTES=N ARGS="--seed S --only NAME")
	@$(BIN)/python -m tests.e2e.faults --minutes $(MINUTES) $(ARGS)

fuzz: setup ## coverage-guided fuzzing of every decoder (FUZZ_SECONDS=N each)
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check 'atheris>=3,<4'
	@for target in fuzz_decoders fuzz_records; do $(BIN)/python -m tests.wire.$$target -max_total_time=$(FUZZ_SECONDS) $(ARGS); done

mutants: setup ## break each safety rule in turn: the fast tests must notice (ARGS="--only NAME")
	@$(BIN)/python -m tests.mutants $(ARGS)

lock: ## pin pyproject.toml's dependencies anew (ARGS=--upgrade: newest versions)
	@PYTHON=$(PYTHON) tools/lock $(ARGS)

clean: ## remove what the targets made
	rm -rf .venv .venv-lock .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
