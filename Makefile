# Two commands: `make quickstart` and `make test`. Each makes the environment if it is missing.
PYTHON ?= python3
VENV := .venv
ECRL := $(VENV)/bin/ecrl
READY := $(VENV)/.installed
OUT ?= outputs/quickstart
STUDIES ?= all
RESULTS ?= quickstart
DATA ?=

.PHONY: help quickstart install quick test test-bare test-capabilities test-environments test-slow mutants check docs bench studies results soak clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("ecrl needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

install: $(READY)  ## make only the environment (.venv/bin/ecrl)

quickstart: $(READY)  ## train, kill, recover, verify and report on the embedded digits
	$(ECRL) -m +suite=quickstart variant=clean,ref,ref2,blk,ovl run_dir=$(OUT)
	$(ECRL) verify $(OUT)
	$(ECRL) report $(OUT)

quick: $(READY)  ## the tests that start no process and import no torch, within a minute: for every change
	$(VENV)/bin/python -m tests.quick

test: $(READY)  ## the whole test suite, on two cores at once
	$(VENV)/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-bare: $(READY)  ## the tests that look at the machine, as if it had nothing that is optional
	$(VENV)/bin/python -m tests.environments --bare

test-capabilities: $(READY)  ## the quick tests that compare bits, as two other kinds of processor compute them
	$(VENV)/bin/python -m tests.environments --capabilities

test-environments: $(READY)  ## the tests that could depend on the machine, in one environment after another
	$(VENV)/bin/python -m tests.environments

test-slow: $(READY)  ## what takes minutes and is not part of it
	$(VENV)/bin/python -m pytest -m slow

mutants: $(READY)  ## faults put into the judge, the folds, the figures and the store, one at a time: which does no test notice? Hours
	$(VENV)/bin/python -m tests.mutants

docs: $(READY)  ## the documentation as a site in site/; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict --quiet

check: $(READY) docs  ## ruff, mypy strict, the rooms, the architecture, the documentation
	$(VENV)/bin/ruff check src tests bench experiments
	$(VENV)/bin/ruff format --check src tests bench experiments
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache
	$(VENV)/bin/python -m pytest -q tests/test_architecture.py

bench: $(READY)  ## measure what is fast and what is not: the JSON of each bench, and one table of all goals; about 25 minutes on an idle machine
	$(VENV)/bin/python -m bench

studies: $(READY)  ## every study at its default size (a few are recorded larger: config/studies.py), and their report
	$(ECRL) study -m study=$(STUDIES) run_dir=outputs/studies; code=$$?; $(ECRL) report outputs/studies && exit $$code

results: $(READY)  ## run, verify, report and keep an experiment in docs/results: RESULTS=exp1, or all; DATA=DIR: where CIFAR lies
	$(VENV)/bin/python -m experiments $(RESULTS) $(if $(DATA),--data '$(DATA)')

soak: $(READY)  ## 500 runs of small models under two random failures each, 200 and a matrix of live recoveries, 10,000 random operations on the store, 500 signals to all processes in all phases
	rm -rf outputs/soak
	$(ECRL) study study=failures study.trials=500 study.planted=false run_dir=outputs/soak/failures; code=$$?; \
	$(ECRL) study study=live-recovery study.trials=200 study.planted=false run_dir=outputs/soak/live || code=$$?; \
	$(ECRL) study study=store-soak study.planted=false run_dir=outputs/soak/store || code=$$?; \
	$(VENV)/bin/python -m tests.signal_storm --dir outputs/soak/storm && exit $$code

clean:  ## remove the environment and all outputs
	rm -rf $(VENV) outputs/* build dist site
