#!/usr/bin/env bash
# Both papers' methods on real weights, photographs and Wikipedia: parts, gallery, pocket's two stages, data, fine-tunings,
# baselines, evaluations, the table of marks. Hours on two idle cores, a stage on each: how many is said before it starts.
# A second run goes on where the first one stopped.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
prepare "[pocket]"
.venv/bin/python examples/pocket/pocket.py "$@"
