#!/usr/bin/env bash
# Soak tests: hours of commands under kill -9, and on damaged inputs.
#   bash scripts/soak.sh serve --run runs/quickstart --minutes 20 # kill a server under good, bad and cut-off requests
#   bash scripts/soak.sh kill --kills 10 --packages     # kill every writing command at random moments, compare the files
#   bash scripts/soak.sh hostile 2000 --parts 2         # damage the inputs at random: no traceback, no timeout
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
prepare "[dev]"
soak=$1
shift
.venv/bin/python "tests/soak/$soak.py" "$@"
