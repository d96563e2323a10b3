#!/usr/bin/env bash
# Kills every writing command ten times at random moments, and a launcher alone, and compares with undisturbed runs.
#   bash scripts/soak_kill.sh --kills 10 --packages --output benchmarks/soak_kill.md
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
prepare ""
.venv/bin/python benchmarks/soak_kill.py "$@"
