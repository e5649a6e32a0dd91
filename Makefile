# The one entry for every check and every tool, the same for a person and for CI. `make help` lists them.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
TARGET := $(or $(CARGO_TARGET_DIR),target)
# One at a time: some of what is made side by side installs something.
PIP := flock $(VENV) $(PY) -m pip install --quiet --disable-pip-version-check

DATA ?= demo-data
LIMIT := $(TARGET)/release/examples/limit
HANDOVER := $(TARGET)/release/examples/handover
OVERHEAD := $(TARGET)/release/examples/overhead
RUST_SOURCES := Cargo.toml Cargo.lock .cargo/config.toml $(shell find cache coordinator bindings tools -name '*.rs' -o -name Cargo.toml -o -path '*/src/*.py')
WHEEL_SOURCES := $(RUST_SOURCES) LICENSE pyproject.toml $(shell find bindings -name '*.py' -o -name '*.pyi' -o -name '*.md')
PYTHON_TESTS := tests/python
# Most of these take one processor, and none minds some seconds more: two run at a time. The others look at the clock, or
# have several jobs of their own.
SIDE_BY_SIDE := $(patsubst %,$(PYTHON_TESTS)/test_%.py,torch_behaviour docs fingerprint packing structure report_page epochs \
	bad_input drop_in pipelines package packaging torch_expectations user_samples user_code user_caching user_resuming user_sharing)
PYTHON_CODE := tools/demo tools/dev bindings/build_backend tools/bench/src tests/bench tests/bench_slow tests/what_if tests/drop_in \
	tests/programs tests/chaos docs/examples bindings/python $(PYTHON_TESTS)

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{ printf "  make %-10s %s\n", $$1, $$2 }'
	@echo "  settings:       DATA=folder (demo, bench, bench-slow), SECONDS=n (bench, fuzz), ONLY=coprep,limit REPEAT=n JOBS=1,2 (bench),"
	@echo "                  ONLY=order,forms,cost,watch,balance REPEAT=n QUICK=1 ARGS=\"--samples spin-10x\" (bench-slow),"
	@echo "                  ONLY=detection,memory REPEAT=n QUICK=1 (drop-in),"
	@echo "                  HISTORIES=n PARALLEL=n SEED=n ARGS=\"--only 'ranks: 2'\" (chaos)"

# --- what has to be there ------------------------------------------------------------------------------------

# libjpeg-turbo is built from its sources, with cmake and nasm.
.PHONY: deps
deps: ## install the build tools that are missing, or say which
	@command -v cargo >/dev/null || { echo "cargo is missing: install a Rust toolchain, 1.95 or newer" >&2; exit 1; }; \
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Python 3.10 or newer is needed" >&2; exit 1; }; \
	missing=""; \
	for tool in cmake nasm; do command -v $$tool >/dev/null || missing+=" $$tool"; done; \
	command -v cc >/dev/null && command -v c++ >/dev/null || missing+=" g++"; \
	$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || missing+=" python3-venv"; \
	[ -n "$$missing" ] || exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing$$missing"; \
		apt-get update -qq; \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	else \
		echo "missing:$$missing. Install with your package manager, for example: sudo apt-get install$$missing" >&2; exit 1; \
	fi

# The page of a report is looked at in a browser. Where there is none, those tests are skipped.
.PHONY: browser
browser: | deps
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do \
		! $$name --version >/dev/null 2>&1 || exit 0; \
	done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing chromium (about 0.35 GB; once)"; \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; } \
			|| echo "chromium cannot be installed: tests that need it are skipped"; \
	else \
		echo "chromium is missing: tests that need it are skipped. To have them: sudo apt-get install chromium"; \
	fi

# A Prometheus server, for the test of metrics: Debian's package, unpacked and not installed, so that no service starts.
# Nothing needs root but a first list of packages. Where it cannot be had, its tests are skipped.
PROMETHEUS := $(abspath $(TARGET))/prometheus
.PHONY: prometheus
prometheus:
	@[ ! -x $(PROMETHEUS)/usr/bin/prometheus ] && ! command -v prometheus >/dev/null || exit 0; \
	echo "fetching Prometheus for a test (20 MB; once)"; \
	rm -rf $(PROMETHEUS); mkdir -p $(PROMETHEUS)/new; cd $(PROMETHEUS)/new; \
	fetch() { apt-get download -qq prometheus && dpkg -x prometheus_*.deb . && mv usr .. && rm -r ../new; }; \
	{ fetch || { apt-get update -qq && fetch; }; } >/dev/null 2>&1 \
		|| echo "it cannot be had here: tests with a real Prometheus server will be skipped" >&2

