"""The language of the tree: docstrings begin with a verb, and no sentence uses words that the field doesn't."""

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = ("core", "formats", "metrics", "models", "retrieval", "data_builders", "train", "inference", "examples")
MODULES = sorted(path for folder in (*CODE, "benchmarks", "scripts", "src") for path in (ROOT / folder).rglob("*.py"))
TESTS = sorted(path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__))
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "benchmarks").glob("*.md"))]
PAGES += [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
PAGES += [*sorted((ROOT / "configs").rglob("*.yaml")), *sorted((ROOT / "scripts").glob("*.sh"))]

FIRST_WORDS = re.compile(r"(What|Whether|How|Which|Where|Who|One|It)\b")
"""Not the first word of a docstring."""
WORDS = re.compile(
    r"\b(told|so many|of which|(?<!there )is no|hang(s|ing)?|mend(s|ed|ing)?|anew|beside|foret(ell|old)\w*"
    r"|another one)\b",
    re.IGNORECASE,
)
"""Not used in any sentence."""


def parsed(path: Path) -> ast.Module:
    """Parse a module. The garbage collector would walk kept trees again and again, which takes longer than parsing."""
    return ast.parse(path.read_text(encoding="utf-8"))


def statements(block: ast.AST) -> Iterator[ast.AST]:
    """Yield a block and all statements in it. Unlike `ast.walk` it doesn't visit expressions, nine of ten nodes."""
    yield block
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for statement in getattr(block, field, ()):
            yield from statements(statement)


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring, those below attributes included."""
    for node in statements(parsed(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def sentences(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each string and comment of a module."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    source = path.read_text(encoding="utf-8")
    # Tokenizing is slow: needed only where an odd word follows a `#`
    odd = any(WORDS.search(line[line.find("#") :]) for line in source.splitlines() if "#" in line)
    for token in tokenize.generate_tokens(io.StringIO(source).readline) if odd else ():
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def lines(path: Path) -> Iterator[tuple[int, str]]:
    return enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)


def odd_words(read: Callable[[Path], Iterable[tuple[int, str]]], paths: Iterable[Path]) -> list[str]:
    """Return the place of each word that the field doesn't use."""
    return [
        f"{path.relative_to(ROOT)}, line {line}: {match[0]}"
        for path in paths
        for line, text in read(path)
        for match in [WORDS.search(text)]
        if match
    ]


def test_a_docstring_begins_with_a_verb() -> None:
    found = [(path.relative_to(ROOT), line, text) for path in MODULES for line, text in docstrings(path)]
    assert len(found) > 1000
    assert not [f"{path}, line {line}: {text[:60]}" for path, line, text in found if FIRST_WORDS.match(text)]


def test_a_sentence_uses_the_fields_words() -> None:
    assert not odd_words(sentences, [path for path in MODULES if "examples" not in path.parts])


def test_docstrings_of_tests_and_examples_use_the_fields_words() -> None:
    assert not odd_words(docstrings, [*TESTS, *(ROOT / "examples").rglob("*.py")])


def test_pages_use_the_fields_words() -> None:
    assert not odd_words(lines, PAGES)


@pytest.mark.parametrize("text", ["What it reads.", "Where it lies."])
def test_a_noun_clause_is_noticed(text: str) -> None:
    assert FIRST_WORDS.match(text)


@pytest.mark.parametrize("text", ["the package is another one", "which is no folder", "Mend it.", "read anew"])
def test_an_odd_word_is_noticed(text: str) -> None:
    assert WORDS.search(text)
