#!/usr/bin/env bash
# Style, types and documents: ruff over the tree, mypy over the packages and the benchmarks, Sphinx over docs/.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
prepare "[dev]"
.venv/bin/ruff check .
.venv/bin/ruff format --check .
# mypy needs a folder in which the namespace `reflectune` is found: a link to this one
mkdir -p .typecheck && ln -sfn .. .typecheck/reflectune
cd .typecheck && ../.venv/bin/mypy --config-file ../pyproject.toml \
    reflectune/core reflectune/metrics reflectune/models reflectune/retrieval reflectune/data_builders reflectune/train \
    reflectune/inference
MYPYPATH=reflectune/benchmarks ../.venv/bin/mypy --config-file ../pyproject.toml reflectune/benchmarks/*.py
cd ..
.venv/bin/python -m sphinx -q -W --keep-going docs runs/docs
