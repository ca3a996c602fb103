# headway: everything runs from here; the first call sets up .venv, nothing is to be done by hand.

PYTHON ?= python3
JOBS ?= auto
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
TORCH := $(VENV)/.torch
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check

.DELETE_ON_ERROR:
.PHONY: help setup compare test check bench clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 18
	@echo "  ARGS='…' goes to the command behind compare, test and bench; PYTHON=python3.12 chooses the interpreter."

setup: $(READY)  ## make .venv: done by every other target when needed

compare: $(READY)  ## train one small model per position encoding and compare them (at most 5 minutes on 2 cores)
	$(BIN)/headway compare --seeds 1 --out compare-out $(ARGS)

test: $(READY)  ## run the tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --maxprocesses 8 --dist worksteal $(ARGS)

check: $(READY)  ## lint, format, types, then the tests: what CI runs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@$(MAKE) --no-print-directory test

bench: $(READY)  ## measure speed and memory
	$(BIN)/python benchmarks/run.py $(ARGS)

clean:  ## remove .venv and everything else that can be made again
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes in first and by its exact version, so that what depends on torch finds it there and does not
# choose another build. New constraints make a new environment; a new pyproject.toml only installs again.
$(TORCH): constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than 3.11, which constraints.txt needs: name another, as in make PYTHON=python3.12"; exit 1; }
	@echo "setting up $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(PIP) install -c constraints.txt "$$(grep -m 1 '^torch==' constraints.txt)"
	@touch $@

$(READY): pyproject.toml $(TORCH)
	@$(PIP) install --quiet -c constraints.txt -e ".[study,test,dev]"
	@touch $@
