# `make` prints the targets. They need Debian 12, and root or sudo.

PYTHON := /usr/bin/python3
VENV := .venv
BIN := $(VENV)/bin
# Only .ci/run repeats failed tests, until the tests that it lists are fixed: `make test RERUNS="--reruns 2"`.
RERUNS :=
PYTEST := $(BIN)/python -m pytest -rsR --durations 20 $(RERUNS)
# Touched after the installation into .venv of the packages that powerprof imports, and of those of the tests.
IMPORTED := $(VENV)/.imported
TESTED := $(VENV)/.tested
# An old server for some tests. Without it, they are deselected, and pytest reports this at the end.
HISTORICAL := mysql-5.5.9

# Tests that load BPF programs run in five workers, all others in six: they wait more than they compute. Tests that judge
# this host's idleness or speed run alone. Both kinds are in SYSTEM. tests/conftest.py sets the markers and begins with
# the longest files.
UNIT := tests/unit
SYSTEM := tests/system
PARALLEL := $(PYTEST) --dist loadfile --no-loadscope-reorder --numprocesses
UNTRACED := $(PARALLEL) 6 -m "not (nightly or alone or traced)" $(UNIT) $(SYSTEM)
TRACED := $(PARALLEL) 5 -m "traced and not (nightly or alone)" $(SYSTEM)
ALONE := $(PYTEST) -m "alone and not nightly" $(SYSTEM)
# pytest rewrites the asserts of a file in 25 ms of CPU time. Twelve workers would all rewrite all files of a new cache.
REWRITE := for folder in $(UNIT) $(SYSTEM); do \
	$(BIN)/python -m pytest --collect-only -qq -p no:cacheprovider $$folder >/dev/null & done; wait
PREPARE = $(BIN)/powerprof --quiet servers fetch $(HISTORICAL) --yes || echo "setup: continuing without $(HISTORICAL)" >&2; \
	export TEST_CACHE="$$(mktemp -d)"; trap 'rm -rf "$$TEST_CACHE"' EXIT; \
	unset PYTHONDONTWRITEBYTECODE; export PYTHONPYCACHEPREFIX="$$TEST_CACHE/bytecode"; $(REWRITE)

.DEFAULT_GOAL := help
.PHONY: help setup setup-demo demo docs man probes probes-anew gallery studies check test durations mutation bench matrix matrix-quick matrix-kernels soak steady deb dist release lint clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup-demo: ## install the packages that powerprof needs, in the system and in .venv
	@.ci/packages demo
	@$(MAKE) --silent --no-print-directory $(IMPORTED)

setup: setup-demo ## install also the packages of its tests: compilers, servers, a browser
	@.ci/packages check
	@.ci/packages test
	@$(MAKE) --silent --no-print-directory $(TESTED)

$(IMPORTED): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv --system-site-packages $(VENV)
	@echo "setup: installing Python packages into $(VENV)" >&2
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . >&2
	@touch $@

$(TESTED): pyproject.toml $(IMPORTED)
	@echo "setup: installing the tests' Python packages into $(VENV)" >&2
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]' >&2
	@touch $@

demo: setup-demo ## measure an idle private MariaDB with 16 clients and print the report
	$(BIN)/powerprof idle --clients 16 --quick
	@echo; echo "To let sudo and your shell find powerprof: sudo ln -sf $(CURDIR)/$(BIN)/powerprof /usr/local/bin/powerprof"

docs: setup-demo ## build the documentation as a site with search in build/site
	@$(MAKE) --silent --no-print-directory $(TESTED)
	$(BIN)/python -m tools.pages.site

man: setup ## write the manual page, the commands, the JSON Schemas, the meters and the licences
	$(BIN)/python -m tools.pages.man_page
	$(BIN)/python -m tools.pages.commands_page
	$(BIN)/python -m tools.pages.schemas
	$(BIN)/python -m tools.pages.meters_page
	$(BIN)/python -m tools.pages.support_page
	$(BIN)/python -m tools.pages.licences_page

probes: setup ## compile the carried BPF programs with changed sources
	$(BIN)/python -m tools.probes.shared
	$(BIN)/python -m tools.probes

probes-anew: setup ## compile all carried BPF programs again and compare them (some minutes)
	$(BIN)/python -m tools.probes --anew

