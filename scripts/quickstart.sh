#!/usr/bin/env bash
# The whole method on the miniature: world, index, data, fine-tuning, baselines, evaluation, report. Ten minutes on two cores.
# A second run reuses the finished stages. FAMILY=qwen2_vl or qwen3_5, METHOD=lora, SEED=1 or RUN=runs/other change the run.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
prepare "[report,serve,train]" # `report` draws the charts; `serve` is the next step
.venv/bin/python -m reflectune.examples.miniature.quickstart --family "${FAMILY:-llava}" --method "${METHOD:-full}" \
    --seed "${SEED:-0}" --run "${RUN:-runs/quickstart}"
