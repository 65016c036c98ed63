# make demo, make test: from a fresh clone with Rust, python3 (3.11 or newer), make and gcc.
#
# All that is fetched or built goes to .venv (Python), target (Rust) and dist (wheels). A stamp in .venv remembers
# what was installed from which lock file, and cargo remembers the rest, so a second run starts at once.
# Tests, Rust's and JAX's, share cargo's dev profile (overflow checks and debug assertions on); demo, bench and
# wheel share release. Neither target builds both.

.DEFAULT_GOAL := help
.PHONY: help demo check test test-all lint layers bindings test-rust test-unit test-jax test-jax-all test-smoke test-cuda-engine doc site bench together instructions soak stress fuzz fuzz-inputs asan tsan compat clients wheel sdist licenses setup clean
.NOTPARALLEL:

export CARGO_TARGET_DIR := $(CURDIR)/target
export PIP_DISABLE_PIP_VERSION_CHECK := 1

CARGO   ?= cargo
VENV    := $(CURDIR)/.venv
PY      := $(VENV)/bin/python
STAMP   := $(VENV)/.installed
# Found when a recipe runs, not when make starts: the first run creates the folder.
SITE     = $$(echo "$(VENV)"/lib/python3*/site-packages)
# Of those that run bindgen alone; a plain build takes the bindings that are checked in.
LIBCLANG = LIBCLANG_PATH="$${LIBCLANG_PATH:-$(SITE)/clang/native}"
# TEST_ENGINE=0.81 for tests and benchmarks on another engine of python_smoke/engines.py, which pip then adds to .venv.
ENGINE   = PJRT_ARENA_TEST_ENGINE="$$("$(PY)" python_smoke/engines.py $(TEST_ENGINE))"
RELEASE := PJRT_ARENA_LIBRARY_PATH="$(CURDIR)/target/release/libpjrt_arena.so"
DEBUG   := PJRT_ARENA_LIBRARY_PATH="$(CURDIR)/target/debug/libpjrt_arena.so"
CUDA    := $(CURDIR)/target/cuda-engine

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: target/release/libpjrt_arena.so ## train a small model with JAX on the arena and show what memory did
	@$(RELEASE) JAX_PLATFORMS=arena,cpu "$(PY)" python_smoke/demo.py

# Three tiers; docs/testing.md says which tests are in which, and how long each takes.
check: lint test-unit test-smoke ## in five minutes: format, lints, unit tests, conformance, JAX once with each strategy
	@echo "make check: all passed"

test: lint doc test-rust test-jax site ## what continuous integration runs: all but the slow tests of JAX
	@echo "make test: all passed"

test-all: lint doc test-rust test-jax-all site ## every test that needs no download besides JAX and the site's tools
	@echo "make test-all: all passed"

# The version is pinned like the others. The first run fetches it; without a network it gives up after a while.
TSC := timeout 120 npx --yes --prefer-offline --package typescript@5.9.3 -- tsc

# The feature has build.rs compare pjrt_c_api/bindings.rs with what bindgen makes of the headers.
lint: setup ## rustfmt, clippy, ruff, mypy and tsc, warnings are errors; are the bindings those of the headers?
	$(CARGO) fmt --all --check
	$(LIBCLANG) $(CARGO) clippy --workspace --all-targets --features pjrt-arena/bindgen --locked -- -D warnings
	"$(VENV)/bin/ruff" check
	"$(VENV)/bin/ruff" format --check
	"$(PY)" -m mypy
	@if $(TSC) --version >/dev/null 2>&1; then $(TSC) --project src/report/viewer; \
	else echo "make: the page of snapshots is not checked: npx, of Node.js, gets no TypeScript compiler"; fi
	@if $(CARGO) deny --version >/dev/null 2>&1; then $(CARGO) deny --locked check; \
	else echo "make: licenses and advisories are not checked: there is no cargo-deny"; fi

layers: ## what each layer of src measures: circles of files, arrows that point up, unsafe places
	@$(CARGO) run --quiet --package layers --locked

bindings: setup ## pjrt_c_api/bindings.rs made anew, after a change of the headers beside it
	$(LIBCLANG) PJRT_ARENA_BINDINGS=write $(CARGO) check --package pjrt-arena --lib --features bindgen --locked

