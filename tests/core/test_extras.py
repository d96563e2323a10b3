"""A plain installation works without the extras, and names the one that a command needs."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from reflectune.core.extras import MODULES, install_line

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TRAINERS = ("trl", "datasets")


def packages(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[>=<]", one)[0].lower().replace("-", "_") for one in requirements}


def test_the_table_has_the_extras_of_the_project() -> None:
    extras = {name: packages(wanted) for name, wanted in PROJECT["optional-dependencies"].items()}
    assert {"dev", "docs", *MODULES} == set(extras)
    for extra, modules in MODULES.items():
        assert {next((m for m in modules if f"{p}_".startswith(f"{m}_")), p) for p in extras[extra]} == set(modules)
    assert set(MODULES) <= set(re.findall(r"\w+", PROJECT["optional-dependencies"]["dev"][0]))


@pytest.mark.parametrize(
    ("module", "extra"), [("trl", "train"), ("opentelemetry.sdk.trace", "otel"), ("torch", ""), ("train", ""), ("", "")]
)
def test_a_missing_module_is_named_with_its_extra(module: str, extra: str) -> None:
    assert install_line(module) == (f"pip install 'reflectune[{extra}]'" if extra else "")


@pytest.mark.slow
def test_answering_and_evaluating_need_no_trainer() -> None:
    """All modules below `train` are imported, and TRL's trainer is asked for last.

    The server's are left out: Gradio needs pandas.
    """
    code = f"""
import importlib, pkgutil, sys
sys.modules.update(dict.fromkeys({TRAINERS}))  # an import of one raises ModuleNotFoundError
import reflectune
folders = ("core", "formats", "models", "metrics", "retrieval", "data_builders", "inference")
found = pkgutil.walk_packages(reflectune.__path__, "reflectune.")
names = [one.name for one in found if one.name.split(".")[1] in folders and ".serving" not in one.name]
for name in names:
    importlib.import_module(name)
print(len(names))
from reflectune.core.entry_point import entry_point
entry_point(lambda: importlib.import_module("reflectune.train.answer_rewards.run"))()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert int(ended.stdout) > 200
    assert ended.stderr.splitlines()[-1] == "error: trl is not installed: pip install 'reflectune[train]'"
    assert ended.returncode == 2
