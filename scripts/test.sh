#!/usr/bin/env bash
# Set up .venv and run the tests; arguments go to pytest, e.g. scripts/test.sh -m "not slow".
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
prepare "[dev]"
# one process a core, each with one thread; but for the longest, tests stand in order: most that share fixtures stay together
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec .venv/bin/python -m pytest --durations 40 --durations-min 5 --numprocesses auto --maxprocesses 4 --dist worksteal "$@"
