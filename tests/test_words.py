"""The language of the tree: docstrings begin with a verb, and no sentence uses words that the field doesn't."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = ("core", "formats", "metrics", "models", "retrieval", "data_builders", "train", "inference", "examples")
MODULES = sorted(path for folder in (*CODE, "benchmarks", "scripts", "src") for path in (ROOT / folder).rglob("*.py"))
TESTS = sorted(path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__))
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "benchmarks").glob("*.md"))]
PAGES += [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]

FIRST_WORDS = re.compile(r"(What|Whether|How|Which|Where|Who|One|It)\b")
"""Not the first word of a docstring."""
WORDS = re.compile(
    r"\b(told|so many|of which|(?<!there )is no|hang(s|ing)?|mend(s|ed|ing)?|anew|beside|foret(ell|old)\w*"
    r"|another one)\b",
    re.IGNORECASE,
)
"""Not used in any sentence."""


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring, those below attributes included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def sentences(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each string and comment of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_docstring_begins_with_a_verb(path: Path) -> None:
    found = [(line, text) for line, text in docstrings(ast.parse(path.read_text(encoding="utf-8")))]
    assert not [f"line {line}: {text[:60]}" for line, text in found if FIRST_WORDS.match(text)]


@pytest.mark.parametrize("path", [path for path in MODULES if "examples" not in path.parts], ids=name)
def test_a_sentence_uses_the_fields_words(path: Path) -> None:
    found = sentences(path.read_text(encoding="utf-8"))
    assert not [f"line {line}: {match[0]}" for line, text in found for match in [WORDS.search(text)] if match]


@pytest.mark.parametrize("path", [*TESTS, *sorted((ROOT / "examples").rglob("*.py"))], ids=name)
def test_docstrings_of_tests_and_examples_use_the_fields_words(path: Path) -> None:
    found = docstrings(ast.parse(path.read_text(encoding="utf-8")))
    assert not [f"line {line}: {match[0]}" for line, text in found for match in [WORDS.search(text)] if match]


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_a_page_uses_the_fields_words(path: Path) -> None:
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
    assert not [f"line {line}: {match[0]}" for line, text in lines for match in [WORDS.search(text)] if match]


@pytest.mark.parametrize("text", ["What it reads.", "Where it lies."])
def test_a_noun_clause_is_noticed(text: str) -> None:
    assert FIRST_WORDS.match(text)


@pytest.mark.parametrize("text", ["the package is another one", "which is no folder", "Mend it.", "read anew"])
def test_an_odd_word_is_noticed(text: str) -> None:
    assert WORDS.search(text)
