#!/usr/bin/env bash
# Set up .venv and run the tests; arguments go to pytest, e.g. scripts/test.sh -m "not slow".
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
prepare "[dev]"
# a process a core, each with one thread, and one more for when a test waits for its programs; but for the longest, tests
# stand in order: most that share fixtures stay together
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
cores=$(getconf _NPROCESSORS_ONLN)
processes=$((cores < 4 ? cores + 1 : 4))
exec .venv/bin/python -m pytest --durations 40 --durations-min 5 --numprocesses "$processes" --dist worksteal "$@"
