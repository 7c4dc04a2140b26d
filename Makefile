# A new user's commands. Each works on a fresh machine with nothing but Python 3.11 or newer, make and pip.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# What builds the site is no part of the tests' environment.
DOCS_VENV := .docs-venv
STAMP  := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest -q --dist loadfile
# Tests start hundreds of Python processes; where this is set, each would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE
DATA   ?= tidewarden-data
# Of make soak: how long faults go on, and which are drawn.
SECONDS ?= 600
SEED   ?= 1

.PHONY: help setup run test check bench soak docs clean
help:
	@echo "make run    a three-node cluster that keeps 2,000 sandbox accounts fresh (Ctrl-C stops it)"
	@echo "make test   every test        make check  format, lint, types and the quick tests"
	@echo "make bench  beside the peers  make soak   long fault runs    make clean  remove .venv, .bench-venv and $(DATA)"
	@echo "make docs   the documents as a site with search, in build/site"

setup: $(STAMP)
$(STAMP): pyproject.toml
	@echo "setting up $(VENV) (once; takes a minute) ..."
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Tidewarden needs Python 3.11 or newer; PYTHON=... names another one")'
# A venv without pip is what Debian leaves behind where python3-venv is missing: it is made anew.
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || { rm -rf $(VENV); \
	$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null && $(PYTHON) -m venv $(VENV); } || { rm -rf $(VENV); \
	echo "$(PYTHON) cannot make a virtual environment: its venv is missing. On Debian and Ubuntu: apt install python3-venv; then run make again" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@$(BIN)/python -m pip install --quiet --editable ".[server]" --group dev
	@touch $(STAMP)

run: setup
	@exec $(BIN)/tidewarden up --nodes 3 --sandbox 2000 --data-dir $(DATA)

# In the order of files, the longest first (tests/support/run/longest.py), and from the other end at once (tests/support/run/both_ends.py): xdist would begin
# with those of most tests, and end with the longest.
# What fails is run once more and counted as a rerun; why it failed is printed (docs/testing.md).
# The first run on a machine compiles: once beforehand, instead of in each of eight processes.
test: setup
	@test -d tests/__pycache__ || { $(PYTEST) --collect-only tests/live tests/soak > /dev/null & $(PYTEST) --collect-only --ignore tests/live --ignore tests/soak > /dev/null; wait; }
	@$(PYTEST) -n 8 --reruns 1 --no-loadscope-reorder -m "not soak"

# Types are looked at beside the tests, and what was found is said after them.
check: setup
	@began=$$(date +%s) && $(BIN)/ruff format --check . && $(BIN)/ruff check . && said=$$(mktemp) && { \
	$(BIN)/mypy > $$said 2>&1 & types=$$!; \
	$(PYTEST) -n 4 --dist worksteal -p no:rerunfailures --ignore tests/live --ignore tests/soak --hypothesis-profile quick \
	--durations 5 --durations-min 1 -m "not live and not thorough and not soak"; tests=$$?; \
	wait $$types; types=$$?; cat $$said; rm $$said; echo "make check: $$(($$(date +%s) - began)) s"; test $$tests$$types = 00; }

bench: setup
	@$(BIN)/python -m benchmarks.peers
	@echo && $(BIN)/python -m benchmarks.outage --quick

soak: setup
	@$(BIN)/python -m pytest -q --hypothesis-profile search --timeout 3600 $$(grep -rlE '@given|RuleBasedStateMachine' --include 'test_*.py' tests) -m "not live and not soak"
	@SOAK_SECONDS=$(SECONDS) SOAK_SEED=$(SEED) RAFT_SEED=$(SEED)000 $(BIN)/python -m pytest -q -s -m soak
	@$(BIN)/python -m benchmarks.zoo --seed $(SEED)

docs: $(DOCS_VENV)/.ready
	@$(DOCS_VENV)/bin/python docs/site_source.py build/site-source
	@NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --quiet --strict
	@echo "build/site; to look at it: $(PYTHON) -m http.server --bind 127.0.0.1 --directory build/site"

$(DOCS_VENV)/.ready: pyproject.toml
	@echo "setting up $(DOCS_VENV) (once) ..."
	@$(PYTHON) -m venv $(DOCS_VENV)
	@$(DOCS_VENV)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	@$(DOCS_VENV)/bin/python -m pip install --quiet --group docs
	@touch $@

clean:
	rm -rf $(VENV) .bench-venv $(DOCS_VENV) $(DATA) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
