"""The house: nobody imports upwards, a package's `__init__.py` holds no code, and every YAML fits its entry point."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import yaml

from reflectune.core.config import _check_yaml, _field_types
from reflectune.data_builders.agreement_config import CompareConfig
from reflectune.data_builders.build_world import WorldConfig
from reflectune.data_builders.conversion.config import ConvertConfig
from reflectune.data_builders.mr2ag_config import BuildConfig
from reflectune.inference.config import AnswerConfig, EvaluateConfig
from reflectune.retrieval.build_index import IndexConfig
from reflectune.train.config import SftConfig

ROOT = Path(__file__).parents[1]
FLOORS = {"core": 0, "metrics": 1, "models": 1, "retrieval": 2, "data_builders": 3, "train": 4, "inference": 4}
ENTRY_SCRIPTS = {"metrics/score.py", "models/miniature/pretrain.py"}
"""Entry scripts stand above all floors, whichever folder they are in."""

MODULES = sorted(path for floor in FLOORS for path in (ROOT / floor).rglob("*.py"))
CONFIGS: dict[str, Any] = {
    "annotators.yaml": CompareConfig,
    "world.yaml": WorldConfig,
    "index.yaml": IndexConfig,
    "mr2ag_data.yaml": BuildConfig,
    "infoseek_data.yaml": BuildConfig,
    "evqa_data.yaml": BuildConfig,
    "nq_data.yaml": BuildConfig,
    "mr2ag_full.yaml": SftConfig,
    "mr2ag_lora.yaml": SftConfig,
    "evaluate.yaml": EvaluateConfig,
    "answer.yaml": AnswerConfig,
}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_imports_upwards(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    if name in ENTRY_SCRIPTS:
        return
    own = name.split("/")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("reflectune."):
            floor = str(node.module).split(".")[1]
            assert floor == own or FLOORS[floor] < FLOORS[own], f"{name} imports {node.module}"


@pytest.mark.parametrize(
    "path", [p for p in MODULES if p.name == "__init__.py"], ids=lambda path: str(path.relative_to(ROOT))
)
def test_a_packages_init_holds_a_docstring_alone(path: Path) -> None:
    (statement,) = ast.parse(path.read_text(encoding="utf-8")).body
    assert isinstance(statement, ast.Expr)


@pytest.mark.parametrize("path", sorted((ROOT / "configs").rglob("*.yaml")), ids=lambda path: path.name)
def test_every_config_fits_its_entry_point(path: Path) -> None:
    if path.parent.name == "accelerate":
        assert yaml.safe_load(path.read_text())["compute_environment"] == "LOCAL_MACHINE"
        return
    kind = ConvertConfig if path.parent.name == "data" else CONFIGS[path.name]
    assert _check_yaml(["--config", str(path)], _field_types(kind)) == []
