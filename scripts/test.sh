#!/usr/bin/env bash
# Set up .venv and run the tests; arguments go to pytest, e.g. scripts/test.sh -m "not slow".
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
prepare "[dev]"
# One process per core with one thread each, and one more, since tests wait for subprocesses. The longest tests start
# first. The others keep their order, so most tests that share fixtures run in one process.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
cores=$(getconf _NPROCESSORS_ONLN)
processes=$((cores < 4 ? cores + 1 : 4))
# In memory where there is room: tests write many small files, and wait until each is on the disk.
if [ "$(df --output=avail /dev/shm 2> /dev/null | tail -n 1)" -gt 4000000 ] 2> /dev/null; then
    PYTEST_DEBUG_TEMPROOT=$(mktemp -d /dev/shm/reflectune.XXXXXX)
    export PYTEST_DEBUG_TEMPROOT
    trap 'rm -rf "$PYTEST_DEBUG_TEMPROOT"' EXIT
fi
.venv/bin/python -m pytest --durations 40 --durations-min 5 --numprocesses "$processes" --dist worksteal "$@"
