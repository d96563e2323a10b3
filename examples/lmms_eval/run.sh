#!/usr/bin/env bash
# Run a command in lmms-eval's environment, .venv-lmms. It has the packages of .venv, lmms-eval 0.7.3, and what lmms-eval
# imports for MME, POPE, MMBench and LLaVA-W. Nothing in .venv changes.
#   bash examples/lmms_eval/run.sh lmms-eval --model reflectune --model_args config=configs/examples/lmms_eval/miniature.yaml,mode=gate …
# lmms-eval's requirements conflict with ours: it pins another wandb, and requires torchvision, timm and av<16, which these
# benchmarks don't import. If a task needs a further package, add it to examples/lmms_eval/requirements.txt.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/environment.sh"
prepare "[train]" # lmms-eval imports datasets
own=.venv-lmms
exec 9> "$own.lock"
flock 9 # wait while another process installs it
wanted=$(cat pyproject.toml constraints.txt examples/lmms_eval/requirements.txt | cksum)
if [ "$(cat "$own/.installed" 2>/dev/null)" != "$wanted" ]; then
    .venv/bin/python -m venv "$own"
    packages() { "$1/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))"; }
    packages .venv > "$(packages "$own")/shared.pth"
    "$own/bin/python" -m pip install --quiet --no-compile --no-deps --requirement examples/lmms_eval/requirements.txt
    "$own/bin/python" -m pip install --quiet --no-deps --editable . # registers the adapter's entry point
    echo "$wanted" > "$own/.installed"
fi
exec 9>&-
export PATH="$PWD/$own/bin:$PATH"
exec "$@"
