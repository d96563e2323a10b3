#!/usr/bin/env bash
# Set up .venv and run the tests; arguments go to pytest, e.g. scripts/test.sh -m "not slow".
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
prepare "[dev]"
exec .venv/bin/python -m pytest "$@"
