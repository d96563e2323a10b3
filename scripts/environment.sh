# Sourced by the other scripts: makes .venv with the pinned versions, or finds it made already.
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON=${PYTHON:-python3}

prepare() {  # prepare EXTRAS, e.g. prepare "" or prepare "[dev]"
    local stamp=".venv/.installed$1" wanted
    wanted=$(cat pyproject.toml constraints.txt | cksum)
    if [ ! -x .venv/bin/python ]; then "$PYTHON" -m venv .venv; fi
    if ! grep -qsxF "$wanted" "$stamp" ".venv/.installed[dev]"; then # [dev] has all extras
        .venv/bin/python -m pip install --quiet --upgrade pip
        # torch first and exactly: a looser request can bring gigabytes of CUDA packages
        .venv/bin/python -m pip install --quiet --no-compile "$(grep '^torch==' constraints.txt)"
        .venv/bin/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".$1"
        # pip would compile the modules in one process; some packages hold files for other versions of Python. Most of
        # the models of transformers, and all packages' tests, are never imported
        .venv/bin/python -m compileall -qq -j 0 -x '/tests/|/transformers/models/' .venv/lib || true
        echo "$wanted" | tee "$stamp" > .venv/.installed # no extras: any installation has that
    fi
}

export HF_HUB_OFFLINE=${HF_HUB_OFFLINE:-1} HF_HUB_DISABLE_TELEMETRY=1 TOKENIZERS_PARALLELISM=false
