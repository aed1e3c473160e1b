# The whole vocabulary. Nothing but Python 3.11+ and make is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install demo test check torture bench format clean
.DEFAULT_GOAL := test

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@

install: $(STAMP)

demo: $(STAMP)
	$(BIN)/python -m holdfast.demo

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not torture"

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q "tests/docs/test_readme.py::test_the_code_of_a_page_works[README.md]"

torture: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m torture --timeout 3600

bench: $(STAMP)
	$(BIN)/python benchmarks/bench.py

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist
