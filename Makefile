# The one entry for every check and every tool, the same for a person and for CI. `make help` lists them.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
TARGET := $(or $(CARGO_TARGET_DIR),target)
INSTALL_PACKAGES := tools/dev/install_packages.sh
# Python keeps a package compiled after its first import. With this variable set, each process would compile it anew.
unexport PYTHONDONTWRITEBYTECODE

DATA ?= demo-data
PROGRAMS := $(TARGET)/release
PROMETHEUS := $(abspath $(TARGET))/prometheus
RUST_SOURCES := Cargo.toml Cargo.lock .cargo/config.toml $(shell find cache coordinator bindings tools -name '*.rs' -o -name Cargo.toml -o -name '*.ptx' -o -path '*/src/*.py')
WHEEL_SOURCES := $(RUST_SOURCES) LICENSE pyproject.toml $(shell find bindings -name '*.py' -o -name '*.pyi' -o -name '*.md')
PYTHON_CODE := tools/demo tools/dev tools/bench/src bindings/build_backend bindings/python cache/device/kernels docs/examples tests
TYPED_PACKAGES := tools.demo tools.dev.site tools.dev.packaging coprep_build coprep tests.chaos \
	$(addprefix tests.benchmarks.,loaders slow_samples drop_in what_if gpu storage native_data)

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{ printf "  make %-10s %s\n", $$1, $$2 }'
	@echo "  settings:       DATA=folder (demo, bench, bench-slow), SECONDS=n (bench, fuzz), ONLY=coprep,limit REPEAT=n JOBS=1,2 (bench),"
	@echo "                  ONLY=order,forms,cost,watch,balance REPEAT=n QUICK=1 ARGS=\"--samples spin-10x\" (bench-slow),"
	@echo "                  ONLY=detection,memory REPEAT=n QUICK=1 (drop-in),"
	@echo "                  ONLY=at-once,latency,eight-jobs,shards,half-cache,peers REPEAT=n QUICK=1 (bench-storage),"
	@echo "                  ONLY=tokens,arrays,audio,parquet JOBS=1,8 REPEAT=n SECONDS=n QUICK=1 (bench-data),"
	@echo "                  REPEAT=n JOBS=1,8 SECONDS=n ARGS=\"--modes synthetic,coprep-device\" (bench-gpu),"
	@echo "                  HISTORIES=n PARALLEL=n SEED=n ARGS=\"--only 'ranks: 2'\" (chaos)"

# --- prerequisites -------------------------------------------------------------------------------------------

.PHONY: deps
deps: ## install the build tools that are missing, or say which
	@tools/dev/install_build_tools.sh $(PYTHON)

.PHONY: browser
browser: | deps
	@tools/dev/install_chromium.sh

.PHONY: prometheus
prometheus:
	@tools/dev/fetch_prometheus.sh $(PROMETHEUS)

$(VENV)/.base: | deps
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL_PACKAGES) $(VENV) "maturin>=1.9,<2" numpy cloudpickle pillow
	@touch $@

# The list of packages is in this file, so that an environment of an earlier version gets what it lacks.
$(VENV)/.checks: $(VENV)/.base Makefile
	@$(INSTALL_PACKAGES) $(VENV) tree-sitter tree-sitter-rust pytest pytest-timeout pytest-xdist pyte websockets ruff mypy pyarrow "moto[server]>=5.2,<6"
	@touch $@

$(VENV)/.torch: $(VENV)/.base
	@echo "installing PyTorch (about 4.5 GB with its CUDA packages; once)"
	@$(INSTALL_PACKAGES) $(VENV) torch torchvision
	@touch $@

$(VENV)/.examples: $(VENV)/.torch Makefile
	@echo "installing what the examples use: Optuna, Ray Tune, Lightning, Transformers (about 0.8 GB; once)"
	@$(INSTALL_PACKAGES) $(VENV) optuna "ray[tune]" lightning transformers accelerate
	@echo "installing libraries whose objects tests compare between processes: MONAI, kornia, xarray, OmegaConf, yacs, datasets, Cython (0.1 GB; once)"
	@$(INSTALL_PACKAGES) $(VENV) monai kornia xarray omegaconf yacs datasets cython
	@touch $@

