"""The house: nobody imports upwards, no folders import each other in a circle, an `__init__.py` holds no code."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = {"core": 0, "metrics": 1, "models": 1, "retrieval": 2, "data_builders": 3, "train": 4, "inference": 4}
COMMANDS = {
    *(f"metrics/{name}.py" for name in ("score", "convert_bem")),
    "models/miniature/pretrain.py",
    "retrieval/build_index.py",
    *(f"data_builders/build_{name}.py" for name in ("gallery", "mr2ag", "plain", "world")),
    *(f"data_builders/{name}.py" for name in ("compare_annotators", "convert", "derive_labels", "export", "probe")),
    *(f"inference/{name}.py" for name in ("answer", "evaluate", "sweep", "tables")),
    *(f"train/{name}.py" for name in ("assemble_llava", "estimate", "grpo", "merge", "sft")),
}
"""Entry scripts stand above all folders of their floor, the one they lie in too."""
ABOVE_ALL_FLOORS = {"metrics/score.py", "models/miniature/pretrain.py", "train/grpo.py"}

MODULES = sorted(path for floor in FLOORS for path in (ROOT / floor).rglob("*.py"))


def imported(path: Path) -> Iterator[Path]:
    """The modules of the project that a module imports, relative to the root."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("reflectune."):
            base = Path(*str(node.module).split(".")[1:])
            for alias in node.names:
                within = base / f"{alias.name}.py"
                package = base / alias.name / "__init__.py"
                yield next((file for file in (within, package) if (ROOT / file).is_file()), base.with_suffix(".py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_imports_upwards(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    if name in ABOVE_ALL_FLOORS:
        return
    own = name.split("/")[0]
    for module in imported(path):
        floor = module.parts[0]
        assert floor == own or FLOORS[floor] < FLOORS[own], f"{name} imports {module}"


def test_no_folders_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for path in MODULES:
        name = path.relative_to(ROOT)
        if str(name) not in COMMANDS:
            folders = {str(module.parent) for module in imported(path)}
            graph.setdefault(str(name.parent), set()).update(folders - {str(name.parent)})
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_a_command_is_imported_by_no_module() -> None:
    users = [f"{path.relative_to(ROOT)} imports {module}" for path in MODULES for module in imported(path)]
    assert not [user for user in users if user.split(" imports ")[1] in COMMANDS]


def test_every_command_is_there_and_runs_as_one() -> None:
    for name in COMMANDS:
        assert '\nif __name__ == "__main__":\n' in (ROOT / name).read_text(encoding="utf-8"), name
    scripts = {
        str(path.relative_to(ROOT)) for path in MODULES if "\nif __name__ ==" in path.read_text(encoding="utf-8")
    }
    assert scripts - {"inference/scoring/paper_numbers.py"} == COMMANDS  # that one prints a page of docs


@pytest.mark.parametrize(
    "path", [p for p in MODULES if p.name == "__init__.py"], ids=lambda path: str(path.relative_to(ROOT))
)
def test_a_packages_init_holds_a_docstring_alone(path: Path) -> None:
    (statement,) = ast.parse(path.read_text(encoding="utf-8")).body
    assert isinstance(statement, ast.Expr)


def test_every_folder_of_modules_is_in_the_wheel() -> None:
    """Packages are named one by one, since each top folder is mapped into the namespace."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    folders = {".".join(("reflectune", *path.parent.relative_to(ROOT).parts)) for path in MODULES}
    assert folders == set(settings["packages"]) - {"reflectune.configs"}
