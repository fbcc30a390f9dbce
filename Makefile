# Two commands are all the set-up there is: `make demo` and `make test`.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: demo test quick check format clean

demo: $(VENV)/.core
	$(BIN)/trueline build facts --out demo/facts.space
	$(BIN)/trueline compare --space demo/facts.space --flips --file examples/questions.txt

test: $(VENV)/.dev check
	$(BIN)/pytest

quick: $(VENV)/.dev
	$(BIN)/pytest -m "not real and not slow"

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) demo build dist

# torch comes first and by its exact version: that is the CPU build, a range would pull in CUDA.
$(VENV)/.core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing (once, about 2 minutes)"
	$(PIP) --upgrade pip
	$(PIP) torch==2.13.0
	$(PIP) --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) --editable '.[dev]'
	touch $@
