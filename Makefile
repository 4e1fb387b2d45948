# `make` lists the targets. Everything lives in .venv; nothing outside this folder is touched but caches of pip.
PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
DATASETS := datasets
RUN := runs/movielens
PYTEST_WORKERS ?= 3

.DEFAULT_GOAL := help
.PHONY: help install dev hooks demo test lint format typecheck imports unit drills coverage smoke wheel lock clean

help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: ## create .venv with ziggurat and what it needs (CPU or CUDA, by what the machine has)
	@$(PYTHON) tools/install.py --venv $(VENV)

dev: ## the same, with the tools that `make test` runs
	@$(PYTHON) tools/install.py --dev --venv $(VENV)

hooks: dev ## run the gates of lint, types and imports before each commit, and the tests before each push
	$(BIN)/pre-commit install --install-hooks --hook-type pre-commit --hook-type pre-push

demo: install ## fetch MovieLens-100K, train, evaluate and write the report
	$(BIN)/ziggurat datasets get movielens-100k --out $(DATASETS)/movielens-100k
	$(BIN)/ziggurat train examples/movielens.yaml --set data.folder=$(DATASETS)/movielens-100k --run $(RUN)
	$(BIN)/ziggurat evaluate $(RUN)
	$(BIN)/ziggurat report $(RUN)

test: dev ## every gate that CI runs
	@$(MAKE) --no-print-directory lint imports
	@$(MAKE) --no-print-directory --jobs 2 typecheck unit  # the types are checked by one thread, for a minute
	@$(MAKE) --no-print-directory smoke

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: dev ## format the code and sort its imports
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

typecheck: dev
	$(BIN)/basedpyright --pythonpath $(BIN)/python

imports: dev
	$(BIN)/lint-imports

unit: dev ## the tests alone
	@$(BIN)/python -m compileall -q -j 0 src tests bench -x '\.cache|peers'  # the tests start hundreds of processes: none compiles again
	$(BIN)/pytest -n $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder --drills no

drills: dev ## the tests that take longest, of which `make test` runs one of each kind (tests/drills.py)
	$(BIN)/pytest -n $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder --drills only

coverage: dev ## the tests, and the lines that none of them reaches
	$(BIN)/pytest -n $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder --cov --cov-report=term

smoke: dev ## every benchmark once, quickly, two at a time; nothing is judged or stored
	@$(BIN)/python -m bench smoke

wheel: dev ## build dist/*.whl and install it from the package index into a fresh environment: one to five minutes
	rm -rf dist build/wheel
	$(BIN)/python -m pip wheel . --no-deps --no-build-isolation --quiet --wheel-dir dist
	$(BIN)/python -m venv build/wheel
	build/wheel/bin/python -m pip install --disable-pip-version-check --quiet dist/*.whl
	cd build && wheel/bin/ziggurat --version && wheel/bin/ziggurat generate shop.csv --rows 1000
	cd build && wheel/bin/ziggurat doctor; test $$? -eq 1  # it names the engine, which is not installed yet

lock: ## write requirements/lock.txt anew from what is installed in .venv
	@{ sed -n '/^#/p' requirements/lock.txt; $(BIN)/python -m pip freeze --all --exclude-editable \
	  | grep -viE '^(torch|torchrec|fbgemm[-_]gpu([-_]cpu)?|pip|nvidia[-_a-z0-9]*|triton|ziggurat)(==| @)'; } > requirements/lock.new
	@mv requirements/lock.new requirements/lock.txt

clean: ## remove .venv and every cache; datasets, prepared data and runs stay
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .coverage .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
