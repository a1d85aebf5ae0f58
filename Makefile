# Two commands do all set-up: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST := $(BIN)/pytest -q -n 2 --dist worksteal

.PHONY: demo test test-fast test-medium test-slow lint format docs notebooks bench results clean

demo: $(READY)
	$(BIN)/adagp demo --out runs/demo --force
	@echo "Next: source $(BIN)/activate, which makes adagp a command; then adagp --help"

test: $(READY)
	$(MAKE) --no-print-directory --jobs 2 lint test-medium

test-fast: $(READY)
	$(PYTEST) -m "not slow and not medium"

test-medium: $(READY)
	$(PYTEST) -m "not slow"

test-slow: $(READY)
	$(PYTEST) -m slow

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve --livereload --dev-addr 127.0.0.1:8000

notebooks: $(READY)
	$(BIN)/python -m tools.run_notebooks

bench: $(READY)
	$(BIN)/python -m benchmarks

results: $(READY)
	$(BIN)/adagp reproduce all --budget quick --out runs/reproduce-quick
	$(BIN)/python -m tools.write_results runs/reproduce-quick/verdicts.md

clean:
	rm -rf $(VENV) runs site .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(READY): pyproject.toml constraints.txt requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-e '.[all,dev,docs]'
	touch $@
