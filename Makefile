# `make plan` and `make test` set up everything they need in .venv.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
OUT    ?= out
# test processes; a file's tests run in one of them
TESTERS ?= -n auto --maxprocesses=4 --dist loadfile --no-loadscope-reorder
# of the site: execute or nothing
NOTEBOOKS ?=
# engines on CPUs, for live validation; an environment of its own
LIVE   ?= .venv-live

.PHONY: plan test lint format bench figures docs validate live-environment clean

plan: $(STAMP)  ## capacity plan of the scenario shipped in data/
	$(BIN)/smetric-model plan data/scenarios/agents-small.toml --out $(OUT)/plan

test: $(STAMP)  ## run the tests
	$(BIN)/python -m pytest $(TESTERS) $(PYTEST_ARGS)

lint: $(STAMP)  ## style, types, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## benchmarks (timings; never part of the tests)
	$(BIN)/python benchmarks/run.py

validate: $(STAMP) $(LIVE)/.installed  ## small live loop: two vLLM engines and LMCache on CPUs
	$(BIN)/smetric-model validate data/live/cpu-small.toml --python $(LIVE)/bin/python --out $(OUT)/validate

live-environment: $(LIVE)/.installed  ## vLLM and LMCache for CPUs (x86-64, 4 GB, some minutes)

$(LIVE)/.installed: requirements/live-cpu.txt tools/live_environment.py
	$(PYTHON) tools/live_environment.py $(LIVE)
	@touch $@

figures: $(STAMP)  ## the paper's figures and a page with all of them, in out/figures
	$(BIN)/python paper_figures/gallery.py --out $(OUT)/figures

docs: $(STAMP)  ## the site, in out/docs; NOTEBOOKS=execute: with what notebooks answer, minutes; warnings are errors
	SMETRIC_DOCS_NOTEBOOKS=$(NOTEBOOKS) $(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -c docs . $(OUT)/docs

clean:
	rm -rf $(VENV) $(LIVE) $(OUT) .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python >= 3.11 is needed; $(PYTHON) is older. Set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	@touch $@
