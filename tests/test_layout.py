"""The house: nobody imports upwards or in a circle, an `__init__.py` holds no code, tests read no private names."""

import ast
import functools
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from mypy import modulefinder
from mypy.config_parser import parse_config_file
from mypy.modulefinder import compute_search_paths
from mypy.options import Options

from reflectune import cli

ROOT = Path(__file__).parents[1]
LOWEST_FIRST = "core formats models metrics retrieval data_builders inference train examples".split()
FLOORS = {folder: floor for floor, folder in enumerate(LOWEST_FIRST)}
MODULES = sorted(path for floor in FLOORS for path in (ROOT / floor).rglob("*.py"))
COMMANDS = {
    str(path.relative_to(ROOT))
    for path in MODULES
    for text in [path.read_text(encoding="utf-8")]
    if "\n@command(" in text or (path.is_relative_to(ROOT / "examples") and "\nif __name__ ==" in text)
}
"""Entry scripts stand above all folders of their floor, the one they lie in too."""

TESTS = sorted((ROOT / "tests").rglob("*.py"))
PRIVATE_OF_LIBRARIES = {
    *("os._exit", "torch.utils._pytree", "torch.utils._python_dispatch"),
    "backend_registration._DummyBackendModule",
    "backend_registration._setup_privateuseone_for_python_backend",
}
"""Names of other projects that tests need and that have no public form."""


def imported(path: Path, *, for_annotations: bool = True) -> Iterator[Path]:
    """The modules of the project that a module imports, relative to the root."""
    return (module for module, is_unread in imports(path) if for_annotations or not is_unread)


@functools.cache
def imports(path: Path) -> list[tuple[Path, bool]]:
    """Each module of the project that a module imports, and True if it is imported for annotations alone."""
    nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    tests = [(node, node.test) for node in nodes if isinstance(node, ast.If)]
    checking = [node for node, test in tests if isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"]
    unread = {line for node in checking for line in node.body}
    return [(module, node in unread) for node in nodes for module in _imported(node)]


def _imported(node: ast.AST) -> Iterator[Path]:
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("reflectune."):
        base = Path(*str(node.module).split(".")[1:])
        for alias in node.names:
            within = base / f"{alias.name}.py"
            package = base / alias.name / "__init__.py"
            yield next((file for file in (within, package) if (ROOT / file).is_file()), base.with_suffix(".py"))


def test_no_module_imports_upwards() -> None:
    imported_by = [(path.relative_to(ROOT), module) for path in MODULES for module in imported(path)]
    own = {path: path.parts[0] for path, _ in imported_by}
    assert [
        f"{path} imports {module}"
        for path, module in imported_by
        if module.parts[0] != own[path] and FLOORS[module.parts[0]] >= FLOORS[own[path]]
    ] == []


def refuse_circles(graph: Mapping[str, Collection[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions count; those that only a type checker reads don't."""
    refuse_circles(
        {str(path.relative_to(ROOT)): [*map(str, imported(path, for_annotations=False))] for path in MODULES}
    )


def test_no_folders_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for path in MODULES:
        name = path.relative_to(ROOT)
        if str(name) not in COMMANDS:
            folders = {str(module.parent) for module in imported(path)}
            graph.setdefault(str(name.parent), set()).update(folders - {str(name.parent)})
    refuse_circles(graph)


def test_a_command_is_imported_by_no_module() -> None:
    users = [f"{path.relative_to(ROOT)} imports {module}" for path in MODULES for module in imported(path)]
    assert not [user for user in users if user.split(" imports ")[1] in COMMANDS]


def test_commands_are_short_and_on_top_of_their_folder() -> None:
    library = {name for name in COMMANDS if not name.startswith("examples/")}
    listed = {f"{module.replace('.', '/')}.py" for modules in cli.GROUPS.values() for module in modules}
    assert listed == library
    assert {len(Path(name).parts) for name in listed} == {2}
    assert [name for name in listed if (ROOT / name).read_text(encoding="utf-8").count("\n") >= 100] == []


def test_a_packages_init_holds_a_docstring_alone() -> None:
    for path in (path for path in MODULES if path.name == "__init__.py"):
        (statement,) = ast.parse(path.read_text(encoding="utf-8")).body
        assert isinstance(statement, ast.Expr), path


def test_editors_and_installs_find_every_folder_by_a_link() -> None:
    """Each top folder is linked into `src/reflectune`. setuptools, pyright and mypy all look in `src`."""
    entries = {path.name: path for path in (ROOT / "src" / "reflectune").iterdir() if path.name != "__pycache__"}
    links = {name: path for name, path in entries.items() if path.suffix != ".py"}
    assert links.keys() == FLOORS.keys() | {"configs"}
    assert entries.keys() - links.keys() == {"__init__.py", "__main__.py", "api.py", "cli.py"}
    assert all(path.is_symlink() and path.resolve() == ROOT / name for name, path in links.items())
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    assert tools["setuptools"]["packages"]["find"]["where"] == tools["pyright"]["extraPaths"] == ["src"]
    assert "$MYPY_CONFIG_FILE_DIR/src" in tools["mypy"]["mypy_path"].split(":")


def test_a_wheel_has_every_data_file() -> None:
    """All but logs of pre-training, and files that `examples/lmms_eval/run.sh` reads in a clone."""
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    packed = {
        path.relative_to(ROOT).as_posix()
        for package, globs in patterns.items()
        for pattern in globs
        for path in (ROOT / Path(*package.split(".")[1:])).glob(pattern)
    }
    tracked = subprocess.check_output(["git", "ls-files", *FLOORS, "configs"], cwd=ROOT, text=True).split()
    data = {name for name in tracked if not name.endswith((".py", ".log"))}
    assert {name for name in data - packed if not name.startswith("examples/lmms_eval/")} == set()


def test_a_type_checker_finds_an_import_in_the_tree() -> None:
    options = Options()
    parse_config_file(options, lambda: None, str(ROOT / "pyproject.toml"), sys.stdout, sys.stderr)
    paths = compute_search_paths([], options, str(Path(modulefinder.__file__).parent / "typeshed"))
    found = modulefinder.FindModuleCache(paths, fscache=None, options=options).find_module("reflectune.core.errors")
    assert found == str(ROOT / "src/reflectune/core/errors.py")


def is_private(dotted: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in dotted.split("."))


def called(function: ast.expr) -> str:
    """The last name of a called function."""
    return getattr(function, "attr", getattr(function, "id", ""))


def private_names(tree: ast.AST) -> Iterator[str]:
    """The private names that a test imports, reads of anything but its own `self`, or patches by their text."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Attribute):
            is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            names = [ast.unparse(node)] if is_private(node.attr) and not is_own else []
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and is_private(node.module or ""):
            names = [node.module or ""]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and called(node.func).endswith(("attr", "patch", "object")):
            names = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        yield from (name for name in names if is_private(name) and name not in PRIVATE_OF_LIBRARIES)


def test_no_test_reads_a_private_name() -> None:
    found = {str(path): [*private_names(ast.parse(path.read_text(encoding="utf-8")))] for path in TESTS}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "line",
    [
        "from reflectune.core.config import _fits",
        "from reflectune._core import config",
        "engine._decode(rows)",
        "monkeypatch.setattr(engine, '_decode', None)",
        "monkeypatch.setattr('reflectune.core.config._fits', None)",
        "getattr(engine, '_decode')",
    ],
)
def test_a_private_name_is_noticed(line: str) -> None:
    assert [*private_names(ast.parse(line))]