# The library is built first: the tests of plugin_tests and python_smoke load it as a file. Cargo runs one program of
# tests after the other, and many of them keep one processor busy, so two of it run at once. What the first one says
# comes when both have ended, and then once more which tests failed, and with which words.
test-rust: target/debug/libpjrt_arena.so ## Rust tests, among them the plugin through its C API
	@$(CARGO) test --workspace --locked --no-run
	@export $(ENGINE); said="$(CARGO_TARGET_DIR)/test-rust"; rm -f "$$said".*; \
	{ $(CARGO) test --workspace --exclude plugin_tests --locked || touch "$$said.failed"; } >"$$said.rest" 2>&1 & \
	{ $(CARGO) test --package plugin_tests --locked || touch "$$said.failed"; } 2>&1 | tee "$$said.plugin"; \
	wait; cat "$$said.rest"; \
	[ ! -e "$$said.failed" ] || { grep -h -A6 -E "^test .*FAILED|panicked at|^error" "$$said".rest "$$said".plugin; exit 1; }

test-unit: target/debug/libpjrt_arena.so ## of the Rust tests the unit tests of src, conformance, faults and the order of the layers
	$(ENGINE) $(CARGO) test --workspace --locked --lib --test conformance --test faults --test layers

# As many processes as there are processors, up to four: each has JAX and compiles. A file's tests stay in one process.
JOBS   ?= $(shell n=$$(nproc); [ "$$n" -lt 4 ] && echo "$$n" || echo 4)
PYTEST  = $(if $(TEST_ENGINE),$(ENGINE)) $(DEBUG) "$(PY)" -m pytest
SPREAD  = --numprocesses $(JOBS) --dist loadfile

test-jax: target/debug/libpjrt_arena.so ## tests with real JAX, without the slow ones
	$(PYTEST) python_smoke -m "not slow" $(SPREAD)

test-jax-all: target/debug/libpjrt_arena.so ## tests with real JAX, all of them
	$(PYTEST) python_smoke $(SPREAD)

test-smoke: target/debug/libpjrt_arena.so ## JAX once with each strategy: one process that does a bit of everything
	$(PYTEST) python_smoke/test_smoke.py

# Not part of make test: it downloads 130 MB. The wheel is that of the JAX that the lock file names.
test-cuda-engine: target/debug/libpjrt_arena.so $(CUDA)/.installed ## XLA's own CUDA plugin as far as a machine without a GPU shows it: its table, its refusals
	$(ENGINE) PJRT_ARENA_TEST_CUDA_ENGINE="$(CUDA)/jax_plugins/xla_cuda13/xla_cuda_plugin.so" \
	  $(CARGO) test --workspace --test conformance --locked -- cuda_engine

doc: ## API documentation, warnings are errors
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

# Its tools have an environment of their own, and nothing of them is needed to build or to test the library. With --quiet
# mkdocs would not see its own warnings.
SITE_ENV := $(CARGO_TARGET_DIR)/site-env

site: $(SITE_ENV)/.installed ## the pages as a site in target/site, warnings are errors
	@said="$(SITE_ENV)/build.txt"; NO_MKDOCS_2_WARNING=1 "$(SITE_ENV)/bin/mkdocs" build --strict >"$$said" 2>&1 || { \
	  cat "$$said" >&2; exit 1; }
	@echo "make site: target/site; to read it with search: python3 -m http.server --directory target/site"

# BENCH="--only adam,sgd --rounds 3" and the like; make bench BENCH=--help.
bench: target/release/libpjrt_arena.so ## JAX's CPU backend, the bare engine, pjrt-arena: tables, JSON and a chart
	$(if $(TEST_ENGINE),$(ENGINE)) $(RELEASE) PYTHONPATH=python_smoke "$(PY)" -m bench --json target/bench.json --markdown target/bench.md \
	  --svg target/bench.svg $(BENCH)

# BENCH="--against OLD.so add_1 adam" compares this build with another one, on these programs.
together: target/release/libpjrt_arena.so ## small programs, the backends in turn in one process: ratios that noise does not drown
	$(if $(TEST_ENGINE),$(ENGINE)) $(RELEASE) PYTHONPATH=python_smoke "$(PY)" -m bench.together --json target/together.json $(BENCH)

