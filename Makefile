# Every target is one command; `run_all.py` holds the logic. `make` alone prints what there is.

PYTHON   ?= python3
TORCH    ?= $(shell grep '^torch==' constraints.txt)
PIP_ARGS ?=
EXTRAS   ?= dev,stats,slurm,graph,lm,hf,pointcloud

RUN  := .venv/bin/python run_all.py
PIP  := .venv/bin/python -m pip --disable-pip-version-check install --quiet $(PIP_ARGS)
WITH := -c .venv/constraints.txt

pick   = $(if $($(1)),$(2)=$($(1)))
CHOICE = $(call pick,DOMAIN,domain) $(call pick,DATASET,dataset) $(call pick,ATTENTION,attention) \
         $(call pick,SEEDS,seeds) $(call pick,BUDGET,budget) $(call pick,LAUNCHER,launcher)
SUITE  = $(if $(DOMAIN)$(DATASET)$(filter suite=% domain=% dataset=%,$(ARGS)),,suite=quick)

.DEFAULT_GOAL := help
.PHONY: help setup bench smoke plan inspect status cancel report data doctor speed test test-gpu test-nightly lint format clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18
	@echo
	@echo 'Choose runs with DOMAIN= DATASET= ATTENTION= SEEDS= BUDGET= LAUNCHER= (lists: a,b,c);'
	@echo 'everything else goes through ARGS="key=value …". For example:'
	@echo '  make bench DOMAIN=timeseries DATASET=JapaneseVowels ATTENTION=standard,quest SEEDS=5'
	@echo 'Set-up: PYTHON= (3.11 or newer), TORCH= (what pip installs as torch; a torch already in'
	@echo '.venv stays), PIP_ARGS=. Folders: DATA_DIR, CACHE_DIR, RESULTS_DIR in the environment.'

bench: .venv/.ready ## run what is chosen, or the quick suite, and write the report
	@$(RUN) run $(strip $(SUITE) $(CHOICE) $(ARGS))

smoke: .venv/.ready ## every variant in every domain on made-up data, a few minutes
	@$(RUN) run suite=smoke $(strip $(CHOICE) $(ARGS))

plan: .venv/.ready ## what `make bench` would run, what is done, how long the rest takes
	@$(RUN) plan $(strip $(SUITE) $(CHOICE) $(ARGS))

inspect: .venv/.ready ## one run before it is paid for: configuration, parameters, steps, data
	@$(RUN) inspect $(strip $(CHOICE) $(ARGS))

status: .venv/.ready ## what is done, running, queued, failed
	@$(RUN) status

cancel: .venv/.ready ## end the cluster's jobs for this store (LAUNCHER=slurm)
	@$(RUN) cancel

report: .venv/.ready ## tables, figures and the page, from the results so far
	@$(RUN) report $(ARGS)

data: .venv/.ready ## fetch and prepare DATASET
	@$(RUN) data $(strip $(DATASET) $(ARGS))

doctor: .venv/.ready ## what this machine has and what it lacks
	@$(RUN) doctor $(ARGS)

speed: .venv/.ready ## time and memory against the reference points
	@$(RUN) speed $(strip $(call pick,DOMAIN,domain) $(call pick,ATTENTION,attention) $(ARGS))

test: .venv/.dev ## all tests, no GPU and no network needed (ARGS goes to pytest)
	@.venv/bin/python -m pytest -n logical --maxprocesses 8 --dist worksteal $(ARGS)

test-gpu: .venv/.dev ## the tests that need a CUDA device
	@.venv/bin/python -m pytest -m gpu $(ARGS)

test-nightly: .venv/.dev ## published results reproduced in part, minutes
	@.venv/bin/python -m pytest -m nightly $(ARGS)

lint: .venv/.dev ## ruff and mypy
	@.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy

format: .venv/.dev ## put the code into the house format
	@.venv/bin/ruff check --fix . && .venv/bin/ruff format .

setup: .venv/.dev ## the whole environment, tests and linters included

clean: ## remove .venv and tool caches; never results or data
	rm -rf .venv *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage

# A stamp is written when everything before it worked. `.unfinished` marks a set-up that was cut
# off: its packages may be half written, so the next call starts from an empty environment.
.venv/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'Python 3.11 or newer is needed; $(PYTHON) is not. Name one: make … PYTHON=python3.11' >&2; exit 3; }
	@test ! -e .venv/.unfinished || { echo 'set-up was interrupted before: starting over'; rm -rf .venv; }
	@echo 'set-up: .venv with the packages that runs need (about 1.4 GB, a minute or two, once)'
	@$(PYTHON) -m venv .venv && touch .venv/.unfinished
	@grep -v '^torch==' constraints.txt > .venv/constraints.txt
	@.venv/bin/python -c 'import torch; assert tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 6)' \
	  2>/dev/null || { echo 'set-up: $(TORCH)'; $(PIP) $(TORCH); }
	@echo 'set-up: everything else'
	@$(PIP) $(WITH) -e .
	@mv .venv/.unfinished $@

.venv/.dev: .venv/.ready
	@test ! -e .venv/.unfinished || { rm $<; $(MAKE) --no-print-directory $<; }
	@echo 'set-up: test and lint tools'
	@touch .venv/.unfinished
	@$(PIP) $(WITH) -e '.[$(EXTRAS)]'
	@mv .venv/.unfinished $@
