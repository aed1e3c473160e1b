# The whole vocabulary. Nothing but Python 3.11+ and make is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS := .venv-docs
LAWS := $(wildcard tests/*/test_*_laws.py)
DEMO := $(if $(wildcard $(STAMP)),$(VENV),.venv-demo)

.PHONY: install demo test check check-js torture mutants bench bench-ab bench-celery bench-peers docs format clean
.DEFAULT_GOAL := test

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@

install: $(STAMP)

# What the demo needs and no more, in an environment of its own, unless there is one for development.
.venv-demo/.installed: pyproject.toml
	@echo "1/3  making an environment in .venv-demo"
	@$(PYTHON) -m venv .venv-demo
	@echo "2/3  installing Holdfast and what its monitor needs there, a dozen small packages"
	@.venv-demo/bin/python -m pip install --quiet --disable-pip-version-check -e ".[monitor]"
	@touch $@

demo: $(DEMO)/.installed
	@echo "3/3  playing an order process, with a crash in it"
	@$(DEMO)/bin/python -m holdfast.demo

# Twice as many at a time as there are cores, for most wait for processes, servers or a browser.
test: $(STAMP)
	$(BIN)/python -m pytest -n 4 --dist loadgroup -m "not torture"

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q "tests/docs/test_readme.py::test_the_code_of_a_page_works[README.md]"

# The pages need no build step and no Node; this only checks their types.
check-js:
	npx --yes --package typescript tsc -p src/holdfast/monitor/static/jsconfig.json

# With CAMPAIGN_MINUTES=10 it is only the campaign, for so long, and ends with a table of what was tried and what was lost.
torture: $(STAMP)
ifdef CAMPAIGN_MINUTES
	$(BIN)/python tests/faults/campaign.py --minutes $(CAMPAIGN_MINUTES)
else
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m torture --timeout 3600
	HOLDFAST_EXAMPLES=1000 $(BIN)/python -m pytest -n 2 --timeout 3600 $(LAWS)
endif

mutants: $(STAMP)
	$(BIN)/python tests/mutants/run.py

bench: $(STAMP)
	$(BIN)/python benchmarks/bench.py

# This tree against another commit, in turns: make bench-ab REF=main ROUNDS=5 ONLY="many chord"
bench-ab: $(STAMP)
	$(BIN)/python benchmarks/ab.py $(REF) $(ONLY) --rounds $(or $(ROUNDS),3)

# Steps on Celery, and in an executor of our own, beside plain Celery with the same pool.
bench-celery: $(STAMP)
	$(BIN)/python benchmarks/bench_celery.py

bench-peers: $(STAMP)
	$(BIN)/python benchmarks/bench_peers.py

# The site's tools have an environment of their own: tests need none of them.
$(DOCS)/.installed: pyproject.toml
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -e ".[docs]"
	touch $@

docs: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet
	$(DOCS)/bin/python docs/_site/check.py site

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) $(DOCS) .venv-demo site .bench-peers .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist
