# Sourced by the other scripts: makes .venv with the pinned versions, or finds it made already.
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON=${PYTHON:-python3}

prepare() {  # prepare EXTRAS, e.g. prepare "" or prepare "[dev]"
    local stamp=".venv/.installed$1" wanted
    wanted=$(cat pyproject.toml constraints.txt | cksum)
    if [ ! -x .venv/bin/python ]; then "$PYTHON" -m venv .venv; fi
    if ! grep -qsxF "$wanted" "$stamp" ".venv/.installed[dev]"; then # [dev] has all extras
        add() { .venv/bin/python -m pip install --quiet --no-compile "$@"; } # what is imported is compiled then
        add --upgrade pip
        # torch exactly: a looser request can bring gigabytes of CUDA packages. [dev] needs what constraints.txt lists,
        # which a second process unpacks meanwhile
        add --no-deps "$(grep '^torch==' constraints.txt)" &
        if [ "$1" = "[dev]" ]; then grep -v '^torch==' constraints.txt | add --no-deps --requirement /dev/stdin; fi
        wait $!
        add --constraint constraints.txt --editable ".$1"
        echo "$wanted" | tee "$stamp" > .venv/.installed # no extras: any installation has that
    fi
}

export HF_HUB_OFFLINE=${HF_HUB_OFFLINE:-1} HF_HUB_DISABLE_TELEMETRY=1 TOKENIZERS_PARALLELISM=false
unset PYTHONDONTWRITEBYTECODE # as a container may set it: each process would compile all that it imports
