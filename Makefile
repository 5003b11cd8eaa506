# Every target does its own set-up: on a fresh clone `make demo` and `make test` are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export HF_HUB_DISABLE_TELEMETRY = 1
export TOKENIZERS_PARALLELISM = false

.PHONY: demo test test-gpu lint types nano clean setup

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("kernelzero needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/kernelzero coevolve configs/demo.toml

test: $(STAMP) lint types
	$(BIN)/python -m pytest -m "not gpu"

test-gpu:
	python3 -m pytest -m gpu

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

nano: $(STAMP)
	$(BIN)/kernelzero nano build

clean:
	rm -rf $(VENV) runs build *.egg-info
