# decodepool: `make demo` runs it, `make test` tests it, `make help` lists the rest.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.synced
WORKER_STAMP := $(VENV)/.synced-worker
# uv makes the environment; where it is missing it goes into a small environment of its own, so nothing of the system's is touched.
UV := $(shell command -v uv || echo .uv/bin/uv)
RUN := $(UV) run --frozen --no-sync
# Asking so often again, uv outlasts a network or a name server that is away for a moment.
export UV_HTTP_RETRIES ?= 6

.PHONY: help
help: ## list these commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

.PHONY: setup
setup: $(STAMP) ## make the environment from uv.lock

.uv/bin/uv:
	python3 -m venv .uv
	.uv/bin/pip install --quiet 'uv>=0.9,<1'

$(STAMP): pyproject.toml uv.lock | $(filter .uv/bin/uv,$(UV))
	$(UV) sync --frozen --extra dev
	@touch $@ $(WORKER_STAMP)

# What serving needs, without the tools of tests: a third of the download.
$(WORKER_STAMP): pyproject.toml uv.lock | $(filter .uv/bin/uv,$(UV))
	$(UV) sync --frozen --inexact --extra worker
	@touch $@

.PHONY: model
model: $(WORKER_STAMP) ## put SmolLM2-135M-Instruct into the user's cache (98 MB, once)
	@$(RUN) python examples/fetch_smollm2.py

.PHONY: demo
demo: model ## serve examples/smollm2.yaml, stream an answer, keep serving
	@$(RUN) python examples/demo.py

.PHONY: check
check: lint ## lint, types, contracts, fast tests: about five minutes
	$(RUN) pytest -m 'not slow and not model and not cluster'

.PHONY: lint
lint: $(STAMP) ## style, types, import contracts
	$(RUN) ruff check
	$(RUN) ruff format --check
	$(RUN) mypy
	$(RUN) lint-imports

.PHONY: test
test: check model ## everything but test-soak; what fails fast comes first
	$(RUN) pytest -m '(slow or model) and not cluster' -rs
	@$(MAKE) --no-print-directory test-cluster

.PHONY: test-cluster
test-cluster: $(STAMP) model ## the suite on a real cluster; says what it needs where it cannot run
	@$(RUN) python -m decodepool_cluster build --where-possible
	$(RUN) pytest -m 'cluster and not soak' -rs

.PHONY: test-soak
test-soak: $(STAMP) model ## the cluster's long ones: silences, outages, fifty kills twice, a hundred pools (twenty minutes)
	@$(RUN) python -m decodepool_cluster build --where-possible
	$(RUN) pytest -m soak -rs

.PHONY: cluster
cluster: $(STAMP) model ## start a real local cluster with a pool in it, anew (needs root; ten minutes or more at first)
	@$(RUN) python -m decodepool_cluster up

.PHONY: cluster-down
cluster-down: ## stop that cluster and remove every trace of it
	@$(RUN) python -m decodepool_cluster down

.PHONY: golden
golden: $(STAMP) ## write again what is generated: the CRD, its page, the rendered chart
	$(RUN) python -m decodepool_operator.definition.crd
	$(RUN) python -m tests.chart.rendering

.PHONY: test-gpu
test-gpu: $(STAMP) model ## the GPU's tests; without a GPU, that kernels compile (many minutes), and the rest say that they did not run
	$(RUN) pytest tests/gpu -rs

.PHONY: sanitize-gpu
sanitize-gpu: $(STAMP) ## compute-sanitizer over every kernel, on a GPU
	$(RUN) python -m bench.gpu.sanitizer --out bench/results

.PHONY: format
format: $(STAMP) ## rewrite the sources in the project's style
	$(RUN) ruff check --fix
	$(RUN) ruff format

.PHONY: bench
bench: model ## measure this machine on SmolLM2
	$(RUN) decodepool bench "$${XDG_CACHE_HOME:-$$HOME/.cache}/decodepool/models/SmolLM2-135M-Instruct.Q4_1.gguf"

.PHONY: docs
docs: $(STAMP) ## check that every link and command in the docs exists
	$(RUN) pytest tests/docs
