# Sourced by the other scripts. `prepare` installs the pinned versions into .venv, unless they are there already.
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON=${PYTHON:-python3}

prepare() {  # prepare EXTRAS, e.g. prepare "" or prepare "[dev]"
    local stamp=".venv/.installed$1" wanted
    wanted=$(cat pyproject.toml constraints.txt | cksum)
    if [ ! -x .venv/bin/python ]; then "$PYTHON" -m venv .venv; fi
    if ! grep -qsxF "$wanted" "$stamp" ".venv/.installed[dev]"; then # [dev] has all extras
        add() { .venv/bin/python -m pip install --quiet --no-compile "$@"; } # modules are compiled on their first import
        add --upgrade pip
        # torch with its exact version: a looser requirement can pull in gigabytes of CUDA packages. [dev] needs all of
        # constraints.txt, which is installed at the same time
        add --no-deps "$(grep '^torch==' constraints.txt)" &
        if [ "$1" = "[dev]" ]; then grep -v '^torch==' constraints.txt | add --no-deps --requirement /dev/stdin; fi
        wait $!
        add --constraint constraints.txt --editable ".$1"
        echo "$wanted" | tee "$stamp" > .venv/.installed # every installation includes that without extras
    fi
}

export HF_HUB_OFFLINE=${HF_HUB_OFFLINE:-1} HF_HUB_DISABLE_TELEMETRY=1 TOKENIZERS_PARALLELISM=false
unset PYTHONDONTWRITEBYTECODE # a container may set it, and then each process compiles all that it imports
