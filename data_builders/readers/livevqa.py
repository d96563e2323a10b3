"""LiveVQA: questions on pictures of recent news, papers and videos, each picture with an easy and a hard question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from reflectune.core.errors import UserError
from reflectune.core.rejected import Reject, stop
from reflectune.core.types import Question
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.json_documents import read_json_array
from reflectune.data_builders.readers.rows import Placed, SourceRow, each, mapping, placed, text, texts

ROLES = ("questions", "details")
"""The files of the research preview, by role; `questions` alone is needed."""


def questions(
    source: Path | Mapping[str, Any], *, split: str, images: ImageFolder, reject: Reject = stop
) -> Iterator[Placed[Question]]:
    """The questions of either published form, told apart by the fields of a row.

    The research preview (`ONE-Lab/LiveVQA-Research-Preview` on the Hub) is a JSON array `qa.json` of `sample_id`,
    `query`, `query_image` (`image/….jpg`, with or without a slash before it) and `gt_answer`. `qa_detailed.json` has
    the `topic` of each `sample_id`, and the article, which is not read.

    A `benchmark.json` (`liveVQA_benchmarks/{News,Paper,Video}` of github.com/fumingyang2004/LIVEVQA) is a JSON array
    of `id`, `img_path`, `source`, `time` and two questions, `level1_qa` (what the picture shows) and `level2_qa` (what
    must be known of it). Its `Ground_Truth` is the letter of one of the `options`; the texts that count as right are in
    `Ground_Truth_List`. The questions are called `<id>_level1` and `<id>_level2`.

    Every question is about what a model can't know by heart, so all of them require retrieval.

    Args:
        source: A `qa.json` or `benchmark.json`, or the two files of the preview as `{questions: …, details: …}`.
        split: Name of the split.
        images: The folder with the pictures, or, for the preview, the folder that `image` is in.
        reject: Called with each bad row. A row with one bad question is left out whole.

    Raises:
        UserError: A role is unknown or missing.
    """
    files = source if isinstance(source, Mapping) else {"questions": source}
    if "questions" not in files or set(files) - set(ROLES):
        raise UserError(f"LiveVQA's source has the roles {', '.join(files) or 'none'}; it takes {' and '.join(ROLES)}")
    topics = _topics(Path(files["details"]), reject) if files.get("details") else {}
    make = partial(_questions, split=split, images=images, topics=topics)
    for row_questions, place in placed(read_json_array(Path(files["questions"]), reject), make, reject):
        yield from ((question, place) for question in row_questions)


def _topics(path: Path, reject: Reject) -> dict[str, str]:
    """The topic of every sample."""

    def topic(row: SourceRow) -> tuple[str, str]:
        return _sample(row), text(row, "topic", default="")

    return dict(each(read_json_array(path, reject), topic, reject))


def _questions(row: SourceRow, *, split: str, images: ImageFolder, topics: Mapping[str, str]) -> list[Question]:
    if "level1_qa" in row or "level2_qa" in row:
        image = images.path(row, "img_path", text(row, "img_path"))
        return [_of_level(row, level, image, split) for level in ("level1", "level2")]
    sample = _sample(row)
    topic = topics.get(sample, "")
    return [
        Question(
            id=sample,
            image=_preview_image(row, images),
            text=text(row, "query"),
            answers=texts(row, "gt_answer"),
            split=split,
            requires_retrieval=True,
            meta={"topic": topic} if topic else {},
        )
    ]


def _sample(row: SourceRow) -> str:
    row.id_field = "sample_id"
    value = row.get("sample_id")
    return str(value) if isinstance(value, int) else text(row, "sample_id")


def _preview_image(row: SourceRow, images: ImageFolder) -> str:
    """The picture below the folder `image`, wherever `images` starts."""
    name = text(row, "query_image").lstrip("/")
    return images.find_for(row, "query_image", name) or images.path(row, "query_image", name.removeprefix("image/"))


def _of_level(row: SourceRow, level: str, image: str, split: str) -> Question:
    question = mapping(row, f"{level}_qa")
    meta = {
        "level": level[-1],
        "question_type": text(question, "question_type", default=""),
        "source": text(row, "source", default=""),
        "time": text(row, "time", default=""),
    }
    return Question(
        id=f"{text(row, 'id')}_{level}",
        image=image,
        text=text(question, "question"),
        answers=texts(question, "Ground_Truth_List"),
        split=split,
        requires_retrieval=True,
        meta={name: value for name, value in meta.items() if value},
    )