$(VENV)/.base: | deps
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) "maturin>=1.9,<2" numpy cloudpickle pillow
	@touch $@

$(VENV)/.checks: $(VENV)/.base
	@$(PIP) tree-sitter tree-sitter-rust pytest pytest-timeout pytest-xdist pyte websockets ruff mypy
	@touch $@

$(VENV)/.torch: $(VENV)/.base
	@echo "installing PyTorch (about 4.5 GB with its CUDA packages; once)"
	@$(PIP) torch torchvision
	@touch $@

$(VENV)/.examples: $(VENV)/.torch
	@echo "installing what the examples use: Optuna, Ray Tune, Lightning, Transformers (about 0.8 GB; once)"
	@$(PIP) optuna "ray[tune]" lightning transformers accelerate
	@touch $@

# Python alone is enough for the documentation: no deps, which wants a Rust toolchain.
$(VENV)/.docs:
	@[ -x $(PY) ] || $(PYTHON) -m venv $(VENV)
	@echo "installing MkDocs Material and mkdocstrings (once)"
	@$(PIP) "mkdocs>=1.6,<2" "mkdocs-material>=9.5,<10" "mkdocstrings[python]>=1,<2"
	@touch $@

$(VENV)/.dist: $(VENV)/.base
	@echo "installing what wheels for other machines are built with: zig, cargo-zigbuild, auditwheel (0.1 GB; once)"
	@$(PIP) ziglang cargo-zigbuild auditwheel
	@touch $@

