# What a person does with the repository; `make` prints it.
#
#   .venv/installed   packages of pyproject.toml         .venv/installed-dev   those of the tests, too
#   .venv/compiled    our own C and mypyc modules, made again when a source changes

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FOLDERS := ingest router workers kernels kv_tier
# what is compiled, and what its types come from
SOURCES := setup.py workers/wire.py $(shell find kernels kv_tier workers/engine -name '*.py' \
  -o -name '*.c' -o -name '*.h')
PURE := build/pure
SHELL := /bin/bash
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

# $(call install,FILE): its packages, a line each as they come
install = set -o pipefail; $(BIN)/python -m pip --disable-pip-version-check install --requirement $(1) \
  | sed -u -n 's/^Collecting \([^ <>=!~]*\).*/  \1/p'

# $(call suite,NAME,COMMAND): run it and say how long it took
suite = @echo "== $(1)"; begin=$$(date +%s); $(2) || exit 1; echo "== $(1): $$(( $$(date +%s) - begin )) s"

.PHONY: help build build-dev start test test-lint test-compiled test-pure test-slow \
        test-clients test-objects test-fleet chaos fuzz fuzz-api audit gpu-report gpu-kit test-gpu bench-gpu bench bench-27b bench-kv fleet-sim bench-peers tidy clean

help:
	@echo "make start        build what is missing, then run the node; Ctrl-C stops it"
	@echo "make build        make $(VENV): install packages and compile, nothing else"
	@echo "make test         every check: ruff, mypy, the tests compiled, the host code uncompiled"
	@echo "make test-pure    the host code's tests, uncompiled"
	@echo "make test-slow    the tests that take minutes"
	@echo "make test-clients langchain, litellm and the Vercel AI SDK (npm) against a whole node"
	@echo "make test-objects sessions in an object store, with a server that speaks S3"
	@echo "make test-fleet   nodes whose Redis fails over in mid-load (FLEET_SERVER=/usr/bin/redis-server)"
	@echo "make chaos        whole nodes under seeded faults (SEED=1 MINUTES=5): tests/chaos/README.md"
	@echo "make fuzz         hypothesis on messages, session files (INPUTS=100000): tests/security"
	@echo "make fuzz-api     schemathesis against a whole node (EXAMPLES=100 SEED=1)"
	@echo "make audit        known faults of the packages, where the advisory service is reachable"
	@echo "make bench        benchmark tables, beside llama.cpp on the same file and threads"
	@echo "make bench-27b    the same of random weights in Qwen3.5-27B's shape (15 GB), without a peer"
	@echo "make test-gpu     every op and golden model on this machine's GPU, bit by bit"
	@echo "make bench-gpu    what the GPU reaches, in 6 minutes (REHEARSE=1: tiny, on an emulated one)"
	@echo "make gpu-kit      all that the two need on a machine without network, in the folder gpu-kit"
	@echo "make gpu-report   registers and spills of the CUDA kernels, for each GPU (needs nvcc)"
	@echo "make fleet-sim    100 nodes simulated; Redis operations of 1 to 100 routers, counted"
	@echo "make bench-kv     sessions: resuming beside computing again, writing, forking, keeping"
	@echo "make bench-peers  install what make bench compares with (builds it: minutes)"
	@echo "make tidy         format, lint, type check"
	@echo "make clean        remove all that was built; var/ (models, results, store) stays"

build: $(VENV)/compiled $(VENV)/kernels

build-dev: $(VENV)/installed-dev $(VENV)/compiled

start: build
	@exec $(BIN)/python -m ingest.command.start

$(BIN)/python:
	@$(PYTHON) -I ingest/command/preflight.py
	@echo "making $(VENV) ..."
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# Requirements are read from pyproject.toml, so that they stand in one place.
$(VENV)/installed: pyproject.toml | $(BIN)/python
	@echo "installing packages; this takes minutes ..."
	@$(BIN)/python -c "import tomllib; all = tomllib.load(open('pyproject.toml', 'rb')); \
	  print(*all['build-system']['requires'], *all['project']['dependencies'], sep='\n')" \
	  > $(VENV)/requirements.txt
	@$(call install,$(VENV)/requirements.txt)
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	@$(BIN)/python -c "import tomllib; all = tomllib.load(open('pyproject.toml', 'rb')); \
	  print(*all['project']['optional-dependencies']['dev'], sep='\n')" > $(VENV)/dev.txt
	@$(call install,$(VENV)/dev.txt)
	@touch $@

# The package itself: its modules in place, the lockstep command in $(BIN).
$(BIN)/lockstep: pyproject.toml setup.py $(VENV)/installed
	@PURE=1 $(PIP) install --no-deps --no-build-isolation --config-settings editable_mode=compat \
	  --editable .
	@touch $@

