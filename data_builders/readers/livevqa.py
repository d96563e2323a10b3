"""LiveVQA: an easy and a hard question about each image of recent news, papers and videos."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from reflectune.core.rejected import Reject, stop
from reflectune.core.types import Question
from reflectune.data_builders.readers.files import files_by_role
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.json_documents import read_json_array
from reflectune.data_builders.readers.rows import Placed, SourceRow, each, identifier, mapping, placed, text, texts

ROLES = ("questions", "details")
"""Files of the research preview by role; `questions` is needed."""


def questions(
    source: Path | Mapping[str, Any], *, split: str, images: ImageFolder, reject: Reject = stop
) -> Iterator[Placed[Question]]:
    """Yield the questions of either release; the fields of a row distinguish them.

    The research preview (`ONE-Lab/LiveVQA-Research-Preview` on the Hub) is a JSON array `qa.json` of `sample_id`,
    `query`, `query_image` (`image/….jpg`, maybe with a leading slash) and `gt_answer`. `qa_detailed.json` has the
    `topic` of each `sample_id`, and the article, which is not read.

    A `benchmark.json` (`liveVQA_benchmarks/{News,Paper,Video}` of github.com/fumingyang2004/LIVEVQA) is a JSON array
    of `id`, `img_path`, `source`, `time` and two questions, `level1_qa` (about the image) and `level2_qa` (about its
    background). Its `Ground_Truth` is the letter of one of the `options`; `Ground_Truth_List` has the accepted texts.
    The ids are `<id>_level1` and `<id>_level2`.

    All questions require retrieval, since they are about recent events.

    Args:
        source: A `qa.json` or `benchmark.json`, or the two files of the preview as `{questions: …, details: …}`.
        images: Folder of the images, or for the preview the parent of `image`.
        reject: Called with each bad row. A row with one bad question is rejected.

    Raises:
        UserError: A role is unknown or missing.
    """
    files = files_by_role(source, ROLES, "LiveVQA")
    details = read_json_array(files["details"], reject) if "details" in files else ()
    topics = dict(each(details, lambda row: (_sample(row), text(row, "topic", default="")), reject))
    make = partial(_questions, split=split, images=images, topics=topics)
    for row_questions, line in placed(read_json_array(files["questions"], reject), make, reject):
        yield from ((question, line) for question in row_questions)


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
    return identifier(row, "sample_id")


def _preview_image(row: SourceRow, images: ImageFolder) -> str:
    """Return the path of an image below the folder `image`, which `images` may be or contain."""
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
