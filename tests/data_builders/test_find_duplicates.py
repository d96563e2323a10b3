"""The command that lists test pictures in a knowledge base, up to the index that is built without them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from reflectune.core.types import Entry, Question
from reflectune.data_builders import find_duplicates
from reflectune.formats.dataset import write_questions
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base
from reflectune.retrieval.indexes.near_duplicates import LIST, read_omission


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two entries with a picture each; a validation question shows the first one's, a test question another."""
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((96, 96)).save(tmp_path / f"{number}.png")
    Image.open(tmp_path / "0.png").resize((192, 192)).save(tmp_path / "asked.png")
    entries = [Entry("a", "A", images=("0.png",)), Entry("b", "B", images=("1.png",))]
    write_knowledge_base(tmp_path / "knowledge", entries, name="kb")
    for split, image in (("val", "asked.png"), ("test", "2.png")):
        write_questions(tmp_path, split, [Question(split, image, "What?", split=split)])
    (tmp_path / "dataset.json").write_text('{"fingerprint": "f"}')
    return tmp_path


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> None:
    flags = ["--dataset", str(folder), "--distance", "6", "--output", str(folder / "out")]
    monkeypatch.setattr(sys, "argv", ["find_duplicates", *flags, *more])
    find_duplicates.main()


def test_the_list_is_what_build_index_leaves_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("imagehash", reason="an extra: pip install 'reflectune[dedup]'")
    run(folder, monkeypatch, "--splits", "val", "test")
    (row,) = map(json.loads, (folder / "out" / LIST).read_text().splitlines())
    assert (row["entry"], row["image"], row["of"]) == ("a", "0.png", "asked.png")
    assert "1 of 2 pictures, of 1 entries, are within 6 bits of 1 of 2 test pictures" in capsys.readouterr().out
    kb = KnowledgeBase(folder / "knowledge")
    kept = {entry.id: entry.images for entry in read_omission(folder / "out" / LIST, kb).without(kb)}
    assert kept == {"a": (), "b": ("1.png",)}
    run(folder, monkeypatch, "--splits", "test")
    assert (folder / "out" / LIST).read_text() == ""


def test_a_dry_run_counts_and_writes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(folder, monkeypatch, "--splits", "val", "--dry_run")
    assert f"would compare 2 pictures of {folder}/knowledge with 1 of val\n" in capsys.readouterr().out
    assert not (folder / "out").exists()


def test_problems_are_told_together(folder: Path) -> None:
    config = find_duplicates.DuplicatesConfig(dataset=str(folder), knowledge=str(folder), distance=65, splits=["train"])
    problems = " ".join(config.problems())
    for part in ("`output` is needed", "has no kb.json", "`distance`", "has no split train"):
        assert part in problems