$(VENV)/.package: $(WHEEL_SOURCES) $(VENV)/.base
	@echo "building the release wheel"
	@PYTHONPATH=bindings/build_backend $(PY) -m coprep_build
	@rm -rf $(TARGET)/wheels
	@MATURIN_NO_MISSING_BUILD_BACKEND_WARNING=1 $(VENV)/bin/maturin build --release --quiet --interpreter $(PY) --out $(TARGET)/wheels
	@$(PIP) --force-reinstall --no-deps $(TARGET)/wheels/*.whl
	@touch $@

.PHONY: wheel
wheel: $(VENV)/.package ## the release build of the Python package, as a wheel
	@ls $(TARGET)/wheels/*.whl

.PHONY: venv
venv: $(VENV)/.package ## .venv with the release build of the package and the coprep command
	@echo "ready: source $(VENV)/bin/activate, then import coprep, or run coprep --help"

.PHONY: dist
dist: $(VENV)/.dist ## wheels for older systems and for aarch64, and the sources, in target/dist; checked
	@$(PY) -m tools.dev.packaging $(TARGET)/dist --scratch $(TARGET)/dist-tools $(ARGS)

# --- to read it ----------------------------------------------------------------------------------------------

MKDOCS := NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs
SITE_CONFIG := tools/dev/site/mkdocs.yml

.PHONY: docs
docs: $(VENV)/.docs ## the documentation as a site, in target/site; every link is checked
	@$(MKDOCS) build --strict --config-file $(SITE_CONFIG) --site-dir "$(abspath $(TARGET))/site"
	@echo "ready: $(TARGET)/site/index.html"

.PHONY: docs-serve
docs-serve: $(VENV)/.docs ## the same at http://127.0.0.1:8000, built anew when a page changes
	@$(MKDOCS) serve --config-file $(SITE_CONFIG) --dev-addr 127.0.0.1:8000 --watch bindings/python

# --- to see it -----------------------------------------------------------------------------------------------

demo-data: | $(VENV)/.base
	@$(PY) -m tools.demo.photos $@

.PHONY: demo
demo: $(VENV)/.package $(filter demo-data,$(DATA)) ## four training jobs that share one preparation, and the same without
	@$(PY) -m tools.demo "$(DATA)"

.PHONY: bench
bench: $(VENV)/.package $(if $(or $(findstring torch,$(or $(ONLY),torch)),$(findstring python,$(ONLY))),$(VENV)/.torch) $(filter demo-data,$(DATA)) | deps ## compare with other loaders and with the limit
	@cargo build --release -p coprep-pipeline --example limit -p coprep-cache --example handover
	@$(PY) -m tests.bench "$(DATA)" --limit "$(LIMIT)" --handover "$(HANDOVER)" --out "$(TARGET)/bench" \
		$(if $(ONLY),--only "$(ONLY)") $(if $(REPEAT),--repeat "$(REPEAT)") $(if $(JOBS),--jobs "$(JOBS)") \
		$(if $(SECONDS),--seconds "$(SECONDS)")

# Where DATA has images that are many times as large as the others, they are the slow ones.
.PHONY: bench-slow
bench-slow: $(VENV)/.package $(if $(or $(findstring order,$(or $(ONLY),order)),$(findstring cost,$(ONLY))$(findstring watch,$(ONLY))),$(VENV)/.torch) $(filter demo-data,$(DATA)) | deps ## slow samples: the order of batches, the form of the cache, the balance of threads
	@cargo build --release -p coprep-pipeline --example limit -p coprep-coordinator --example overhead
	@$(PY) -m tests.bench_slow "$(DATA)" --limit "$(LIMIT)" --overhead "$(OVERHEAD)" --out "$(TARGET)/bench-slow" \
		$(if $(ONLY),--only "$(ONLY)") $(if $(REPEAT),--repeat "$(REPEAT)") $(if $(QUICK),--quick) $(ARGS)

.PHONY: what-if
what-if: $(VENV)/.package $(filter demo-data,$(DATA)) ## what analyze predicts, against epochs that are run
	@$(PY) -m tests.what_if "$(DATA)" --out "$(TARGET)/what-if" $(if $(ONLY),--only "$(ONLY)") $(if $(REPEAT),--repeat "$(REPEAT)")

.PHONY: drop-in
drop-in: $(VENV)/.package $(VENV)/.torch ## what it costs to replace PyTorch's DataLoader and nothing else, with bars
	@$(PY) -m tests.drop_in --out "$(TARGET)/drop-in" $(if $(ONLY),--only "$(ONLY)") $(if $(REPEAT),--repeat "$(REPEAT)") \
		$(if $(QUICK),--quick)

# --- to check it ---------------------------------------------------------------------------------------------

LOG := $(TARGET)/test.log
# A coordinator whose threads tests can make panic.
FAILPOINTS_BIN := $(abspath $(TARGET))/coprep-failpoints
RUST_TESTS = $(shell cargo nextest --version >/dev/null 2>&1 && echo cargo nextest run || echo cargo test --no-fail-fast)
# Adds up the closing lines of nextest, cargo test and pytest.
TOTAL := awk '/^ *Summary \[|^test result:|^=* ?[0-9]+ (passed|failed|skipped|error).* in [0-9.]+s/ { \
	while (match($$0, /[0-9]+ (passed|failed|timed out|error)/)) { \
		split(substr($$0, RSTART, RLENGTH), word, " "); count[word[2] == "passed"] += word[1]; $$0 = substr($$0, RSTART + RLENGTH) } } \
	END { printf "%d passed, %d failed\n", count[1], count[0] }'

.PHONY: test-build
test-build: | deps
	@echo "building the tests"
	@$(RUST_TESTS) --no-run
	@cargo build --quiet --features coprep-cli/failpoints
	@install -m 755 $(TARGET)/debug/coprep $(FAILPOINTS_BIN)

# What is downloaded and what is built, side by side.
.PHONY: test
test: | browser prometheus ## all tests, Rust and Python
	@$(MAKE) --no-print-directory --jobs=3 $(VENV)/.package $(VENV)/.checks $(VENV)/.examples test-build
	@failed=""; mkdir -p $(TARGET); : >$(LOG); \
	export PATH="$$PATH:$(PROMETHEUS)/usr/bin" COPREP_FAILPOINTS_BIN="$(FAILPOINTS_BIN)"; \
	run() { echo "== $$1"; shift; "$$@" 2>&1 | tee -a $(LOG); }; \
	[[ "$(RUST_TESTS)" == *nextest* ]] || echo "cargo-nextest is not installed: using cargo test, which does not end a test that hangs"; \
	run "Rust" $(RUST_TESTS) || failed+=" Rust"; \
	run "Rust, examples in the documentation" cargo test --doc --quiet || failed+=" examples"; \
	pytest() { $(PY) -m pytest -q --timeout=180 "$$@"; }; \
	run "Python, two at a time" pytest -n 2 --dist worksteal $(SIDE_BY_SIDE) || failed+=" Python, two at a time"; \
	run "Python" pytest $(addprefix --ignore=,$(SIDE_BY_SIDE)) $(PYTHON_TESTS) || failed+=" Python"; \
	echo "== Total"; \
	$(TOTAL) $(LOG); \
	[ -z "$$failed" ] || { echo "FAILED:$$failed (everything is in $(LOG))"; exit 1; }

.PHONY: lint
lint: $(VENV)/.package $(VENV)/.checks | deps ## formatting, clippy, ruff, mypy
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	$(VENV)/bin/ruff format --check --quiet --line-length 120 $(PYTHON_CODE)
	$(VENV)/bin/ruff check --quiet --target-version py310 --line-length 120 --select E,F,W,I,B,UP,C4,SIM,RET $(PYTHON_CODE)
	MYPYPATH=bindings/build_backend $(VENV)/bin/mypy --strict --no-error-summary --ignore-missing-imports -p tools.demo \
		-p tools.dev.site -p tools.dev.packaging -p coprep_build -p tests.bench -p tests.bench_slow -p tests.what_if -p tests.drop_in \
		-p tests.chaos -p coprep -m tests.programs.__main__
	@echo "lint: all clean"

# The coverage instrumentation of libFuzzer and AddressSanitizer, which a stable compiler has but does not offer.
FUZZ_TARGETS = $(basename $(notdir $(wildcard tests/fuzz/fuzz_targets/*.rs)))
FUZZ_TRIPLE = $(shell rustc -vV | sed -n 's/^host: //p')
FUZZ_BUILD := $(TARGET)/fuzz
FUZZ_FLAGS := --cfg fuzzing -Zsanitizer=address -Cpasses=sancov-module -Ccodegen-units=1 -Cdebug-assertions \
	$(addprefix -Cllvm-args=-sanitizer-coverage-,level=4 inline-8bit-counters pc-table trace-compares)

.PHONY: fuzz
fuzz: | deps ## every fuzz target for SECONDS (300) each
	@RUSTC_BOOTSTRAP=1 RUSTFLAGS="$(FUZZ_FLAGS)" CARGO_TARGET_DIR="$(abspath $(FUZZ_BUILD))" \
		cargo build --release --manifest-path tests/fuzz/Cargo.toml --target $(FUZZ_TRIPLE)
	@for name in $(FUZZ_TARGETS); do \
		mkdir -p tests/fuzz/corpus/$$name tests/fuzz/artifacts/$$name; \
		echo "== $$name, $(or $(SECONDS),300) s"; \
		$(FUZZ_BUILD)/$(FUZZ_TRIPLE)/release/$$name tests/fuzz/corpus/$$name -artifact_prefix=tests/fuzz/artifacts/$$name/ \
			-max_total_time=$(or $(SECONDS),300) -timeout=10 -rss_limit_mb=4096 -print_final_stats=1; \
	done
	@echo "fuzz: no finding"

# One history if only SEED is given, with all that happens in it.
.PHONY: chaos
chaos: $(VENV)/.package ## random histories of jobs and faults; with SEED=n alone one of them again
	@$(PY) -m tests.chaos --out "$(TARGET)/chaos" --seed $(or $(SEED),0) --parallel $(or $(PARALLEL),2) \
		--histories $(or $(HISTORIES),$(if $(SEED),1,200)) $(if $(SEED),$(if $(HISTORIES),,--verbose)) $(ARGS)

.PHONY: loom
loom: | deps ## model-check what is lock-free in shared memory
	@RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="$(abspath $(TARGET)/loom)" cargo test --release -p coprep-cache --test loom

.PHONY: figures
figures: $(VENV)/.checks ## figures of the code's language and shape
	@$(PY) tools/dev/code_figures.py

.PHONY: clean
clean: ## remove what was built (not .venv, not demo-data)
	@cargo clean --quiet
	@rm -rf bindings/coprep.data THIRD-PARTY-NOTICES.md
