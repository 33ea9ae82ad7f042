# Everything a person or a machine does with this checkout. `make help` lists it.
# Each target does all the set-up it needs, so that it can be the only command typed.

SHELL := /bin/bash
PYTHON := .venv/bin/python
PORT ?=
RUN_DIR ?= .run
ARGS ?=
SCENARIO ?= all

export PATH := $(CURDIR)/.venv/bin:$(PATH)

.DEFAULT_GOAL := help
.PHONY: help setup run demo down test crash check format docs bench load pictures lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## system packages (apt), .venv, the project; quick when all is there
	@scripts/setup.sh

run: setup ## the whole stack with the demo, left running; `make down` stops it
	@stockgate up --detach --run-dir $(RUN_DIR) $(if $(PORT),--port $(PORT))
	@stockgate demo --run-dir $(RUN_DIR) $(ARGS)

demo: setup ## the stack, the demo, its result as the exit code; stopped at the end
	@stockgate up --detach --run-dir $(RUN_DIR) $(if $(PORT),--port $(PORT))
	@stockgate demo --run-dir $(RUN_DIR) $(ARGS); result=$$?; \
	  stockgate down --run-dir $(RUN_DIR) || exit 1; exit $$result

down: setup ## stop what `make run` left running
	@stockgate down --run-dir $(RUN_DIR)

test: setup ## all tests but the full crash suite, on real servers, two at a time
	@$(PYTHON) -m pytest -n 2 --dist loadfile $(ARGS)

crash: setup ## the full crash suite: every crash point many times
	@$(PYTHON) -m pytest -m crash_full --timeout=0 $(ARGS)

check: setup ## lint, format, types, import contracts, Lua
	@ruff check .
	@ruff format --check .
	@lint-imports
	@luacheck -q lua
	@basedpyright --warnings

format: setup ## let ruff mend what it can
	@ruff check --fix .
	@ruff format .

docs: setup ## the pages that are made from the source, and the examples of the API's page, executed anew
	@$(PYTHON) -m gateway.errors_page docs/errors.md
	@$(PYTHON) -m kernel.settings_page docs/settings.md
	@RECORD_EXAMPLES=1 $(PYTHON) -m pytest -q tests/integration/test_examples.py -k comes_out

bench: ## speed and memory in ratios of one run, 15 minutes; ARGS=--help lists its parts
	@scripts/setup.sh --bench
	@$(PYTHON) -m loadtests.bench $(ARGS)

load: setup ## Locust scenarios with budgets: SCENARIO=order_service|flash_sale|retry_storm|operators|all
	@$(PYTHON) -m loadtests.load $(SCENARIO) --run-dir $(RUN_DIR) $(ARGS)

pictures: setup ## draw the dashboards from a running stack: ARGS='--seconds 60'
	@$(PYTHON) -m observability.draw --run-dir $(RUN_DIR) $(ARGS)

lock: setup ## resolve the dependencies anew into both lock files
	@options="--quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links"; \
	  export UV_CUSTOM_COMPILE_COMMAND="make lock"; \
	  uv pip compile $$options $(ARGS) pyproject.toml -o requirements.lock && \
	  uv pip compile $$options $(ARGS) --extra dev -c requirements.lock pyproject.toml -o requirements-dev.lock

clean: ## remove caches (.run and .venv stay)
	@rm -rf .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