$(VENV)/compiled: $(SOURCES) $(BIN)/lockstep
	@$(PYTHON) -I ingest/command/preflight.py
	@echo "compiling; this takes minutes ..."
	@$(BIN)/python setup.py --quiet build_ext --inplace > $(VENV)/compile.log 2>&1 \
	  || { tail -40 $(VENV)/compile.log; exit 1; }
	@touch $@

# The GPU's kernels, where nvcc is; elsewhere the node is the same without a GPU.
$(VENV)/kernels: $(wildcard kernels/cuda/*.cu kernels/cuda/*.cuh) kernels/cuda/build.py $(VENV)/compiled
	@$(BIN)/python -m kernels.cuda.build --if-possible
	@touch $@

# Both suites wait much and mostly use one core, so they run side by side; the second one's output follows.
test: test-lint
	@mkdir -p build; $(MAKE) --no-print-directory test-pure > build/test-pure.log 2>&1 & pure=$$!; \
	  $(MAKE) --no-print-directory test-compiled; compiled=$$?; wait $$pure; pure=$$?; \
	  cat build/test-pure.log; exit $$(( compiled || pure ))

test-lint: build-dev
	$(call suite,ruff check,$(BIN)/ruff check .)
	$(call suite,ruff format,$(BIN)/ruff format --check .)
	$(call suite,mypy --strict,$(BIN)/mypy --strict)

test-compiled: build-dev
	$(call suite,pytest compiled,$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not slow')

# The same host code as the interpreter sees it: a copy of the tree with only the C extension built.
# Only tests that run some of it: setup.py's COMPILED; where the GPU's side is emulated it adds nothing.
test-pure: build-dev
	@rm -rf $(PURE) && mkdir -p $(PURE)/build build/test-home build/cuda \
	  && ln -s ../../test-home ../../cuda $(PURE)/build/
	@tar -c --exclude '*.so' --exclude __pycache__ $(FOLDERS) tests setup.py pyproject.toml README.md \
	  | tar -x -C $(PURE)
	@cd $(PURE) && PURE=1 ../../$(BIN)/python setup.py --quiet build_ext --inplace > pure.log 2>&1 \
	  || { tail -40 pure.log; exit 1; }
	$(call suite,pytest uncompiled,cd $(PURE) && PURE=1 ../../$(BIN)/python -m pytest -m 'not slow' \
	  tests/kernels tests/workers/engine tests/kv_tier/test_block_pool.py \
	  --ignore tests/kernels/cuda --ignore tests/workers/engine/test_device_moves.py)

test-slow: build-dev
	$(call suite,pytest slow,$(BIN)/python -m pytest -m slow)

# Minutes of load on Clusters and behind Sentinels; FLEET_FIGURES=FILE gets a line of JSON for each.
test-fleet: build-dev
	$(call suite,pytest fleet,$(BIN)/python -m pytest -m slow tests/fleet)

SEED ?= 1
MINUTES ?= 5
# Hypothesis on what may lie in Redis and on the disk: INPUTS for each test, a fiftieth of exports.
INPUTS ?= 100000
fuzz: build-dev
	@FUZZ_INPUTS=$(INPUTS) $(BIN)/python -m pytest tests/security/test_fuzz.py

# Schemathesis, which has an environment of its own, against a whole node with a tiny model.
EXAMPLES ?= 100
fuzz-api: build-dev build/fuzz/installed
	@$(BIN)/python tests/security/fuzz_api.py --schemathesis build/fuzz/bin/schemathesis \
	  --examples $(EXAMPLES) --seed $(SEED)

# pip-audit, in the same environment, asks for known faults of what is installed here; strict: what it
# cannot ask about is an error.
audit: build-dev build/fuzz/installed
	@$(PIP) freeze --exclude-editable > build/fuzz/frozen.txt
	@build/fuzz/bin/pip-audit --strict --requirement build/fuzz/frozen.txt --no-deps --disable-pip

build/fuzz/installed: pyproject.toml | $(BIN)/python
	@$(PYTHON) -m venv build/fuzz
	@build/fuzz/bin/python -m pip --disable-pip-version-check -qq install $$($(BIN)/python -c "import \
	  tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['fuzz'])")
	@touch $@

chaos: build-dev
	@$(BIN)/python -m tests.chaos.run --seed $(SEED) --minutes $(MINUTES) --logs build/chaos/logs

# Clients that bring many packages have an environment of their own; the node runs in ours.
CLIENTS := build/clients
NPM := build/npm
IN_CLIENTS := LOCKSTEP_NPM=$(abspath $(NPM)) $(BIN)/python -m tests.ingest.clients.serve

$(CLIENTS)/installed: pyproject.toml
	@$(PYTHON) -m venv $(CLIENTS)
	@$(CLIENTS)/bin/python -m pip --disable-pip-version-check -qq install pytest $$($(PYTHON) -c "import \
	  tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['clients'])")
	@touch $@

$(NPM)/node_modules: tests/ingest/clients/vercel/package.json
	@mkdir -p $(NPM) && cp $< $(NPM)/
	@cd $(NPM) && npm install --no-package-lock --no-audit --no-fund

test-clients: build-dev $(CLIENTS)/installed $(if $(shell command -v npm),$(NPM)/node_modules)
	$(call suite,pytest clients,$(IN_CLIENTS) $(CLIENTS)/bin/python -m pytest -W ignore \
	  --confcutdir tests/ingest/clients tests/ingest/clients)

# The object store with a server that speaks S3, which brings many packages.
S3 := build/s3
$(S3)/installed: pyproject.toml
	@$(PYTHON) -m venv $(S3)
	@$(S3)/bin/python -m pip --disable-pip-version-check -qq install $$($(PYTHON) -c "import \
	  tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['s3'])")
	@touch $@

test-objects: build-dev $(S3)/installed
	$(call suite,pytest objects,LOCKSTEP_MOTO=$(abspath $(S3))/bin/python $(BIN)/python -m pytest \
	  tests/kv_tier/remote tests/workers/session/test_elsewhere.py)

# Built for this machine, but for AMX: as gcc 12 compiles it, llama.cpp dies at its first AMX instruction.
bench-peers: build
	@$(BIN)/python -c "import llama_cpp" 2> /dev/null || { \
	  echo "building llama.cpp; this takes minutes ..."; \
	  flags="$$(gcc -mno-amx-tile -E - < /dev/null > /dev/null 2>&1 \
	    && echo -mno-amx-tile -mno-amx-int8 -mno-amx-bf16)"; \
	  CFLAGS="$$flags" CXXFLAGS="$$flags" $(PIP) install "$$($(BIN)/python -c "import tomllib; print(*tomllib.load(open( \
	    'pyproject.toml', 'rb'))['project']['optional-dependencies']['bench'])")"; }

gpu-report: build
	@$(BIN)/python -m kernels.cuda.build --report

# What test-gpu and bench-gpu need on a machine without network: copy the folder gpu-kit beside the
# sources there. KIT="--python 3.12 --wheels FOLDER" for another Python than this one.
gpu-kit: build
	@$(BIN)/python -m ingest.command.bench.gpu.kit gpu-kit $(KIT)

# With a folder gpu-kit nothing is installed or fetched; else PyCUDA is built into $(VENV).
GPU_NEEDS := $(if $(wildcard gpu-kit),,$(VENV)/installed-gpu build-dev)

$(VENV)/installed-gpu: $(VENV)/installed-dev
	@$(PIP) install "$$($(BIN)/python -c "import tomllib; print(*tomllib.load(open( \
	  'pyproject.toml', 'rb'))['project']['optional-dependencies']['gpu'])")"
	@touch $@

test-gpu: $(GPU_NEEDS)
	@tests/bench/gpu.sh test

bench-gpu: $(if $(REHEARSE),build-dev,$(GPU_NEEDS))
	@$(if $(REHEARSE),$(BIN)/lockstep bench gpu --rehearse,tests/bench/gpu.sh bench)

bench: bench-peers
	@$(BIN)/lockstep bench cpu
	@$(BIN)/lockstep bench node

bench-27b: build
	@$(BIN)/lockstep model show synth-qwen3.5-27b > /dev/null 2>&1 \
	  || $(BIN)/lockstep model synth --like qwen3.5-27b --pack
	@$(BIN)/lockstep bench cpu --model synth-qwen3.5-27b --no-peer --case prefill,decode \
	  --sessions 1,4,10 --context 64 --prompt-tokens 64 --threads $$(nproc) --steps 2 --rounds 3

# Minutes; FLEET.md tells what came out.
fleet-sim: build-dev
	@$(BIN)/python tests/bench/bench_fleet.py --plot tests/bench/fleet.png

bench-kv: build
	@$(BIN)/lockstep bench kv
	@$(BIN)/lockstep bench kv --model 1.5B --case resume,suspend

tidy: build-dev
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .
	@$(BIN)/mypy --strict

clean:
	rm -rf $(VENV) build gpu-kit *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name '*.so' -not -path './var/*' -delete
	find . -name __pycache__ -not -path './var/*' -prune -exec rm -rf {} +
