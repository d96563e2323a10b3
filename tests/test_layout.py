"""The house: nobody imports upwards, and a package's `__init__.py` holds no code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = {"core": 0, "metrics": 1, "models": 1, "retrieval": 2, "data_builders": 3, "train": 4, "inference": 4}
ENTRY_SCRIPTS = {"metrics/score.py", "models/miniature/pretrain.py", "train/grpo.py"}
"""Entry scripts stand above all floors, whichever folder they are in."""

MODULES = sorted(path for floor in FLOORS for path in (ROOT / floor).rglob("*.py"))


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