# However busy the machine. PROGRAM=inline for the programs whose name holds it. See plugin_tests/benches/instructions.rs.
instructions: setup ## instructions of one execution, bare engine and pjrt-arena (needs valgrind)
	@command -v valgrind >/dev/null || { \
	  echo "make: counting instructions needs valgrind, and there is none: install it (apt install valgrind)" >&2; exit 1; }
	$(ENGINE) $(CARGO) bench --package plugin_tests --bench instructions --locked -- $(PROGRAM)

# MINUTES=60 for so long of mixed work instead: figures go to target/soak.jsonl and target/soak.svg.
soak: target/release/libpjrt_arena.so ## 10,000 training steps: memory must stay flat; MINUTES=60: mixed work under pressure
	$(RELEASE) JAX_PLATFORMS=arena,cpu PYTHONPATH=python_smoke "$(PY)" \
	  $(if $(MINUTES),-m mixed_soak --minutes $(MINUTES) --out target/soak,python_smoke/soak.py)

# COMPACTIONS=N for another number; ALWAYS=1 for a compaction before each allocation and launch; SPILL=1 for arrays that
# take three times the limit, and so many that are spilled.
stress: setup ## 100,000 forced compactions under load from 8 threads
	$(ENGINE) $(CARGO) bench --package plugin_tests --bench compaction --locked -- $(COMPACTIONS) $(if $(ALWAYS),--always) $(if $(SPILL),--spill)

# MINUTES=N for another time, SEED=N for another sequence. Each of the two has half of the time; both run if one finds
# something.
HALF = $(shell awk "BEGIN { print $(or $(MINUTES),5) / 2 }")

fuzz: target/debug/libpjrt_arena.so ## damaged input for all that reads some, and random JAX programs with random settings: five minutes
	@status=0; \
	$(MAKE) --no-print-directory fuzz-inputs MINUTES=$(HALF) || status=1; \
	$(DEBUG) PYTHONPATH=python_smoke "$(PY)" -m jax_fuzz --minutes $(HALF) $(addprefix --seed ,$(SEED)) || status=1; \
	exit $$status

# LLVM's SanitizerCoverage counts the edges of our code that an input reaches. TARGET=hlo reads only what has such a name,
# READ="hlo FILE..." reads findings again. With --target build scripts are left alone.
HOST     := x86_64-unknown-linux-gnu
COVERAGE := RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=3 \
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
fuzz-inputs: ## the first half of make fuzz alone: what was read, how long it took, which edges were reached
	$(COVERAGE) $(CARGO) run --profile instrumented --target $(HOST) --package plugin_tests --example fuzz --locked -- \
	  $(if $(READ),read $(READ),$(or $(MINUTES),5) $(or $(SEED),1) $(TARGET))

# The flag is not stable, so the compiler is told to take it. The engine is not instrumented: its leaks and its globals
# are left out, while what it writes to memory of ours through malloc is still seen. TESTS= names some of the tests.
ASAN := RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address -Clink-arg=-rdynamic" \
  ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0 CARGO_TARGET_DIR="$(CARGO_TARGET_DIR)/asan"
asan: setup ## the conformance tests, a short stress among them, under AddressSanitizer
	$(ENGINE) $(ASAN) $(CARGO) test --package plugin_tests --test conformance --locked \
	  --target $(HOST) -- $(TESTS)

# As above, with the standard library built anew from its sources, because the sanitizer has to see its locks and
# channels: without that each use of them is a report. What is left out of reports, and why, stands in the file.
TSAN := RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=thread -Clink-arg=-rdynamic --cfg tsan" \
  TSAN_OPTIONS="suppressions=$(CURDIR)/plugin_tests/tsan.txt" CARGO_TARGET_DIR="$(CARGO_TARGET_DIR)/tsan"
tsan: setup ## the same tests under ThreadSanitizer (needs rustup, for the sources of the standard library)
	rustup component add rust-src
	$(ENGINE) $(TSAN) $(CARGO) test -Zbuild-std --package plugin_tests --test conformance --locked \
	  --target $(HOST) -- $(TESTS)

