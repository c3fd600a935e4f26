# Every target makes `.venv` itself, once, from the hash-pinned lists in requirements/.
#
#   make demo    needs only Python >= 3.11; it installs what running needs, and Spark for its last step
#   make help    lists the targets

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo check test-fast test test-slow coverage mutate house trips lint audit format crash simulate soak soak-lease fuzz bench bench-compare bench-spark docs docs-pictures pins clean
MAKEFLAGS += --no-print-directory
# Hundreds of tests start processes of ours: each would compile all that it imports anew.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
# It fetches and compiles several packages at a time, which pip does one by one.
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --no-build-isolation --compile-bytecode
# Of setuptools, for the one package that is built from its sources: Spark's, whose jars are compressed already.
BUILD := DIST_EXTRA_CONFIG='$(CURDIR)/requirements/build.cfg'
JOBS ?= 4
RUNS ?= 200
APP_RUNS ?= 50
CALLS_RUNS ?= 50
THREADS_RUNS ?= 20
KAFKA_RUNS ?= 100
SERVE_RUNS ?= 100
BULK_RUNS ?= 10
SNAPSHOT_RUNS ?= 10
MANAGED_RUNS ?= 30
SOURCE_RUNS ?= 40
SOURCE_KAFKA_RUNS ?= 20
SEEDS ?= 10000
SOAK_S ?= 300
LEASE_S ?= 600
FUZZ_S ?= 60
FUZZ_SEED ?= $(shell date +%s)
SAMPLES ?= 40
MUTATE_SEED ?= $(shell date +%s)
BENCHES ?= write read restore standby failover process

# The first Python that is new enough and can make a virtual environment. Asked for only when .venv is missing.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
  if $$p -c 'import sys, venv, ensurepip, sqlite3; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
  then echo $$p; break; fi; done)

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | while IFS=$$'\t' read -r name text; \
	  do printf '  make %-13s %s\n' "$$name" "$$text"; done

