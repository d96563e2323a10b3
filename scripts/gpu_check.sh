#!/usr/bin/env bash
# Trains every recipe's family by every method for 20 steps on random weights of true width, and prints a table.
#   bash scripts/gpu_check.sh --output benchmarks/gpu_check.md          # on a GPU of 48 GB or more
#   bash scripts/gpu_check.sh --device cpu --size tiny --steps 4        # anywhere
# On a GPU, .venv needs a torch that can use it, and `pip install 'reflectune[quantization]'`; other torches are kept.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "${PYTHON:-}" ]; then
    source scripts/environment.sh
    prepare "[quantization]"
    PYTHON=.venv/bin/python
fi
exec "$PYTHON" benchmarks/gpu_check.py "$@"
