# Everything that a first visitor, a developer or CI runs. `make` alone says what there is.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help venv run test test-pure bench bench-merge faults bench-gate bench-policies bench-forecast-error regimes lint format clean

STUDY ?= experiments/quickstart/study.yaml
PLANT ?= experiments/calibration/cpu_8s.json
PIP := -m pip -q --disable-pip-version-check --no-input
PURE := not ray and not vllm and not gpu and not torch and not slow

# A stamp is written last, so an install that was interrupted starts again from nothing. It carries this folder's name:
# an environment that was copied along with the tree still belongs to the old place.
HERE := $(shell pwd -P | cksum | cut -d ' ' -f 1)
TORCH = $(shell grep '^torch==' requirements-cpu.lock)
# The lock files are resolved for 3.11. The base interpreter: one inside .venv would delete itself.
FIND = import ensurepip, sys, venv; assert sys.version_info[:2] == (3, 11); print(sys._base_executable)
PYTHON311 = $(shell for p in $(or $(PYTHON),python3.11 python3 python); do \
	"$$p" -c '$(FIND)' 2>/dev/null && break; done)

define new_venv
	@test -n "$(PYTHON311)" || { echo "No Python 3.11 with its venv module among: $(or $(PYTHON),python3.11 python3 python)." \
		"Install it (Debian: apt-get install python3.11-venv) or say where it is: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	"$(PYTHON311)" -m venv --clear $(1)
endef

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: .venv/ready-$(HERE) ## the environment of requirements-cpu.lock in .venv, once

.venv/locked-$(HERE): requirements-cpu.lock
	$(call new_venv,.venv)
	.venv/bin/python $(PIP) install -c requirements-cpu.lock $(TORCH)
	.venv/bin/python $(PIP) install --no-deps -r requirements-cpu.lock
	touch $@

.venv/ready-$(HERE): .venv/locked-$(HERE) pyproject.toml
	.venv/bin/python $(PIP) install --no-deps --no-build-isolation -e .
	touch $@

.venv-pure/locked-$(HERE): requirements-pure.lock
	$(call new_venv,.venv-pure)
	.venv-pure/bin/python $(PIP) install --no-deps -r requirements-pure.lock
	touch $@

.venv-pure/ready-$(HERE): .venv-pure/locked-$(HERE) pyproject.toml
	.venv-pure/bin/python $(PIP) install --no-deps --no-build-isolation -e .
	touch $@

run: venv ## the quickstart study (STUDY=path for another, ARGS for options)
	.venv/bin/lull run $(STUDY) $(ARGS)

test: venv ## the whole test suite (ARGS for pytest)
	.venv/bin/python -m pytest -n 2 --dist loadgroup --durations=10 $(ARGS)

test-pure: .venv-pure/ready-$(HERE) ## the pure tests, where ray, torch, vllm and mlflow are not installed
	@.venv-pure/bin/python -c 'from importlib.util import find_spec as f; \
		assert not any(map(f, ("ray", "torch", "vllm", "mlflow"))), "a heavy package is installed"'
	.venv-pure/bin/python -m pytest -n auto -m "$(PURE)" --durations=5 $(ARGS)

bench: venv ## benchmarks, as ratios within one run; outside CI
	PYTHONPATH=. .venv/bin/python tests/benchmarks/bench_corridor.py
	PYTHONPATH=. .venv/bin/python tests/benchmarks/bench_coordinator.py
	PYTHONPATH=. .venv/bin/python tests/benchmarks/bench_overhead.py
	PYTHONPATH=. .venv/bin/python tests/benchmarks/bench_traces.py
	@test -d .venv/bench || .venv/bin/python $(PIP) install --no-deps --target .venv/bench "simpy==4.1.*" "ciw==3.2.*" \
		|| echo "SimPy and Ciw cannot be had: without the comparison" >&2
	PYTHONPATH=.:.venv/bench .venv/bin/python tests/benchmarks/bench_replay.py
	PYTHONPATH=. .venv/bin/python tests/benchmarks/bench_player.py
	PYTHONPATH=. .venv/bin/python tests/benchmarks/bench_sweep.py

bench-merge: venv ## what a merge costs, by size, islands, transport and codec (ARGS for options); outside CI
	PYTHONPATH=. .venv/bin/python tests/benchmarks/bench_merge.py $(ARGS)

faults: venv ## every fault at 20 random moments, and 20 resumes, into tests/benchmarks/README-faults.md (ARGS); outside CI
	PYTHONPATH=. .venv/bin/python tests/benchmarks/bench_faults.py $(ARGS)

bench-gate: venv ## false positives and power of the gate (ARGS for options); outside CI
	PYTHONPATH=. .venv/bin/python tests/benchmarks/bench_gate.py $(ARGS)
	PYTHONPATH=. .venv/bin/python tests/benchmarks/bench_claims.py

bench-policies: venv ## every policy on ten families of traffic, into tests/benchmarks/README-policies.md (ARGS for options)
	PYTHONPATH=. .venv/bin/python tests/benchmarks/bench_policies.py $(ARGS)

bench-forecast-error: venv ## gain of the forecasting policies as their forecast gets worse, into experiments/forecast_error
	PYTHONPATH=. .venv/bin/python tests/benchmarks/bench_forecast_error.py $(ARGS)

regimes: venv ## six regimes in replay, into experiments/REGIMES.md (PLANT=plant.json, ARGS for options)
	PYTHONPATH=. .venv/bin/python tests/benchmarks/bench_regimes.py --plant $(PLANT) $(ARGS)

lint: venv ## style, formatting, types, spelling
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/codespell

format: venv ## repair style and formatting
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

clean: ## remove environments, caches and builds; records under runs/ stay
	rm -rf .venv .venv-pure .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist ./*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
