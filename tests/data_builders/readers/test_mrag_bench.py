from pathlib import Path

import pytest

from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.data_builders.readers.images import ImageFolder

from .conftest import encoded, parquet, read_set

QUERY, *EVIDENCE = [{"bytes": encoded(colour, "PNG"), "path": None} for colour in ("red", "blue", "green", "white")]


def row(**changes: object) -> dict[str, object]:
    return {
        "id": "7",
        "aspect": "Perspective",
        "scenario": "Angle",
        "image": QUERY,
        "gt_images": EVIDENCE[:2],
        "retrieved_images": EVIDENCE[1:],
        "question": "Which animal is it?",
        "A": "otter",
        "B": "stoat",
        "C": "weasel",
        "D": "mink",
        "answer_choice": "B",
        "answer": "stoat",
        "image_type": "Animal",
        "source": "ImageNet",
        **changes,
    }


def read(path: Path, tmp_path: Path, **options: object) -> list[Question]:
    images = ImageFolder(tmp_path / "out", tmp_path / "out" / "images")
    return read_set("mrag_bench", path, images, split="test", **options)


SEVERAL = (
    "You will be given one question concerning several images. The first image is the input image, others are "
    "retrieved examples to help you. "
)
TEXT = (
    "Answer with the option's letter from the given choices directly.\n"
    "Which animal is it?\n Choices:\nA: otter\nB: stoat\nC: weasel\nD: mink"
)


@pytest.mark.parametrize(
    ("options", "changes", "shown"),
    [
        ({}, {}, EVIDENCE[:2]),
        ({"evidence": "retrieved"}, {}, EVIDENCE[1:]),
        ({"evidence": "none"}, {}, []),
        ({"evidence": "retrieved"}, {"scenario": "Incomplete"}, EVIDENCE[1:2]),
    ],
)
def test_the_querys_image_comes_first_and_then_the_evidence(tmp_path: Path, options, changes, shown) -> None:
    (question,) = read(parquet(tmp_path / "test.parquet", row(**changes)), tmp_path, **options)
    meta = {name: row(**changes)[name] for name in ("aspect", "scenario", "image_type", "source", "answer")}
    assert question == Question(
        *("7", question.image, SEVERAL + TEXT if shown else TEXT, ("B",), None, "string", "test", True),
        meta=meta,
        more_images=question.more_images,
    )
    images = [(tmp_path / "out" / path).read_bytes() for path in question.images]
    assert images == [each["bytes"] for each in (QUERY, *shown)]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"answer_choice": "E"}, "field `answer_choice`: is 'E'; it must be one of A, B, C, D"),
        ({"C": None}, "field `C`"),
        ({"gt_images": None}, "field `gt_images`: is null, not an image"),
        ({"gt_images": [{"bytes": b"no image", "path": None}]}, "field `gt_images`: 8 bytes are not an image"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, change: dict[str, object], problem: str) -> None:
    path = parquet(tmp_path / "test.parquet", row(**change))
    with pytest.raises(UserError, match=f"test.parquet:1: id 7: {problem}"):
        read(path, tmp_path)


def test_unknown_evidence_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="`evidence` is one of gt, retrieved, none; found `all`"):
        read(parquet(tmp_path / "test.parquet", row()), tmp_path, evidence="all")
