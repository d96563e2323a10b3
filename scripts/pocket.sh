#!/usr/bin/env bash
# Both papers' methods on real weights, photographs and Wikipedia: parts, gallery, two stages of pre-training, data,
# fine-tunings, baselines, evaluations, the table of marks. Hours on two idle cores (docs/pocket.md). A second run resumes
# where the first one stopped.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
prepare "[pocket,train]"
.venv/bin/python -m reflectune.examples.pocket.run "$@"
