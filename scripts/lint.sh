#!/usr/bin/env bash
# Style, types and documents: ruff over the tree, mypy over the packages and the benchmarks, Sphinx over docs/.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
prepare "[dev]"
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy src/reflectune benchmarks/*.py
.venv/bin/python -m sphinx -q -W --keep-going docs runs/docs
