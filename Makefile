# Daily commands. Each makes .venv when it is missing or older than pyproject.toml.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
# The goldens were made with this release; the CPU build is enough.
TORCH  ?= torch==2.13.0
WORKERS ?= 2

.PHONY: accept test slow lint format fixtures bench clean

accept: $(VENV)/.ready            ## Accept the adapters on the simulated boards
	$(BIN)/harness run --workers $(WORKERS)

test: $(VENV)/.ready-test         ## Every test of the harness but the slow studies
	$(BIN)/pytest tests -m "not slow" -n $(WORKERS) --dist loadfile -q

slow: $(VENV)/.ready-test         ## Whole fault runs, transfers over 2 GB
	$(BIN)/pytest tests -m slow -n $(WORKERS) -q

lint: $(VENV)/.ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.ready-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

fixtures: $(VENV)/.ready-test     ## Make fixtures/ again (some minutes)
	$(BIN)/python fixtures/build.py

bench: $(VENV)/.ready-test
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.ready: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet -e .
	touch $@

$(VENV)/.ready-test: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet -e ".[reference,test,lint]"
	touch $@ $(VENV)/.ready
