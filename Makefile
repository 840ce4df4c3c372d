# Every target prepares .venv first (scripts/setup-venv; seconds if it exists). All paths are relative and
# programs are run as `python -m`, so that a clone in a folder with spaces in its name works.

PYTHON := .venv/bin/python

# Idle threads sleep instead of spinning: this costs little on a free machine, and keeps a busy one usable.
export OMP_WAIT_POLICY ?= PASSIVE

# One worker with one thread per core; a worker without tests takes over waiting tests of others.
ON_ALL_CORES := -n logical --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-gpu chaos sanitize lint docs docs-serve bench bench-all conformance venv demo-venv clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

# DATA and OUT reach the recipe through the environment: any character in them is safe.
demo: export DATA := $(DATA)
demo: export OUT := $(OUT)
demo: demo-venv ## train, compare and save six models (DATA=movielens-1m, OUT=folder)
	@$(PYTHON) -m fieldwise quickstart --no-serve --overwrite --data "$${DATA:-simulated}" $${OUT:+--out "$$OUT"}

# Else every worker, and every process that a test starts, would compile all modules.
test test-all: export PYTHONDONTWRITEBYTECODE :=

test: venv ## run the fast tests on all cores
	@$(PYTHON) -m pytest $(ON_ALL_CORES)

test-all: venv ## run all tests
	@$(PYTHON) -m pytest $(ON_ALL_CORES) -m "slow or not slow"

test-gpu: venv ## run the tests of devices on a GPU (on another: DEVICE=cuda:1)
	@FIELDWISE_TEST_DEVICE="$(or $(DEVICE),cuda)" $(PYTHON) -m pytest tests/devices -m "slow or not slow"

chaos: venv ## attacks on the server and on artifacts, with a seed, in about 10 minutes (MINUTES=n for fewer, SEED=n)
	@$(PYTHON) -m benchmarks.chaos $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) --json build/chaos.json

sanitize: venv ## run the tests of the native operations under the address and undefined-behaviour sanitizers (GCC)
	@mkdir -p build && cmake -S native -B build/sanitized -DFIELDWISE_SANITIZE=ON >build/sanitize.log && cmake --build build/sanitized >>build/sanitize.log
	@FIELDWISE_NATIVE=build/sanitized/_native.so ASAN_OPTIONS=detect_leaks=0 \
		LD_PRELOAD="$$(gcc -print-file-name=libasan.so):$$(gcc -print-file-name=libubsan.so)" \
		$(PYTHON) -m pytest tests/ops

lint: venv ## check style, docstrings and types
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m mypy --strict src

docs: export NO_MKDOCS_2_WARNING := 1
docs: venv ## build the documentation as a site in build/site (open index.html); warnings are errors
	@$(PYTHON) -m mkdocs build

docs-serve: export NO_MKDOCS_2_WARNING := 1
docs-serve: venv ## serve the site at http://127.0.0.1:8000, built again when a page changes
	@$(PYTHON) -m mkdocs serve

bench: venv ## measure the speed of the hot paths, in a few minutes (results in build/benchmarks.json)
	@$(PYTHON) -m benchmarks run afm-epoch autoint-epoch --size quick --json build/benchmarks.json

bench-all: venv ## run all benchmarks at full size; writes benchmarks/results.json and docs/performance.md (some 20 minutes)
	@test -x "$${FIELDWISE_PEERS:-build/peers}/bin/python" || sh benchmarks/peers/setup
	@$(PYTHON) -m benchmarks run all
	@$(PYTHON) -m benchmarks write

conformance: venv ## write docs/models/conformance.md: parameter counts, parity and contract of every model
	@$(PYTHON) -m benchmarks.conformance

venv: ## create or update .venv for development, nothing else
	@sh scripts/setup-venv dev

demo-venv:
	@sh scripts/setup-venv demo

clean: ## remove .venv, caches and build outputs
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
