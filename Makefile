# Everything starts here. Only Python 3.11+ and make are needed: the first target that you run makes .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Spark's classes as its JVM left them, so that those of tests start sooner: tests/spark_classes.py.
CLASSES := $(VENV)/spark-classes.jsa
PYTEST := $(BIN)/python -m pytest
# Four processes for two cores, a file of tests each: many tests wait for programs that they have started.
# All files that share Spark's session are one of them: tests/spark_session.py.
SIDE_BY_SIDE := -n 4 --dist loadfile --no-loadscope-reorder
SEEDS ?= 100000
FLOWS ?= 1000
STATES ?= 32000
INPUTS ?= 1000000

# Where it is set, each process that starts would compile anew all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo demo-traffic test lint dist proofs proofs-long faults recovery kills flash-proof kafka-proof seeds revisions states fuzz interpreters bench check clean distclean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP) ## Run the stock-drawdown demo on real prices (options: make demo ARGS="--cut cloud")
	@$(BIN)/gear demo stocks $(ARGS)

demo-traffic: $(STAMP) ## Run the traffic demo on a simulated city (options: make demo-traffic ARGS="--city 5")
	@$(BIN)/gear demo traffic $(ARGS)

test: $(CLASSES) ## Run all tests but the long ones (options: make test ARGS="-k wire")
	@$(PYTEST) $(SIDE_BY_SIDE) tests --ignore=tests/proofs --ignore=tests/bench -m "not proof and not long" --durations=15 $(ARGS)

lint: $(STAMP) ## Check format, lint and types of all code
	@PYTHON=$(BIN)/python scripts/lint

dist: $(STAMP) ## Build wheels and sdists of all parts into dist/, the same bytes each time
	@PYTHON=$(BIN)/python scripts/dist

proofs: $(CLASSES) ## Run the long tests, and the benchmarks at 1 % for their results only
	@$(PYTEST) $(SIDE_BY_SIDE) tests --ignore=tests/bench -m "proof and not long" --durations=15 $(ARGS)
	@GEARTRAIN_BENCH_SIZE=0.01 $(PYTEST) tests/bench -m "not long" -s $(ARGS)

proofs-long: $(CLASSES) ## Run all that is marked long, then fuzz, states, seeds and revisions in full, which takes about a day
	@$(PYTEST) $(SIDE_BY_SIDE) tests -m long --durations=15 $(ARGS)
	@$(MAKE) fuzz states seeds revisions ARGS=

faults: $(STAMP) ## Run the fault suite on real processes, and print one table (one fault: make faults ARGS="clock")
	@$(BIN)/python -m tests.process.suite $(ARGS)

recovery: $(STAMP) ## Measure how long 20 of each recovery take (fewer: make recovery ARGS="--runs 3 --only broker")
	@PYTHON=$(BIN)/python scripts/recovery $(ARGS)

kills: $(STAMP) ## Kill each process of a platform at each step of submit, kill and replay, in hours (fewer: make kills ROUNDS=5)
	@$(BIN)/python -m tests.proofs.test_platform_kills $(ROUNDS)

flash-proof: $(STAMP) ## Start devices from images in qemu, and cut their power (one architecture: make flash-proof ARGS=amd64)
	@$(BIN)/python -m tests.flash_image.proof $(ARGS)

kafka-proof: $(STAMP) ## Send to a real broker of Kafka and read from it under kills (needs Java 17 and Maven)
	@$(BIN)/python -m tests.kafka_broker.proof

seeds: $(STAMP) ## Run 100,000 simulated worlds, which takes hours (fewer: make seeds SEEDS=1000 ARGS="--from 5000")
	@$(BIN)/gear-sim --seeds $(SEEDS) $(ARGS)

revisions: $(STAMP) ## Run 1,000 random flows with random revisions, then 1,000 whose devices move meanwhile, three times each (fewer: make revisions FLOWS=50)
	@$(BIN)/python -m tests.proofs.test_random_revisions $(FLOWS) $(ARGS)
	@$(BIN)/python -m tests.proofs.test_moved_revisions $(FLOWS) $(ARGS)

states: $(STAMP) ## Lose power at every step of real files, and recover about so many states (fewer: make states STATES=5000)
	@$(BIN)/python -m tests.proofs.test_crash_states $(STATES)

fuzz: $(STAMP) ## Throw 1,000,000 spoiled inputs at each reader, in about an hour (fewer: make fuzz INPUTS=10000)
	@$(BIN)/python -m tests.security.fuzz $(INPUTS) $(ARGS)

interpreters: $(STAMP) ## Run the core of the tests on each Python from 3.11 to 3.14 that is installed (one: ARGS=3.13)
	@PYTHON=$(BIN)/python scripts/interpreters $(ARGS)

bench: $(STAMP) ## Measure beside peers, and print the figures (one work: make bench WORK=A; a tenth: SIZE=0.1)
	@GEARTRAIN_BENCH_WORK='$(WORK)' GEARTRAIN_BENCH_SIZE='$(or $(SIZE),1)' $(PYTEST) tests/bench -q -s $(ARGS)

check: $(STAMP) ## Format, lint, types and the fast tests: run it before a commit
	@PYTHON=$(BIN)/python scripts/check $(ARGS)

clean: ## Remove what tools and builds left behind
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist */build */dist spark-warehouse
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## Remove .venv as well
	rm -rf $(VENV)

# Only a complete installation leaves the stamp, so one that was interrupted is taken up again.
$(STAMP): requirements.txt requirements-dev.txt scripts/install $(wildcard */pyproject.toml)
	@PYTHON='$(PYTHON)' scripts/install $(VENV)
	@touch $@

# Without them tests only take longer. Beside it pytest reads all tests, or each of its processes would compile them.
$(CLASSES): $(STAMP)
	@echo "geartrain: starting Spark once, so that it starts sooner for each test (half a minute)"
	@$(PYTEST) --collect-only -qq tests >/dev/null 2>&1 & \
	$(BIN)/python -m tests.spark_classes || echo "geartrain: it did not start; tests go on without that" >&2; wait
