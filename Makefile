# Everything is installed into .venv; each target does the set-up it needs. PYTHON chooses the interpreter (3.11 or newer).
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run test lint pictures

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# Byte code is written for what is used, when it is: compiling all 18,000 files takes longer, and with none at all (some
# containers ask for that) every process would compile torch anew.
export PYTHONDONTWRITEBYTECODE :=
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt
TYPED := .venv/typed

PICTURE ?= vlm/samples/chart.png
QUESTION ?= Describe this picture in detail.

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 10

setup: .venv/.dev  ## install mmspec and what its developers use into .venv, and a browser where there is none
	@.ci/browser $(BIN)

run: .venv/.base  ## answer a question about a picture, one token at a time and speculatively
	@$(BIN)/mmspec generate "$(PICTURE)" "$(QUESTION)" --compare

test: .venv/.dev  ## run the tests; PYTEST_ARGS="-k media" chooses some
	@HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

pictures: .venv/.dev  ## take the pictures of the demo anew, of the bundled models in a real browser; on a quiet machine
	@MMSPEC_PICTURES=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest tests/test_demo_browser.py -k twice

# mypy cannot follow the folder mapping of an editable install, so it reads an installed copy, from inside that copy (the
# current folder comes first in its search path). build/ is removed because setuptools would keep deleted modules in it.
lint: .venv/.dev  ## check format, style and types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@rm -rf build $(TYPED)
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --target $(TYPED) .
	@rm -rf build
	@cd $(TYPED) && ../bin/mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache --package mmspec \
	  | sed -E 's,^mmspec/(vlm|image_ar|speech|demos|benchmarks)/,\1/,'

$(BIN)/python:
	@$(PYTHON) -m venv .venv

# The Python of .venv is an order-only prerequisite: its link is older or newer than anything, which says nothing.
.venv/.base: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing mmspec into .venv (torch alone takes a few minutes and about 5 GB) ..." >&2
	@$(INSTALL) --editable .
	@touch $@

.venv/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing mmspec and its developers' tools into .venv (a few minutes the first time) ..." >&2
	@$(INSTALL) --editable '.[dev]'
	@touch .venv/.base $@
