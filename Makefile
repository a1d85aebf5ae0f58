# Two commands do all set-up: `make demo` installs what the demonstration needs, `make test` everything.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_READY := $(VENV)/.ready-demo
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTEST := $(BIN)/pytest -q -n 2 --dist worksteal
# Keep compiled modules, whatever the environment says: the tests start hundreds of interpreters.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-fast test-medium test-slow lint format docs notebooks bench results release clean

demo: $(DEMO_READY)
	$(BIN)/adagp demo --out runs/demo --force
	@echo "First: source $(BIN)/activate, which makes adagp a command."

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
	$(BIN)/adagp reproduce all --budget quick --records docs/measured/campaign --out runs/reproduce-quick
	$(BIN)/adagp reproduce all --report --records docs/measured/campaign --out runs/reproduce-report
	$(BIN)/python -m tools.write_results runs/reproduce-report/verdicts.md

# The files of a release: wheel, source, and the list of components that it was tested with, by CycloneDX's own tool.
release: $(READY)
	$(BIN)/python -m hatchling build -d dist
	$(PYTHON) -m venv $(VENV)-sbom
	$(VENV)-sbom/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r tools/sbom.lock
	$(VENV)-sbom/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
		--output-file dist/sbom.cdx.json $(BIN)/python
	$(BIN)/python -m tools.sbom dist/sbom.cdx.json

clean:
	rm -rf $(VENV) $(VENV)-sbom dist runs site .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(READY): pyproject.toml constraints.txt requirements.lock requirements-build.lock
	$(PYTHON) -m venv $(VENV)
	$(PIP) --require-hashes --no-deps -r requirements-build.lock
	$(PIP) --require-hashes --no-deps -r requirements.lock
	$(PIP) --no-build-isolation -c constraints.txt -e '.[all,dev,docs]'
	touch $@ $(DEMO_READY)

$(DEMO_READY): pyproject.toml constraints.txt requirements-build.lock
	test -e $@ || $(PYTHON) -m venv $(VENV)
	$(PIP) --require-hashes --no-deps -r requirements-build.lock
	$(PIP) --no-build-isolation -c constraints.txt -e '.[plot,report]'
	touch $@
