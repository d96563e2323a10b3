"""The run at Wikipedia's scale: what it generates is read back by the readers, and tables are arithmetic."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from reflectune.core.types import Entry, Question, Section
from reflectune.data_builders.readers import infoseek, wiki6m, wiki18
from reflectune.data_builders.readers.images import Images

ROOT = Path(__file__).parents[2]
OWL = Entry(
    "Q7",
    'The "Owl" Tower',
    summary="A tower of stone.",
    sections=(Section("History", "It was built in 1920."), Section("Size", "It is 40 m high.")),
)


@pytest.fixture
def scale(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`benchmarks/scale.py`, imported as a script is."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("scale")


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`benchmarks/wikipedia_files.py`, imported as a script imports it."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("wikipedia_files")


def test_an_article_of_the_world_comes_back_through_the_reader_of_wiki6m(files: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "wiki.jsonl"
    files.write_lines(path, files.spread(files.wiki6m_lines(4), [files.article_of(OWL)], 5))

    first, *others = wiki6m.entries(path, images=Images(None))

    assert (first.id, first.title, first.summary) == (OWL.id, OWL.title, OWL.summary)
    assert first.sections == (Section("", OWL.summary), *OWL.sections)
    assert [entry.id for entry in others] == ["Q0", "Q1", "Q2", "Q3"]


def test_passages_come_back_through_the_reader_of_wiki18(files: ModuleType, tmp_path: Path) -> None:
    path, few = tmp_path / "wiki18.jsonl", list(files.passages_of(OWL))
    files.write_lines(path, files.spread(files.wiki18_lines(4), few, 6))

    entries = list(wiki18.entries(path))

    assert [entries[place].sections[0].text for place in (0, 3)] == [section.text for section in OWL.sections]
    assert {entries[place].title for place in (0, 3)} == {OWL.title}
    assert len({entry.id for entry in entries}) == 6
    assert len(entries[1].sections[0].text.split()) == 100


@pytest.mark.parametrize(
    ("answers", "limits", "kind"),
    [(("Wren", "a wren"), None, "string"), (("40",), (36.0, 44.0), "numerical")],
    ids=["string", "numerical"],
)
def test_questions_come_back_through_the_reader_of_infoseek(
    files: ModuleType, tmp_path: Path, answers: tuple[str, ...], limits: tuple[float, float] | None, kind: str
) -> None:
    asked = Question("q1", "images/owl/0.jpg", "Who?", answers, limits, split=files.SPLIT, entity_ids=("Q7",))
    path = tmp_path / "annotations.jsonl"
    files.write_lines(path, [json.dumps(files.annotation(asked))])

    ((question, _),) = infoseek.questions(path, split=files.SPLIT, images=Images(None))

    assert (question.id, question.text, question.split) == ("q1", "Who?", files.SPLIT)
    assert (question.answers, question.range, question.answer_type) == (answers, limits, kind)


def test_few_lines_are_spread_evenly_among_many(files: ModuleType) -> None:
    assert list(files.spread("abcdef", ["1", "2"], 8)) == ["1", "a", "b", "c", "2", "d", "e", "f"]


def test_a_finished_step_is_not_run_again(scale: ModuleType, tmp_path: Path) -> None:
    code = "import pathlib; p = pathlib.Path('runs.txt'); p.open('a').write('x'); b = bytearray(1 << 26); print(len(b))"
    place = f"import os; os.chdir({str(tmp_path)!r}); {code}; import time; time.sleep(0.3)"
    step = scale.Step("once more", ("-c", place), 5, tmp_path)

    first = scale.run(step, 0, tmp_path)

    assert scale.run(step, 0, tmp_path) == first
    assert (tmp_path / "runs.txt").read_text() == "x"
    assert first.printed.strip() == str(1 << 26)
    assert first.own > 1 << 26
    assert not first.continued


def test_a_step_that_fails_ends_the_run_and_goes_on_later(scale: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="`broken` ended with 3"):
        scale.run(scale.Step("broken", ("-c", "raise SystemExit(3)"), 5), 0, tmp_path)

    assert scale.run(scale.Step("broken", ("-c", "pass"), 5), 0, tmp_path).continued


def test_the_tables_of_the_documents_are_those_that_are_printed() -> None:
    script = ROOT / "benchmarks/scale.py"
    printed = subprocess.run([sys.executable, str(script), "--table"], check=True, capture_output=True, text=True)
    needs, hours = printed.stdout.strip().split("\n\n")
    text = (ROOT / "docs/scale.md").read_text(encoding="utf-8")

    assert len(needs.splitlines()) > 5
    for table in (needs, hours):
        assert f"\n\n{table}\n\n" in text


def test_needs_are_bytes_of_numbers(scale: ModuleType) -> None:
    rows = {row.split("|")[1].strip(): row.split("|") for row in scale.needs()}
    exact, memory, disk = (rows["wiki18, 21 M passages, e5-base-v2"][place].strip() for place in (3, 4, 5))

    numbers = 21e6 * 768
    assert exact == f"{4 * numbers / 1e9:.1f} GB"
    assert float(memory.split()[0]) == pytest.approx(numbers / 2 / 1e9, rel=0.1)  # half a byte each, and a little
    assert float(disk.split()[0]) == pytest.approx(2 * numbers / 1e9 + float(memory.split()[0]), abs=0.1)
