# Every target works as the first command in a fresh clone: it makes the virtual environment it needs.
#   make test TESTS=tests/unit            part of the tests
#   make test PYTEST_ARGS="-n 0 -x -k plan"
#   make install PYTHON=python3.12 VENV=/tmp/env
#   make demo DEMO_ARGS="--store minio"

PYTHON ?= python3
VENV ?= .venv
TESTS ?= tests
PYTEST_ARGS ?= -n 2 --dist loadfile --no-loadscope-reorder
DEMO_ARGS ?=
BENCH_ARGS ?=

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
.DEFAULT_GOAL := help

PY := $(VENV)/bin/python
PIP_INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
STAMP := $(VENV)/.installed-for

# An environment is whole when its stamp, written last, names this folder: one that was half made,
# copied from elsewhere, or whose interpreter went away is made again from nothing.
IS_WHOLE = test -x $(PY) && test "$$(cat $(STAMP) 2>/dev/null)" = '$(CURDIR)'
REMAKE := $(shell $(IS_WHOLE) || echo remake)

.PHONY: help install demo test lint style bench bench-step bench-emulator bench-plan bench-predict pr clean remake

help:
	@echo "install     make $(VENV) with the pinned versions of constraints.txt"
	@echo "demo        train the digits example on an emulated AWS Lambda: 2 stages x 2 replicas, 2 to 3 minutes"
	@echo "test        every test; starts and stops the servers that it needs"
	@echo "lint        ruff and mypy, changing nothing        style   let ruff fix and format"
	@echo "bench       every benchmark                        bench-step   one training step, taken apart"
	@echo "bench-emulator   CPU shares, networks and time dilation against their nominal values"
	@echo "bench-plan  how long planning takes, by model, platform and solver"
	@echo "bench-predict   predictions of plans against their runs on the emulator; wants a quiet machine"
	@echo "pr          lint, test, demo: all that a change must pass"
	@echo "clean       remove $(VENV), caches and build results; keeps runs/"

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt $(REMAKE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "funcpipe needs Python 3.11 or newer, and '$(PYTHON)' is not: make PYTHON=python3.11 ..." >&2; exit 1; }
	@echo "Installing into $(VENV); with torch this takes a few minutes the first time."
	@{ $(IS_WHOLE); } || $(PYTHON) -m venv --clear $(VENV)
	@rm -f $(STAMP)
	@$(PIP_INSTALL) setuptools
	@$(PIP_INSTALL) --no-build-isolation --editable '.[dev]'
	@printf '%s\n' '$(CURDIR)' > $@

demo: $(STAMP)
	$(VENV)/bin/funcpipe train examples/digits/job.py --stages 2 --replicas 2 $(DEMO_ARGS)

test: $(STAMP)
	OMP_NUM_THREADS=1 $(PY) -m pytest $(PYTEST_ARGS) $(TESTS)

lint: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

style: $(STAMP)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: bench-step bench-emulator bench-plan bench-predict

bench-step: $(STAMP)
	$(PY) tests/benchmarks/bench_step.py $(BENCH_ARGS)

bench-emulator: $(STAMP)
	$(PY) tests/benchmarks/bench_emulator.py $(BENCH_ARGS)

bench-plan: $(STAMP)
	$(PY) tests/benchmarks/bench_plan.py $(BENCH_ARGS)

bench-predict: $(STAMP)
	$(PY) tests/benchmarks/bench_predict.py $(BENCH_ARGS)

pr: lint test demo

clean:
	rm -rf -- $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
