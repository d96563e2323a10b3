"""The command that keeps questions which are unlike each other, up to the data set that others read."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.core.types import Entry, Question
from reflectune.data_builders import downsample
from reflectune.data_builders.downsampling.run import Choice, write_subset
from reflectune.formats.dataset import Dataset, write_questions
from reflectune.formats.knowledge_base import write_knowledge_base
from reflectune.retrieval.encoders.checkpoints import find_checkpoint
from reflectune.retrieval.encoders.presets import text_settings
from reflectune.retrieval.encoders.text_encoder import TextEncoder

TEXTS = {
    "val_unseen_question": ["What colour is it?", "Where was this animal first found?", "What colour is it?"],
    "val_unseen_entity": ["Where was this animal first found?", "How tall is this tower?"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five questions in two splits, of which two were asked before, about one picture in a folder of its own."""
    Image.new("RGB", (8, 8)).save(tmp_path / "picture.png")
    data = tmp_path / "data"
    write_knowledge_base(data / "knowledge", [Entry("a", "A")], name="kb")
    for split, texts in TEXTS.items():
        questions = [Question(f"{split}_{n}", "picture.png", text, split=split) for n, text in enumerate(texts)]
        write_questions(data, split, questions)
    (data / "probes.jsonl").write_text("")
    manifest = {"name": "owls", "metric": "infoseek", "fingerprint": "f", "image_root": "..", "looks": {"a": 1}}
    manifest |= {"knowledge": {"entries": 1}, "made_with": {"questions": "own", "limit": 0}, "sources": {}, "parts": {}}
    (data / "dataset.json").write_text(json.dumps(manifest))
    return data


@pytest.fixture(scope="module")
def encoder() -> TextEncoder:
    return TextEncoder(find_checkpoint("miniature/text"), text_settings("miniature/text"), torch.device("cpu"), "")


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> Path:
    output = folder.parent / "few"
    flags = ["--dataset", str(folder), "--device", "cpu", "--output", str(output)]
    monkeypatch.setattr(sys, "argv", ["downsample", *flags, *more])
    downsample.main()
    return output


def kept(output: Path) -> list[str]:
    return [question.id for split in TEXTS for question in Dataset(output).questions(split)]


def test_what_is_kept_is_a_data_set_with_the_pictures_and_the_knowledge_of_the_whole_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = run(folder, monkeypatch, "--threshold", "0.99")
    assert kept(output) == ["val_unseen_question_0", "val_unseen_question_1", "val_unseen_entity_1"]
    printed = capsys.readouterr().out
    assert f"{output}: 3 of 5 questions of val_unseen_question, val_unseen_entity\n  threshold 0.99: " in printed
    assert "95 % at most 1.000" in printed
    few, whole = Dataset(output), Dataset(folder)
    assert few.knowledge.fingerprint == whole.knowledge.fingerprint
    assert load_image(few.questions("val_unseen_entity")[0].image, root=few.image_roots).size == (8, 8)
    assert few.manifest["looks"] == {"a": 1}
    assert few.metric == whole.metric
    assert few.manifest["made_with"] == {"questions": "own"}
    assert "sources" not in few.manifest
    assert few.fingerprint != whole.fingerprint
    assert (output / "probes.jsonl").is_file()
    assert {path.name for path in output.iterdir()} == {"dataset.json", "questions", "probes.jsonl"}


def test_a_subset_has_subsets(folder: Path, encoder: TextEncoder) -> None:
    first, second = folder.parent / "first", folder.parent / "second"
    write_subset(Dataset(folder), encoder, Choice(tuple(TEXTS), 0.99), first)
    write_subset(Dataset(first), encoder, Choice(("val_unseen_entity",), 0.99), second)
    few = Dataset(second)
    (question,) = few.questions("val_unseen_entity")
    assert load_image(question.image, root=few.image_roots).size == (8, 8)
    assert few.knowledge_folder == folder / "knowledge"


def test_the_threshold_is_found_by_the_number_wanted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = run(folder, monkeypatch, "--questions", "3")
    found = json.loads((output / "dataset.json").read_text())["subset"]["threshold"]
    assert f"threshold {found}: " in capsys.readouterr().out
    assert len(kept(output)) == 3
    with pytest.raises(SystemExit):
        run(folder, monkeypatch, "--questions", "9")
    assert "few holds another data set" in capsys.readouterr().err


def test_the_same_command_again_writes_nothing_and_says_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = run(folder, monkeypatch, "--threshold", "0.99")
    first, files = capsys.readouterr().out, {path: path.stat().st_mtime_ns for path in output.rglob("*")}
    run(folder, monkeypatch, "--threshold", "0.99")
    assert capsys.readouterr().out == first
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*")} == files


def test_a_run_that_was_cut_off_encodes_the_rest_alone(
    folder: Path, encoder: TextEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    encode = TextEncoder.encode_queries

    def until(most: int) -> None:
        def some(self: TextEncoder, texts: list[str]) -> object:
            if len(read) >= most:
                raise KeyboardInterrupt
            read.extend(texts)
            return encode(self, texts)

        monkeypatch.setattr(TextEncoder, "encode_queries", some)

    choice, cut, straight = Choice(tuple(TEXTS), 0.99), folder.parent / "cut", folder.parent / "straight"
    until(4)
    with pytest.raises(KeyboardInterrupt):
        write_subset(Dataset(folder), encoder, choice, cut, block=2)
    assert not (cut / "dataset.json").exists()
    until(9)
    write_subset(Dataset(folder), encoder, choice, cut, block=2)
    assert read == [text for texts in TEXTS.values() for text in texts]
    monkeypatch.undo()
    write_subset(Dataset(folder), encoder, choice, straight, block=2)
    files = {path.relative_to(straight): path.read_bytes() for path in straight.rglob("*") if path.is_file()}
    assert {path.relative_to(cut): path.read_bytes() for path in cut.rglob("*") if path.is_file()} == files


def test_a_dry_run_counts_and_writes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = run(folder, monkeypatch, "--dry_run")
    assert "would keep about 500 of 5 questions of val_unseen_question, val_unseen_entity" in capsys.readouterr().out
    assert not output.exists()


def test_problems_are_told_together(folder: Path) -> None:
    config = downsample.DownsampleConfig(dataset=str(folder), splits=["train", "train"], threshold=1.5, tolerance=-1)
    problems = " ".join(config.problems())
    for part in ("`output` is needed", "names train twice", "`threshold`", "`tolerance`", "has no split train"):
        assert part in problems


def test_a_split_without_questions_is_an_error(folder: Path, encoder: TextEncoder) -> None:
    write_questions(folder, "empty", [])
    with pytest.raises(UserError, match="no questions in empty; name splits that have some"):
        write_subset(Dataset(folder), encoder, Choice(("empty",)), folder.parent / "few")