# Makes an environment that finds in the first one whatever it does not have itself, such as PyTorch. Packages are
# installed there by pip, since uv would install PyTorch once more.
define MAKE_SECOND_ENVIRONMENT
@$(PY) -m venv $(1)
@$(1)/bin/python -c "import sys, sysconfig; path = sysconfig.get_path('purelib') + '/first.pth'; \
	print(f'import site; site.addsitedir({sys.argv[1]!r})', file=open(path, 'w'))" \
	"$$($(PY) -c "import sysconfig; print(sysconfig.get_path('purelib'))")"
endef

# MosaicML streaming wants an older numpy.
PEERS := $(VENV)/peers
$(VENV)/.peers: $(VENV)/.torch Makefile
	@echo "installing other loaders of object stores: webdataset, MosaicML streaming, litdata (about 0.9 GB; once)"
	$(call MAKE_SECOND_ENVIRONMENT,$(PEERS))
	@$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check \
		"webdataset>=1,<2" "mosaicml-streaming>=0.13,<0.14" "litdata>=0.2.76,<0.3"
	@touch $@

# torchaudio asks for an older PyTorch than it works with.
DATA_PEERS := $(VENV)/data-peers
$(VENV)/.data-peers: $(VENV)/.torch Makefile
	@echo "installing what others read audio and parquet files with: torchaudio, soundfile, datasets (about 0.2 GB; once)"
	$(call MAKE_SECOND_ENVIRONMENT,$(DATA_PEERS))
	@$(DATA_PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps torchaudio
	@$(DATA_PEERS)/bin/python -m pip install --quiet --disable-pip-version-check soundfile datasets
	@touch $@

# Python alone is enough for the documentation: no deps, which wants a Rust toolchain.
$(VENV)/.docs:
	@[ -x $(PY) ] || $(PYTHON) -m venv $(VENV)
	@echo "installing MkDocs Material and mkdocstrings (once)"
	@$(INSTALL_PACKAGES) $(VENV) "mkdocs>=1.6,<2" "mkdocs-material>=9.5,<10" "mkdocstrings[python]>=1,<2"
	@touch $@

$(VENV)/.dist: $(VENV)/.base
	@echo "installing what wheels for other machines are built with: zig, cargo-zigbuild, auditwheel (0.1 GB; once)"
	@$(INSTALL_PACKAGES) $(VENV) ziglang cargo-zigbuild auditwheel
	@touch $@

$(VENV)/.package: $(WHEEL_SOURCES) $(VENV)/.base
	@echo "building the release wheel"
	@PYTHONPATH=bindings/build_backend $(PY) -m coprep_build
	@rm -rf $(TARGET)/wheels
	@MATURIN_NO_MISSING_BUILD_BACKEND_WARNING=1 $(VENV)/bin/maturin build --release --quiet --interpreter $(PY) --out $(TARGET)/wheels
	@$(INSTALL_PACKAGES) $(VENV) --force-reinstall --no-deps $(TARGET)/wheels/*.whl
	@rm -f $(VENV)/.test-package && touch $@

.PHONY: wheel
wheel: $(VENV)/.package ## the release build of the Python package, as a wheel
	@ls $(TARGET)/wheels/*.whl

.PHONY: venv
venv: $(VENV)/.package ## .venv with the release build of the package and the coprep command
	@echo "ready: source $(VENV)/bin/activate, then import coprep, or run coprep --help"

.PHONY: dist
dist: $(VENV)/.dist ## wheels for older systems and for aarch64, and the sources, in target/dist; checked
	@$(PY) -m tools.dev.packaging $(TARGET)/dist --scratch $(TARGET)/dist-tools $(ARGS)

# --- kernels for GPUs ----------------------------------------------------------------------------------------

# NVIDIA's compiler as a library, and its assembler. The assembler is older on purpose: it shows that older drivers read
# what the compiler writes.
CUDA_COMPILER := $(abspath $(TARGET))/cuda-compiler
CUDA_PACKAGES := nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-nvcc-cu12==12.9.86

$(CUDA_COMPILER)/.complete: | $(VENV)/.base
	@echo "installing NVIDIA's compiler (about 0.2 GB; once)"
	@$(INSTALL_PACKAGES) $(VENV) --no-deps --target $(CUDA_COMPILER) $(CUDA_PACKAGES)
	@touch $@

.PHONY: ptx
ptx: $(CUDA_COMPILER)/.complete ## compile the kernels for GPUs anew; needs no GPU
	@PYTHONPATH=$(CUDA_COMPILER) $(PY) cache/device/kernels/build_ptx.py --assemble $(CUDA_COMPILER)/nvidia/cuda_nvcc/bin/ptxas

# --- documentation -------------------------------------------------------------------------------------------

MKDOCS := NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs
SITE_CONFIG := tools/dev/site/mkdocs.yml

.PHONY: docs
docs: $(VENV)/.docs ## the documentation as a site, in target/site; every link is checked
	@$(MKDOCS) build --strict --config-file $(SITE_CONFIG) --site-dir "$(abspath $(TARGET))/site"
	@echo "ready: $(TARGET)/site/index.html"

.PHONY: docs-serve
docs-serve: $(VENV)/.docs ## the same at http://127.0.0.1:8000, built anew when a page changes
	@$(MKDOCS) serve --config-file $(SITE_CONFIG) --dev-addr 127.0.0.1:8000 --watch bindings/python

# --- demo and benchmarks -------------------------------------------------------------------------------------

demo-data: | $(VENV)/.base
	@$(PY) -m tools.demo.photos $@

.PHONY: demo
demo: $(VENV)/.package $(filter demo-data,$(DATA)) ## four training jobs that share one preparation, and the same without
	@$(PY) -m tools.demo "$(DATA)"

ONLY_OPTION := $(if $(ONLY),--only "$(ONLY)")
REPEAT_OPTION := $(if $(REPEAT),--repeat "$(REPEAT)")
QUICK_OPTION := $(if $(QUICK),--quick)
# A target, if ONLY is not given or names one of these parts.
needed_for = $(if $(or $(if $(ONLY),,all),$(strip $(foreach part,$(2),$(findstring $(part),$(ONLY))))),$(1))
torch_for = $(call needed_for,$(VENV)/.torch,$(1))

.PHONY: bench
bench: $(VENV)/.package $(call torch_for,torch python) $(filter demo-data,$(DATA)) | deps ## compare with other loaders and with the limit
	@cargo build --release -p coprep-benchmarks --bin limit --bin handover
	@$(PY) -m tests.benchmarks.loaders "$(DATA)" --limit "$(PROGRAMS)/limit" --handover "$(PROGRAMS)/handover" --out "$(TARGET)/bench" \
		$(ONLY_OPTION) $(REPEAT_OPTION) $(if $(JOBS),--jobs "$(JOBS)") $(if $(SECONDS),--seconds "$(SECONDS)")

# Where DATA has images that are many times as large as the others, they are the slow ones.
.PHONY: bench-slow
bench-slow: $(VENV)/.package $(call torch_for,order cost watch) $(filter demo-data,$(DATA)) | deps ## slow samples: the order of batches, the form of the cache, the balance of threads
	@cargo build --release -p coprep-benchmarks --bin limit --bin overhead
	@$(PY) -m tests.benchmarks.slow_samples "$(DATA)" --limit "$(PROGRAMS)/limit" --overhead "$(PROGRAMS)/overhead" --out "$(TARGET)/bench-slow" \
		$(ONLY_OPTION) $(REPEAT_OPTION) $(QUICK_OPTION) $(ARGS)

.PHONY: what-if
what-if: $(VENV)/.package $(filter demo-data,$(DATA)) ## what analyze predicts, against epochs that are run
	@$(PY) -m tests.benchmarks.what_if "$(DATA)" --out "$(TARGET)/what-if" $(ONLY_OPTION) $(REPEAT_OPTION)

.PHONY: bench-gpu
bench-gpu: $(VENV)/.package $(VENV)/.torch $(filter demo-data,$(DATA)) | deps ## training jobs that share one GPU, and the parts of a batch's way there
	@cargo build --release -p coprep-measurement --bin measure_gpu
	@$(PY) -m tests.benchmarks.gpu --data "$(DATA)" --native "$(PROGRAMS)/measure_gpu" --out "$(TARGET)/bench-gpu/report.json" \
		$(REPEAT_OPTION) $(if $(JOBS),--jobs "$(JOBS)") $(if $(SECONDS),--seconds "$(SECONDS)") $(ARGS)
	@$(PY) -m tests.benchmarks.gpu.tables "$(TARGET)/bench-gpu/report.json" --out "$(TARGET)/bench-gpu"

.PHONY: bench-storage
bench-storage: $(VENV)/.package $(call needed_for,$(VENV)/.peers,peers) $(filter demo-data,$(DATA)) | deps ## an object store on this machine against local files and other loaders
	@cargo build --release -p coprep-object-server
	@$(PY) -m tests.benchmarks.storage "$(DATA)" --server "$(PROGRAMS)/coprep-object-server" --out "$(TARGET)/bench-storage" \
		--peers "$(PEERS)/bin/python" $(ONLY_OPTION) $(REPEAT_OPTION) $(QUICK_OPTION)

.PHONY: bench-data
bench-data: $(VENV)/.package $(VENV)/.data-peers $(filter demo-data,$(DATA)) ## tokens, arrays, audio and parquet files beside PyTorch's DataLoader
	@$(PY) -m tests.benchmarks.native_data "$(DATA)" --out "$(TARGET)/bench-data" --peers "$(DATA_PEERS)/bin/python" \
		$(ONLY_OPTION) $(REPEAT_OPTION) $(if $(JOBS),--jobs "$(JOBS)") $(if $(SECONDS),--seconds "$(SECONDS)") $(QUICK_OPTION)

.PHONY: drop-in
drop-in: $(VENV)/.package $(VENV)/.torch ## what it costs to replace PyTorch's DataLoader and nothing else, with bars
	@$(PY) -m tests.benchmarks.drop_in --out "$(TARGET)/drop-in" $(ONLY_OPTION) $(REPEAT_OPTION) $(QUICK_OPTION)

# --- checks --------------------------------------------------------------------------------------------------

# Tests, loom, clippy and the object server are built of the same packages with the same features. Otherwise cargo would
# build many dependencies anew.
# The command is built with points where tests can make a coordinator's threads panic. They do nothing until a test says so.
FAILPOINTS := --features coprep-cli/failpoints
RUST_TESTS = $(shell cargo nextest --version >/dev/null 2>&1 && echo cargo nextest run || echo cargo test --no-fail-fast) $(FAILPOINTS)

.PHONY: test-build
test-build: | deps
	@echo "building the tests"
	@$(RUST_TESTS) --no-run
	@cargo build --quiet $(FAILPOINTS) --bin coprep-object-server

# Tests use a package with debug assertions and failpoints, of the crates that the Rust tests are built of. It takes the
# place of the release build in the environment.
$(VENV)/.test-package: $(WHEEL_SOURCES) $(VENV)/.base | test-build
	@echo "building the tests' wheel"
	@PYTHONPATH=bindings/build_backend $(PY) -m coprep_build --command $(TARGET)/debug/coprep
	@rm -rf $(TARGET)/test-wheels
	@MATURIN_NO_MISSING_BUILD_BACKEND_WARNING=1 $(VENV)/bin/maturin build --profile dev --quiet --interpreter $(PY) --out $(TARGET)/test-wheels
	@$(INSTALL_PACKAGES) $(VENV) --force-reinstall --no-deps $(TARGET)/test-wheels/*.whl
	@rm -f $(VENV)/.package && touch $@

.PHONY: test-prerequisites
test-prerequisites: $(VENV)/.test-package $(VENV)/.checks $(VENV)/.examples

# Downloads and builds run side by side.
.PHONY: test
test: | browser prometheus ## all tests, Rust and Python
	@$(MAKE) --no-print-directory --jobs=3 test-prerequisites
	@PATH="$$PATH:$(PROMETHEUS)/usr/bin" tools/dev/run_tests.sh $(PY) $(TARGET)/test.log $(RUST_TESTS)

# Tests that need no fault run on the GPU, the others beside the fake driver. They are built only where there is a driver,
# because that takes minutes.
.PHONY: test-gpu
test-gpu: $(VENV)/.base ## the tests of batches on the GPU, on this machine's GPU if it has one
	@skip() { echo "test-gpu: skipped, there is no GPU: $$1"; exit 0; }; \
	$(PY) -c "import ctypes; ctypes.CDLL('libcuda.so.1')" 2>/dev/null || skip "there is no libcuda.so.1, the driver's library"; \
	$(MAKE) --no-print-directory $(VENV)/.test-package $(VENV)/.checks $(VENV)/.torch; \
	answer=$$($(VENV)/bin/coprep check-gpu 0); \
	[[ $$answer == *'"cuda"'* ]] || skip "$$answer"; \
	COPREP_TEST_REAL_GPU=1 $(filter-out $(FAILPOINTS),$(RUST_TESTS)) -p coprep-device; \
	COPREP_TEST_REAL_GPU=1 $(PY) -m pytest -q --timeout=180 tests/end_to_end/device

.PHONY: lint
lint: lint-rust lint-python ## formatting, clippy, ruff, mypy
	@echo "lint: all clean"

.PHONY: lint-rust
lint-rust: | deps
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings

# mypy needs PyTorch's types: without them a class that derives from one of PyTorch's is an error. It reads the sources of
# the package, so that nothing is built for it.
.PHONY: lint-python
lint-python: $(VENV)/.checks $(VENV)/.torch
	$(VENV)/bin/ruff format --check --quiet --line-length 120 $(PYTHON_CODE)
	$(VENV)/bin/ruff check --quiet --target-version py310 --line-length 120 --select E,F,W,I,B,UP,C4,SIM,RET $(PYTHON_CODE)
	MYPYPATH=bindings/build_backend:bindings/python $(VENV)/bin/mypy --strict --no-error-summary --ignore-missing-imports \
		$(addprefix -p ,$(TYPED_PACKAGES)) -m tests.conformance.programs.__main__

FUZZ := tools/dev/fuzz.sh $(abspath $(TARGET))/fuzz

.PHONY: fuzz fuzz-short
fuzz: | deps ## every fuzz target for SECONDS (300) each
	@$(FUZZ) $(or $(SECONDS),300)
fuzz-short: | deps
	@$(FUZZ) 20

.PHONY: fault-run
fault-run: $(VENV)/.test-package $(VENV)/.checks ## 10,000 samples from a store with every kind of fault, and an outage of a minute
	@COPREP_FAULT_RUN=1 $(PY) -m pytest -q -s tests/end_to_end/storage/test_fault_run.py

CHAOS := $(PY) -m tests.chaos --out "$(TARGET)/chaos" --parallel $(or $(PARALLEL),2)

# With SEED alone, one history runs and everything that happens in it is printed.
.PHONY: chaos chaos-short
chaos: $(VENV)/.test-package ## random histories of jobs and faults; with SEED=n alone one of them again
	@$(CHAOS) --seed $(or $(SEED),0) --histories $(or $(HISTORIES),$(if $(SEED),1,200)) \
		$(if $(SEED),$(if $(HISTORIES),,--verbose)) $(ARGS)
# These seeds are in no test. They stay the same, so that a failure can be repeated.
chaos-short: $(VENV)/.test-package
	@$(CHAOS) --seed 1000 --histories 40

.PHONY: loom
loom: | deps ## model-check what is lock-free in shared memory
	@cargo test $(FAILPOINTS) --features coprep-cache/loom --test loom

.PHONY: check
check: ## lint, all tests, loom, a short fuzz, a short chaos and the documentation; `.ci/run` runs this
	@tools/dev/check.sh $(TARGET)/check

# `make target/check/PART` makes PART, and leaves a file if PART succeeded.
$(TARGET)/check/%: %
	@mkdir -p $(@D) && touch $@

.PHONY: check-environment
check-environment: $(VENV)/.base

.PHONY: figures
figures: $(VENV)/.checks ## figures of the code's language and shape
	@$(PY) tools/dev/code_figures.py

.PHONY: clean
clean: ## remove what was built (not .venv, not demo-data)
	@cargo clean --quiet
	@rm -rf bindings/coprep.data THIRD-PARTY-NOTICES.md
