# One command sets up, one checks everything, and CI runs that same one. `make` alone tells what there is.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-slow test-cluster cluster cluster-down kube bench bench-quick sim etcd format constraints clean
.PHONY: check check-format check-lint check-types check-imports check-core

BIN := .venv/bin
READY := .venv/.ready
SEEDS ?= 100000
PYTEST_FLAGS ?=
CLUSTER_FLAGS ?=
# The rarer seeds as well: make test-cluster CLUSTER_TESTS=cluster
CLUSTER_TESTS ?= cluster and not slow

help: ## Tell what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Anew whenever what should be installed changes; tools/venv mends what it finds, so this may be interrupted.
$(READY): pyproject.toml constraints.txt tools/venv
	@tools/venv
	@touch $@

demo: $(READY) ## Four workers train for a minute; one is killed, one joins, one is drained
	@$(BIN)/python examples/demo.py

test: $(READY) ## All tests but the slow tier and those that need a cluster (< 15 min)
	@$(BIN)/python -m pytest -n 2 -m "not slow and not cluster" $(PYTEST_FLAGS)

test-slow: $(READY) ## The slow tier alone
	@$(BIN)/python -m pytest -n 2 -m "slow and not cluster" $(PYTEST_FLAGS)

test-cluster: $(READY) ## The tests on real Kubernetes clusters (wants Go, and root for Pods that run)
	@if command -v go >/dev/null; then hack/kube/build >/dev/null || true; fi # tests say what they then miss
	@$(BIN)/python -m pytest -n 2 --dist loadfile -m "$(CLUSTER_TESTS)" $(PYTEST_FLAGS) tests/cluster

cluster: $(READY) ## Start a Kubernetes cluster here and leave it running (wants Go, and root for Pods that run)
	@$(BIN)/python -m hack.kube.harness up $(CLUSTER_FLAGS)

cluster-down: $(READY) ## Take it down
	@$(BIN)/python -m hack.kube.harness down

check: $(READY) ## Format, lint, types, import directions, core tests (< 60 s)
	@$(MAKE) --no-print-directory --keep-going check-format check-lint check-types check-imports check-core

check-format: $(READY)
	$(BIN)/ruff format --check --quiet
check-lint: $(READY)
	$(BIN)/ruff check --quiet
check-types: $(READY)
	$(BIN)/mypy --strict src
check-imports: $(READY)
	$(BIN)/lint-imports --no-logo
check-core: $(READY)
	$(BIN)/python -m pytest --quiet -m "not slow" tests/core tests/house $(PYTEST_FLAGS)

bench: $(READY) sim ## All benchmarks in full, and the simulated schedules
	@for file in benchmarks/[a-z]*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

bench-quick: $(READY) ## All benchmarks at a small scale; the figures also as JSON in build/benchmarks
	@mkdir -p build/benchmarks
	@for file in benchmarks/[a-z]*.py; do echo "== $$file"; \
		$(BIN)/python $$file --quick --json build/benchmarks/$$(basename $$file .py).json || exit 1; done

sim: $(READY) ## 10^5 simulated schedules of joins, leaves and deaths (SEEDS=n for fewer)
	@$(BIN)/python -m shoal.sim.worlds --seeds $(SEEDS)
	@$(BIN)/python -m shoal.sim.worlds --seeds $(SEEDS) --failovers
	@$(BIN)/python -m shoal.sim.worlds --seeds $(SEEDS) --outages
	@$(BIN)/python -m shoal.sim.servers --seeds $(SEEDS)
	@$(BIN)/python -m shoal.sim.servers --seeds $(SEEDS) --failovers

kube: ## Build the Kubernetes that tests use (wants Go; once, into the cache; 10 minutes)
	@hack/kube/build

etcd: ## Build the etcd that tests use (wants Go; once, into the cache)
	@hack/etcd/build

format: $(READY) ## Format and fix what can be fixed
	$(BIN)/ruff check --fix --quiet
	$(BIN)/ruff format --quiet

# The torch that tests and demo use is named here; users may have another (pyproject.toml).
constraints: $(READY) ## Make constraints.txt anew, with the newest versions
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --all-extras --group dev \
		--upgrade-package torch==2.13.0 --upgrade \
		--no-annotate --no-header --no-emit-index-url --no-emit-find-links \
		--output-file constraints.txt pyproject.toml

clean: ## Remove caches and builds (for a new .venv: rm -r .venv)
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
