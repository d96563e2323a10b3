"""Print the counts that this project keeps an eye on: size, names, words and tests.

    python scripts/measure_tree.py [ROOT]

It reads files as text and as syntax trees; nothing of the project is imported. `tests/test_words.py` and
`tests/test_layout.py` hold the counts that have a limit.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

LIBRARY: Final = ("core", "formats", "metrics", "models", "retrieval", "data_builders", "train", "inference")

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module


def python_files(root: Path, folders: tuple[str, ...] = LIBRARY) -> list[Path]:
    """Return the modules below the folders, sorted."""
    return sorted(path for folder in folders for path in (root / folder).rglob("*.py"))


def docstrings(path: Path) -> Iterator[tuple[Definition, str]]:
    """Yield each definition of a module that has a docstring, with the docstring."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, Definition) and (text := ast.get_docstring(node)):
            yield node, text


def class_names(root: Path) -> dict[str, list[str]]:
    """Return class names that several modules define, each with its modules; a leading underscore doesn't count."""
    found = defaultdict(list)
    for path in python_files(root):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name.lstrip("_")].append(str(path.relative_to(root)))
    return {name: paths for name, paths in sorted(found.items()) if len(paths) > 1}


def lines(paths: list[Path]) -> int:
    """Return the number of lines of all files."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def words(paths: list[Path]) -> int:
    """Return the number of words of all files."""
    return sum(len(path.read_text(encoding="utf-8").split()) for path in paths)


def measure(root: Path) -> dict[str, object]:
    """Return every count by its name."""
    library = python_files(root)
    modules = [path for path in library if path.name != "__init__.py"]
    texts = [text for path in library for _, text in docstrings(path)]
    functions = [
        node
        for path in library
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    all_words = sum(len(text.split()) for text in texts)
    whats = sum(len(re.findall(r"\bwhat\b", text, re.IGNORECASE)) for text in texts)
    benchmarks = sorted((root / "benchmarks").glob("*.py"))
    pages = [*(root / "docs").rglob("*.md"), *(root / "benchmarks").rglob("*.md"), root / "README.md"]
    pages += [root / "CHANGELOG.md", root / "CONTRIBUTING.md"]
    return {
        "library lines": lines(library),
        "library modules": len(modules),
        "library folders": len({path.parent for path in library}),
        "modules over 400 lines": sum(len(path.read_text(encoding="utf-8").splitlines()) > 400 for path in modules),
        "functions over 60 lines": sum((node.end_lineno or 0) - node.lineno + 1 > 60 for node in functions),
        "class names with two meanings": len(class_names(root)),
        "docstrings": len(texts),
        "'what' per 1,000 words of docstrings": round(1000 * whats / max(all_words, 1), 2),
        "docstrings that begin with 'What'": sum(text.startswith("What") for text in texts),
        "examples lines": lines(python_files(root, ("examples",))),
        "benchmark scripts": len(benchmarks),
        "benchmark lines": lines(benchmarks),
        "test lines": lines(python_files(root, ("tests",))),
        "words of docs and pages": words([page for page in pages if page.is_file()]),
        "YAML files": len(list((root / "configs").rglob("*.yaml"))),
    }


if __name__ == "__main__":
    for name, value in measure(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]).items():
        print(f"{name:40} {value:>9,}" if isinstance(value, int) else f"{name:40} {value:>9}")