# Not part of make test: environments for every JAX version and Python, 0.5 GB each, and some minutes for each.
# ONLY=0.7.2:3.11,0.12 for some of them; ENGINE=0.115,0.81 or ENGINE=all for the engines of python_smoke/engines.py.
compat: ARCH = $(shell uname -m)
compat: wheel ## a table: which checks pass with which JAX version and Python
	"$(PY)" python_smoke/compat/run.py --json target/compat.json $(if $(ONLY),--only "$(ONLY)") \
	  $(if $(filter command environment,$(origin ENGINE)),--engine "$(ENGINE)")

# Not part of make test either: it fetches the clients, and protoc for one of them.
clients: target/debug/libpjrt_arena.so ## other PJRT clients: pypjrt's conformance checker, the crate pjrt
	$(LIBCLANG) "$(PY)" python_smoke/other_clients/run.py

# Its tools, Zig among them, have an environment of their own, as those of the site. ARCH=x86_64 for one of the two.
WHEEL_ENV := $(CARGO_TARGET_DIR)/wheel-env

wheel: $(WHEEL_ENV)/.installed ## dist/pjrt_arena-*-py3-none-manylinux_2_17_{x86_64,aarch64}.whl, checked by auditwheel
	@PATH="$(WHEEL_ENV)/bin:$$PATH" "$(WHEEL_ENV)/bin/python" package/wheels.py --out dist $(ARCH)

sdist: $(WHEEL_ENV)/.installed ## dist/pjrt_arena-*.tar.gz: every file that git does not ignore, so `make check` runs in it
	@"$(WHEEL_ENV)/bin/python" -m hatchling build --target sdist --directory dist

licenses: setup ## the licence report: each crate that is linked into the library and arena-replay
	@"$(PY)" package/third_party.py

setup: $(STAMP)

clean: ## remove .venv, target and dist
	rm -rf "$(VENV)" "$(CARGO_TARGET_DIR)" dist

$(SITE_ENV)/.installed: python_smoke/site_requirements.txt $(STAMP)
	@"$(PY)" -m venv "$(SITE_ENV)"
	@"$(SITE_ENV)/bin/python" -m pip install --quiet --requirement python_smoke/site_requirements.txt
	@touch "$@"

$(WHEEL_ENV)/.installed: package/requirements.txt $(STAMP)
	@"$(PY)" -m venv "$(WHEEL_ENV)"
	@"$(WHEEL_ENV)/bin/python" -m pip install --quiet --requirement package/requirements.txt
	@touch "$@"

$(CUDA)/.installed: $(STAMP)
	@version=$$("$(PY)" -c 'from importlib.metadata import version; print(version("jax"))') && \
	  echo "make: fetching jax-cuda13-pjrt $$version into $(CUDA)" && \
	  "$(PY)" -m pip install --quiet --no-deps --upgrade --target "$(CUDA)" "jax-cuda13-pjrt==$$version"
	@touch "$@"

# Cargo knows best what is up to date, so it is always asked.
target/release/libpjrt_arena.so: setup
	@$(CARGO) build --release --locked --lib --package pjrt-arena

# With --tests, because the crates that only tests need turn on features of the others: without it cargo would build
# the library once for this rule and once for the tests, and again each time.
target/debug/libpjrt_arena.so: setup
	@$(CARGO) build --workspace --lib --tests --locked

$(STAMP): python_smoke/requirements.txt pyproject.toml hatch_build.py
	@command -v $(CARGO) >/dev/null || { \
	  echo "make: pjrt-arena is built with Rust, and there is no cargo: install it from https://rustup.rs" >&2; exit 1; }
	@if [ ! -x "$(PY)" ] || ! "$(PY)" -m pip --version >/dev/null 2>&1; then \
	  for python in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11); do \
	    if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$python; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo "make: needs Python 3.11 or newer, which $(or $(PYTHON),python3) is not: name one with PYTHON=..." >&2; \
	    exit 1; \
	  fi; \
	  echo "make: installing JAX and the engine into .venv"; \
	  rm -rf "$(VENV)" && "$$found" -m venv "$(VENV)"; \
	fi
	@"$(PY)" -m pip install --quiet --requirement python_smoke/requirements.txt
	@"$(PY)" -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch "$@"