gallery: setup ## measure and photograph the examples of docs/gallery and docs/read-a-report.md (six minutes); as root
	$(BIN)/python -m tools.gallery

STUDIES = $(basename $(notdir $(wildcard workloads/studies/*.toml)))
STUDY_OPTIONS :=
studies: setup ## measure the published studies and rewrite docs/studies (an hour and a half); as root
	@mkdir -p docs/studies/runs; status=0; for study in $(STUDIES); do \
		$(BIN)/powerprof study $$study $(STUDY_OPTIONS) --json docs/studies/runs/$$study.json || status=1; done; \
	$(BIN)/python -m tools.pages.study_pages && exit $$status

# The unit tests make many small files. In memory, if it has room for them, they take an eighth less CPU time.
MEMORY := /dev/shm
IN_MEMORY = PYTEST_DEBUG_TEMPROOT="$$(df --output=avail -BM $(MEMORY) 2>/dev/null | \
	awk 'NR == 2 && $$1 + 0 >= 2048 { print "$(MEMORY)" }')"

check: setup-demo ## run ruff, mypy and the unit tests (five minutes), without root and without a server
	@.ci/packages check
	@$(MAKE) --silent --no-print-directory $(TESTED)
	@# mypy uses one CPU: side by side, both CPUs of a small host are busy to the end.
	@$(MAKE) --silent --no-print-directory lint & lint=$$!; status=0; \
	$(IN_MEMORY) $(PARALLEL) 2 -m "not (nightly or root or simulation)" --quiet -o tmp_path_retention_policy=failed $(UNIT) || status=1; \
	wait $$lint || { echo "make lint failed: its messages are above" >&2; status=1; }; exit $$status

test: setup ## run all tests except the long ones; the tests that trace need root and BPF
	@test "$$(id -u)" = 0 || \
		echo "not root: tests with the marker root will fail; sudo make test runs all" >&2
	@status=0; $(PREPARE); \
	sh -c '.ci/ungrouped $$$$; exec $(UNTRACED)' || status=1; \
	$(TRACED) || status=1; \
	$(ALONE) || status=1; \
	exit $$status

durations: ## write the seconds of each test file in the last `make test` into tests/durations.json
	$(BIN)/python -m tools.durations

mutation: setup ## plant each fault of tools/mutation, and check that a test of `make check` fails (an hour)
	$(BIN)/python -m tools.mutation --write

bench: setup ## measure powerprof's own cost, compared with other tools
	$(BIN)/python -m tools.bench

matrix: setup-demo ## boot every machine of the matrix (40 minutes), and write docs/dev/machines.md; as root
	@.ci/matrix-packages
	$(BIN)/python -m tools.matrix --write

matrix-quick: setup-demo ## boot the machines that every change must pass; as root
	@.ci/matrix-packages quick
	$(BIN)/python -m tools.matrix --quick

KERNELS := build/kernels
matrix-kernels: setup-demo ## run a sweep under two kernels and compare them on a page (20 minutes); as root
	@.ci/matrix-packages quick
	$(BIN)/python -m tools.matrix --write --runs $(KERNELS) 6.1-sweep 6.12-sweep
	$(BIN)/powerprof compare $(KERNELS)/6.1-sweep $(KERNELS)/6.12-sweep --no-save -o $(KERNELS)/two-kernels.html

soak: setup ## run the long tests
	@.ci/packages soak
	$(BIN)/python -m pytest -m nightly tests

steady: setup ## run the tests that do not trace ten times (an hour)
	@status=0; $(PREPARE); .ci/ungrouped $$$$; for turn in 1 2 3 4 5 6 7 8 9 10; do \
	echo "turn $$turn of 10"; $(UNTRACED) || status=1; done; exit $$status

deb: setup-demo ## build a Debian package in dist/ (docs/how-to/prometheus.md)
	@packaging/deb dist

dist: ## make the reproducible sdist and wheel of the last commit in dist/
	@packaging/dist dist

release: setup ## check that the platform table is of the current BPF programs, then make sdist, wheel and SBOM
	$(BIN)/python -m tools.matrix --check
	@packaging/release dist

lint: setup-demo ## run ruff (rules and format) and mypy
	@$(MAKE) --silent --no-print-directory $(TESTED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy

clean: ## remove .venv and all build products
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
