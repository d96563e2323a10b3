"""A trial's hours: counts over rates, divided among a launch's processes."""

import pytest
import torch

from reflectune.core.launching import Processes
from reflectune.core.types import Entry
from reflectune.formats.knowledge_base import write_knowledge_base
from reflectune.retrieval.build_index import build_index
from reflectune.retrieval.encoders.checkpoints import find_checkpoint
from reflectune.retrieval.encoders.settings import TextSettings
from reflectune.retrieval.encoders.text_encoder import TextEncoder
from reflectune.retrieval.indexes.text_index import Cutting
from reflectune.retrieval.indexes.trial import Part, describe_time, try_entries, try_passages


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, "3 h on one process of this kind: 2.0 images/s, 4.0 titles/s,"), (2, "1 h 30 min on 2 proc")],
    ids=["one", "two"],
)
def test_hours_are_counts_over_rates_and_processes(count: int, expected: str) -> None:
    parts = [Part("images", 14_400, 2.0), Part("titles", 14_400, 4.0)]
    assert expected in describe_time(parts, Processes(0, count))


@pytest.mark.parametrize("batch_size", [2, 64], ids=["several", "one_batch"])
@pytest.mark.parametrize("workers", [0, 2], ids=["alone", "ahead"])
def test_images_and_titles_of_a_knowledge_base_are_tried(kb, encoder, batch_size: int, workers: int) -> None:
    images, titles = try_entries(kb, encoder, batch_size=batch_size, workers=workers)
    assert (images.kind, images.count, titles.kind, titles.count) == ("images", 10, "titles", 10)
    assert images.rate > 0
    assert titles.rate > 0


def test_entries_without_images_have_their_titles_tried(encoder, tmp_path) -> None:
    kb = write_knowledge_base(tmp_path / "kb", [Entry("a", "Owl"), Entry("b", "Wren")], name="birds")
    (titles,) = try_entries(kb, encoder, batch_size=8, workers=0)
    assert (titles.kind, titles.count) == ("titles", 2)


def test_bad_images_do_not_end_a_trial(kb, encoder, tmp_path) -> None:
    for path in (tmp_path / "images").iterdir():
        path.write_text("no image")
    images, titles = try_entries(kb, encoder, batch_size=4, workers=0)
    assert images.rate == 0
    assert titles.rate > 0


def test_passages_are_tried_and_a_dry_run_says_what_they_take(kb, tmp_path, capsys) -> None:
    encoder = TextEncoder(find_checkpoint("miniature/text"), TextSettings(), torch.device("cpu"), "")
    part = try_passages(kb, encoder, Cutting(), 7)
    assert (part.kind, part.count) == ("passages", 7)
    assert part.rate > 0
    output = tmp_path / "texts"
    flags = ["--knowledge", str(kb.folder), "--output", str(output), "--device", "cpu", "--dry_run"]
    build_index.main(["--rows", "passages", *flags, "--store", "faiss"])
    printed = capsys.readouterr().out
    assert "searched by faiss: set by `store`" in printed
    assert "while it is built" in printed
    assert "passages/s, by a trial here" in printed
    assert not output.exists()