NATIVE := setup.py $(wildcard store/native/*.[ch])

$(VENV)/.core: requirements/core.txt pyproject.toml $(NATIVE)
	@python="$(PYTHON)"; if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  if [ -z "$$python" ]; then \
	    echo "standfast needs Python 3.11 or newer with the venv module (Debian: apt-get install python3-venv)" >&2; exit 1; fi; \
	  echo "==> setup: new $(VENV) with $$python"; "$$python" -m venv --clear $(VENV); fi
	@echo "==> setup: what running needs (requirements/core.txt)"
	@$(PIP) install --require-hashes -r requirements/core.txt
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q -j 2 standfast store replication restore stream ops
	@touch $@

$(VENV)/.spark: requirements/spark.txt $(VENV)/.core
	@echo "==> setup: what the demo's last step needs (requirements/spark.txt, 0.8 GB unpacked; ARGS=--no-spark leaves it out)"
	@$(BUILD) $(PIP) install --require-hashes --no-build-isolation -r requirements/spark.txt
	@sync  # while these files are on their way to the disk, a process of the demo may stand still for longer than its lease
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.core
	@echo "==> setup: what developing needs (requirements/dev.txt)"
	@$(PIP) install --require-hashes -r <(sed -n '/^uv==/,/[^\\]$$/p' requirements/dev.txt)
	@$(BUILD) $(UV) -r requirements/dev.txt || { echo "==> setup: uv could not, see above: now by pip, which has its own settings" >&2; \
	  $(BUILD) $(PIP) install --require-hashes --no-build-isolation -r requirements/dev.txt; }
	@touch $@

demo: $(if $(findstring --no-spark,$(ARGS)),$(VENV)/.core,$(VENV)/.spark) ## the delay board on real flights: two processes, one is killed; LOG=kafka: on a broker
	@echo "==> demo: two processes, one of them killed on the way; then all of it rebuilt and verified on Spark"
	@$(BIN)/standfast demo $(if $(LOG),--log '$(LOG)') $(if $(PREFIX),--prefix '$(PREFIX)') $(ARGS)

check: $(VENV)/.dev ## ruff, and the tests of what is pure: no disk, no thread, no process; some ten seconds
	@echo "==> check: ruff, then tests of pure modules"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/pytest -q -x --pure -m "not slow" tests/unit tests/scenarios $(ARGS)

test-fast: $(VENV)/.dev ## what takes less than a quarter of a second each, without a broker and Java; under three minutes
	@echo "==> test-fast: units, contracts, scenarios, models, rules of the repository, and a sidecar"
	@$(BIN)/pytest -q --numprocesses $(JOBS) --dist loadgroup -m "not slow and not kafka and not spark and not packaging" $(ARGS)

test: $(VENV)/.dev ## every test but the expensive ones of test-slow, in JOBS=4 processes
	@echo "==> test: unit, contract, scenario, crash, tidy and packaging tests; those on Kafka fetch it, the first time only"
	@$(BIN)/pytest -q --numprocesses $(JOBS) --dist loadgroup -m "not long" --durations=25 $(ARGS)

test-slow: $(VENV)/.dev ## the expensive tests that `test` leaves out, named in tests/README.md, but those of `crash`
	@echo "==> test-slow: whole demos, benches, brokers and drivers that are killed, a million records"
	@$(BIN)/pytest -q --numprocesses $(JOBS) --dist loadgroup -m "long and not crash" --durations=25 $(ARGS)

coverage: $(VENV)/.dev ## branch coverage of the quick tests, by room and of the pure modules, of which 95 % must be reached
	@echo "==> coverage: tests of units, contracts, scenarios and models, under coverage"
	@$(BIN)/pytest -q --numprocesses $(JOBS) --dist loadgroup -m "not slow and not kafka and not spark" \
	  --cov --cov-report= tests/unit tests/contract tests/scenarios tests/property $(ARGS)
	@$(BIN)/python .ci/coverage_of.py

$(VENV)/.mutation: requirements/mutation.txt $(VENV)/.dev
	@$(PIP) install --require-hashes -r requirements/mutation.txt
	@touch $@

mutate: $(VENV)/.mutation ## SAMPLES=40 random faults in the pure modules, and whether their tests find them; MUTATE_SEED=n repeats a run
	@$(BIN)/python .ci/mutate.py --samples $(SAMPLES) --seed $(MUTATE_SEED) $(ARGS)

house: $(VENV)/.dev ## counts of the structure: lines, folders, functions, cycles
	@$(BIN)/python .ci/house.py

trips: $(VENV)/.dev ## calls, and files of the product, that one put, commit, record, assignment or restore takes
	@PYTHONPATH=proof:tests $(BIN)/python -m trips

lint: $(VENV)/.dev ## ruff, formatting, mypy strict, pyright
	@echo "==> lint: ruff check"; $(BIN)/ruff check .
	@echo "==> lint: ruff format"; $(BIN)/ruff format --check .
	@echo "==> lint: mypy"; $(BIN)/mypy
	@echo "==> lint: pyright"; PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

audit: $(VENV)/.dev ## known advisories about the pinned packages; needs the network
	@echo "==> audit: requirements/*.txt"; $(BIN)/python .ci/audit.py

format: $(VENV)/.dev ## rewrite the sources in the one format
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format .

crash: $(VENV)/.dev ## kill -9 at random moments, RUNS=200 times; whole applications APP_RUNS=50; with calls in flight CALLS_RUNS=50; shared by threads THREADS_RUNS=20; on Kafka KAFKA_RUNS=100; two sidecars whose partitions move SERVE_RUNS=100; sources of one's own SOURCE_RUNS=40, on Kafka SOURCE_KAFKA_RUNS=20; managed instances MANAGED_RUNS=30
	@echo "==> crash: $(RUNS) runs, $(APP_RUNS) of whole applications, $(CALLS_RUNS) with calls in flight, $(KAFKA_RUNS) on Kafka, $(SERVE_RUNS) of sidecars; seeds are printed"
	@TMPDIR="$${TMPDIR:-/tmp}" STANDFAST_CRASH_RUNS=$(RUNS) STANDFAST_CRASH_APP_RUNS=$(APP_RUNS) STANDFAST_CRASH_KAFKA_RUNS=$(KAFKA_RUNS) \
	  STANDFAST_CRASH_CALLS_RUNS=$(CALLS_RUNS) STANDFAST_CRASH_THREADS_RUNS=$(THREADS_RUNS) \
	  STANDFAST_CRASH_SERVE_RUNS=$(SERVE_RUNS) STANDFAST_CRASH_BULK_RUNS=$(BULK_RUNS) STANDFAST_CRASH_SNAPSHOT_RUNS=$(SNAPSHOT_RUNS) \
	  STANDFAST_CRASH_MANAGED_RUNS=$(MANAGED_RUNS) \
	  STANDFAST_CRASH_SOURCE_RUNS=$(SOURCE_RUNS) STANDFAST_CRASH_SOURCE_KAFKA_RUNS=$(SOURCE_KAFKA_RUNS) \
	  $(BIN)/pytest -q -s -m crash --timeout=0 $(ARGS)

simulate: $(VENV)/.dev ## SEEDS=10000 worlds of whole instances with faults, and as many simulations of placement; an hour and more on two cores
	@PYTHONPATH=proof $(BIN)/python -m simulator --seeds $(SEEDS)
	@STANDFAST_PLACEMENT_SEEDS=$(SEEDS) $(BIN)/pytest -q --numprocesses $(JOBS) -m long \
	  tests/unit/replication/test_placement_simulation.py -k many_seeds --timeout=0 $(ARGS)

soak: $(VENV)/.dev ## SOAK_S=300 seconds of mixed load on a sidecar: its memory stays flat
	@STANDFAST_SOAK_S=$(SOAK_S) $(BIN)/pytest -q -s tests/system/sidecar/test_resp_soak.py $(ARGS)

soak-lease: $(VENV)/.dev ## LEASE_S=600 seconds, on each log, beside four busy loops while 256 MB of WAL are reopened: no lease is lost
	@STANDFAST_LEASE_SOAK_S=$(LEASE_S) STANDFAST_LEASE_WAL_MB=256 STANDFAST_LEASE_BUSY=4 \
	  $(BIN)/pytest -q -s tests/system/crash/test_lease_soak.py $(ARGS)

fuzz: $(VENV)/.dev ## FUZZ_S=60 seconds each of wrong bytes to both servers and to settings; FUZZ_SEED=n repeats a run
	@STANDFAST_FUZZ_S=$(FUZZ_S) STANDFAST_FUZZ_SEED=$(FUZZ_SEED) \
	  $(BIN)/pytest -q -s tests/system/sidecar/test_fuzz_resp.py tests/system/sidecar/test_fuzz_http.py tests/system/sidecar/test_fuzz_config.py $(ARGS)

bench: $(VENV)/.core ## speed of writes, reads, restores; BENCHES="write read restore standby failover process scale handover resp", compare: bench-compare
	@for bench in $(BENCHES); do echo "==> bench: $$bench"; \
	  if [ $$bench = compare ]; then $(MAKE) $(VENV)/.dev && $(BIN)/python proof/benchmarks/compare.py $(ARGS); \
	  elif [ $$bench = resp ]; then $(MAKE) $(VENV)/.dev && $(BIN)/python proof/benchmarks/resp.py $(ARGS); \
	  else PYTHONPATH=proof $(BIN)/python -m bench $$bench $(ARGS); fi; done
	@if [ "$(BENCHES)" != compare ]; then echo "==> bench: beside Kafka Streams and Quix Streams: make bench-compare; on Spark: make bench-spark"; fi

bench-compare: ## restores beside Kafka Streams and Quix Streams, an hour and more; ARGS="--records 200000 --rounds 2"
	@$(MAKE) bench BENCHES=compare ARGS='$(ARGS)'

bench-spark: $(VENV)/.spark ## rebuild and verify on Spark: 1, 4 and 16 million records, a quarter of an hour
	@$(BIN)/python proof/benchmarks/spark_rates.py $(ARGS)

docs: $(VENV)/.dev ## the documentation site into build/docs/html; a warning or a broken link within it is an error
	@echo "==> docs: build/docs/html/index.html"
	@$(BIN)/sphinx-build -q -W --keep-going -b html -d build/docs/doctrees docs build/docs/html

docs-pictures: $(VENV)/.dev ## pictures of page, report and terminal from real runs, two minutes; needs Debian's chromium
	@echo "==> docs-pictures: docs/pictures"
	@$(BIN)/python docs/pictures.py

pins: $(VENV)/.dev ## work the hash-pinned lists in requirements/ out anew
	@for set in core spark dev; do \
	  extra="--extra serve"; if [ $$set != core ]; then extra="$$extra --extra spark --extra connect --constraint requirements/core.txt --constraint requirements/spark.in"; fi; \
	  if [ $$set = dev ]; then extra="$$extra --extra otel --extra schema --extra snapshots --extra dev --constraint requirements/spark.txt"; fi; \
	  echo "==> pins: requirements/$$set.txt"; \
	  $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-strip-extras \
	    --no-emit-index-url --no-emit-find-links --custom-compile-command "make pins" \
	    pyproject.toml requirements/build.in $$extra --output-file requirements/$$set.txt; done
	@echo "==> pins: requirements/mutation.txt"; \
	  $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-strip-extras \
	    --no-emit-index-url --no-emit-find-links --custom-compile-command "make pins" \
	    requirements/mutation.in --constraint requirements/dev.txt --output-file requirements/mutation.txt
	@for set in quix plots; do echo "==> pins: proof/benchmarks/$$set.txt"; \
	  $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-strip-extras \
	    --no-emit-index-url --no-emit-find-links --custom-compile-command "make pins" \
	    proof/benchmarks/$$set.in --output-file proof/benchmarks/$$set.txt; done

clean: ## remove .venv and everything that was built or cached
	@echo "==> clean: .venv, builds, caches"
	@rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
