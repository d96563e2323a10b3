#!/usr/bin/env bash
# Runs commands on N inputs that are damaged at random: no traceback, no hang, nothing changed that was there.
#   bash scripts/soak_hostile.sh 2000 --parts 2 --output benchmarks/soak_hostile.md
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
prepare ""
.venv/bin/python benchmarks/soak_hostile.py "$@"
