"""Every YAML in `configs/` is valid for its command."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from reflectune import cli
from reflectune.core.config import parse_config
from reflectune.core.errors import UserError

ROOT = Path(__file__).parents[1]
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))
RUNS = [path for path in CONFIGS if path.parent.name not in ("accelerate", "lmms_eval") and path.name != "dvc.yaml"]
"""Configs of our commands; those of lmms-eval's runner are read in `tests/inference/lmms_eval`, those of DVC in
`tests/test_papers.py`."""
BY_FOLDER = {"data": "data_builders/convert.py", "mr2ag": "data_builders/build_mr2ag.py"}
"""The entry scripts of configs whose header doesn't name one."""

MODULES = {module.partition(".")[2]: module for modules in cli.GROUPS.values() for module in modules}

NOT_THERE_YET = re.compile(
    r"does not exist"  # data that a download or an earlier step makes
    r"|has no [\w.]+\.json"
    r"|there is no reflection\.json"
    r"|is not a folder"
    r"|must be an existing (file|folder), found runs/"
    r"|not found: "
    r"|pip install"  # an extra that this machine lacks
)
"""Problems that a config has because of where the test runs, not because of what it says."""


def header(path: Path) -> str:
    """The comment at the head of a config, a command that is cut by `\\` or by the comment's width in one piece."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    return " ".join(line.lstrip("# ").removesuffix("\\") for line in lines)


def command(path: Path) -> re.Match[str] | None:
    name = re.escape(path.relative_to(ROOT).as_posix())
    return re.search(
        rf"(?:-m reflectune\.(?P<module>[\w.]+)|reflectune (?P<command>\w+)|(?P<script>[\w/]+)\.py) "
        rf"--config {name}(?P<flags>.*)",
        header(path),
    )


def entry_script(path: Path) -> str:
    named_command = command(path)
    if named_command is None:
        return BY_FOLDER[path.parent.name]
    module = named_command["module"] or named_command["script"] or MODULES[named_command["command"]]
    return f"{module.replace('.', '/')}.py"


def config_class(script: str) -> Any:
    """The config class of an entry script's command."""
    module = importlib.import_module(f"reflectune.{script.removesuffix('.py').replace('/', '.')}")
    return getattr(module, Path(script).stem).kind


def problems(path: Path, *overrides: str) -> list[str]:
    """Return the problems of a config, but for missing files and keys that its command line gives."""
    named_command = command(path)
    given = re.findall(r"--(\w+)", named_command["flags"]) if named_command else []
    try:
        parse_config(config_class(entry_script(path)), argv=["--config", str(path), *overrides])
    except UserError as error:
        issues = str(error).splitlines()[1:]
        missing = [f"  `{key}` is needed" for key in given]
        return [issue for issue in issues if not NOT_THERE_YET.search(issue) and issue not in missing]
    return []


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.relative_to(ROOT / "configs").as_posix())
def test_a_config_is_right_by_its_entry_scripts_class(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert problems(path) == []


def test_a_wrong_value_or_key_of_a_config_is_found() -> None:
    """The test above can fail: only missing files are overlooked."""
    path = ROOT / "configs/recipes/mmkb_lora.yaml"
    assert any("learning_rate" in issue for issue in problems(path, "--learning_rate", "-1"))
    assert any("unknown key" in issue for issue in problems(path, "--learning_rates", "1"))


def test_every_evaluation_names_what_filters_for_naive_rag() -> None:
    """A baseline must not be weak by default: on the miniature it is everywhere the strongest filter that there is."""
    rerankers = {}
    for path in RUNS:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        if {"naive_rag", "tuned_baselines"} & set(values.get("pipelines", ())):
            rerankers[path.relative_to(ROOT)] = (values.get("reranker"), values.get("reranker_model", ""))
    assert len(rerankers) >= 3
    assert all(kind for kind, _ in rerankers.values()), rerankers
    shipped = {named for path, named in rerankers.items() if path.parent.name == "miniature"}
    assert shipped == {("embedding", "miniature/text")}
