# `make sweep` and `make test` do all set-up themselves: a virtual environment in .venv, made once.
# Needs Python >= 3.11 (with venv), make and g++ (qtorch compiles itself with it).

ROOT := $(patsubst %/,%,$(dir $(abspath $(lastword $(MAKEFILE_LIST)))))
# Another version of PyTorch has an environment of its own: `make test TORCH=2.15.0`.
CONSTRAINED := $(shell sed -n 's/^torch==//p' $(ROOT)/constraints.txt)
TORCH ?= $(CONSTRAINED)
VENV := $(ROOT)/.venv$(if $(filter-out $(CONSTRAINED),$(TORCH)),-torch-$(TORCH))
BIN := $(VENV)/bin
PYTHON ?= python3
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Of another version there may be no build without CUDA; it brings a Triton of its own.
CONSTRAINTS := $(if $(filter-out $(CONSTRAINED),$(TORCH)),$(VENV)/constraints.txt,$(ROOT)/constraints.txt)
# Where PyTorch publishes builds without CUDA, for machines whose package index has none.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu

export OMP_NUM_THREADS ?= 1

# Tests start many processes that import the package: its bytecode is kept, or each of them compiles all of it again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install sweep test tests-alone test-slow test-gpu lint format bench bench-gpu docs doctor clean

install: $(INSTALLED)

$(INSTALLED): $(ROOT)/pyproject.toml $(ROOT)/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "roundoff needs Python >= 3.11, got " + sys.version.split()[0] + "; name one with make PYTHON=...")'
	@echo "Installing into $(VENV) (a few minutes, once)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --upgrade "pip>=24" "setuptools>=80"
	@if nvidia-smi -L >/dev/null 2>&1; then \
		$(PIP) install "torch==$(TORCH)"; \
	else \
		$(PIP) install "torch==$(TORCH)+cpu" 2>/dev/null \
		|| $(PIP) install "torch==$(TORCH)" --index-url $(TORCH_CPU_INDEX) \
		$(if $(filter-out $(CONSTRAINED),$(TORCH)),|| $(PIP) install "torch==$(TORCH)"); \
	fi
	@$(if $(filter-out $(CONSTRAINED),$(TORCH)),sed -e '/^torch==/d' -e '/^triton==/d' $(ROOT)/constraints.txt >$(CONSTRAINTS))
	@PYTHONWARNINGS=ignore $(PIP) install --constraint $(CONSTRAINTS) --editable "$(ROOT)[dev]"
	@touch $(INSTALLED)

# The main job: a bit-width sweep of SAC on cartpole_swingup, ending in results/significand-quick/degradation.png, and in
# what its four seeds can tell, and what not.
sweep: $(INSTALLED)
	@cd $(ROOT) && $(BIN)/roundoff sweep significand-quick --out results/significand-quick
	@cd $(ROOT) && $(BIN)/roundoff plot results/significand-quick
	@cd $(ROOT) && $(BIN)/roundoff against results/significand-quick

# What lint finds is printed as it is found, beside the tests; both must pass. The types that the code is checked against
# are those of the constrained PyTorch: with another version the tests run alone.
test: $(INSTALLED)
	@+$(MAKE) --no-print-directory --jobs 2 $(if $(filter-out $(CONSTRAINED),$(TORCH)),,lint) tests-alone

# As many processes as WORKERS; 3 suit two cores, since some tests wait.
WORKERS ?= 3
tests-alone: $(INSTALLED)
	@cd $(ROOT) && $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

# The learning runs that are too long for every day, and more random examples of all properties.
test-slow: $(INSTALLED)
	@cd $(ROOT) && $(BIN)/python -m pytest -n 2 -m "slow or hypothesis" --hypothesis-profile many $(ARGS)

lint: $(INSTALLED)
	@cd $(ROOT) && $(BIN)/ruff check && $(BIN)/ruff format --check && $(BIN)/mypy && $(BIN)/lint-imports --no-cache --no-logo

format: $(INSTALLED)
	@cd $(ROOT) && $(BIN)/ruff check --fix && $(BIN)/ruff format

# Ratios measured side by side, written to bench/results/.
bench: $(INSTALLED)
	@cd $(ROOT) && $(BIN)/python -m bench

# On a machine with a GPU: its bits against the CPU's, and what it costs, by device events, written to bench/results/gpu/.
test-gpu: $(INSTALLED)
	@nvidia-smi -L >/dev/null || { echo "make test-gpu needs an NVIDIA GPU; nvidia-smi finds none" >&2; exit 1; }
	@cd $(ROOT) && $(BIN)/python -m pytest -m cuda $(ARGS)

bench-gpu: $(INSTALLED)
	@nvidia-smi -L >/dev/null || { echo "make bench-gpu needs an NVIDIA GPU; nvidia-smi finds none" >&2; exit 1; }
	@cd $(ROOT) && $(BIN)/python -m bench.gpu

# The pages and the API reference as HTML in build/docs. A broken link or reference is an error.
docs: $(INSTALLED)
	@cd $(ROOT) && $(BIN)/python -m sphinx -q -E -W --keep-going -c docs . build/docs
	@echo $(ROOT)/build/docs/README.html

# Versions, extras, devices, kernels, caches; fails if something is broken.
doctor: $(INSTALLED)
	@$(BIN)/roundoff doctor

clean:
	rm -rf $(VENV) $(ROOT)/.mypy_cache $(ROOT)/.ruff_cache $(ROOT)/.pytest_cache
