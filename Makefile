# Two commands on a fresh machine: `make demo` shows what bagwise does, `make test` proves that it works.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: help demo test check format clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    train from label proportions on embedded data; writes demo/digits/demo/report.html"
	@echo "make test    run the tests"
	@echo "make check   lint, formatting, types, import layers"
	@echo "make format  rewrite the code in the project's style"

# constraints.txt pins every version, so that a fresh machine gets what was tested
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(VENV)/installed
	$(BIN)/bagwise reproduce digits --preset demo --out demo

# One thread a process: the tests run in two processes and start more, which would otherwise wait for each other
test: $(VENV)/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --cov --cov-report=term

check: $(VENV)/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright
	$(BIN)/lint-imports

format: $(VENV)/installed
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf $(VENV) demo
