"""MRAG-Bench (arXiv 2410.08182): multiple-choice questions about an image, with further images as evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from reflectune.core.errors import UserError
from reflectune.core.rejected import Reject, stop
from reflectune.core.types import Question
from reflectune.data_builders.readers.files import one_path, read_parquet
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.rows import Placed, SourceRow, identifier, one_of, placed, text
from reflectune.metrics.official.mrag_bench import LETTERS

Evidence = Literal["gt", "retrieved", "none"]
_META = ("aspect", "scenario", "image_type", "source", "answer")
_SEVERAL = (
    "You will be given one question concerning several images. The first image is the input image, others are "
    "retrieved examples to help you. "
)
_INSTRUCTION = "Answer with the option's letter from the given choices directly."


def questions(
    source: Path | Mapping[str, Any],
    *,
    split: str,
    images: ImageFolder,
    reject: Reject = stop,
    evidence: Evidence = "gt",
) -> Iterator[Placed[Question]]:
    """Yield the questions of the Hub's `uclanlp/MRAG-Bench`, 1,353 rows.

    A row has `id`, `aspect`, `scenario`, `image` (the query), the lists `gt_images` and `retrieved_images` (five
    images), `question`, the choices `A` to `D`, `answer_choice` (a letter), `answer`, `image_type` and `source`. The
    text is the official prompt: the request for a letter, the question and its choices. The accepted answer is the
    letter.

    Args:
        source: A Parquet file, or a folder of Parquet files.
        images: Its `save_to` is the folder that the images are written to.
        evidence: Images shown after the query's: `gt_images`, `retrieved_images`, or none. Of the scenario
            `Incomplete` the first is shown, as in the official program.

    Raises:
        UserError: The source is not a path, or `evidence` is unknown.
    """
    if evidence not in get_args(Evidence):
        raise UserError(f"`options`: `evidence` is one of {', '.join(get_args(Evidence))}; found `{evidence}`")
    read = read_parquet(one_path(source, "MRAG-Bench"), reject)
    return placed(read, partial(_question, split=split, images=images, evidence=evidence), reject)


def _question(row: SourceRow, *, split: str, images: ImageFolder, evidence: Evidence) -> Question:
    choices = "\n".join(f"{letter}: {text(row, letter)}" for letter in LETTERS)
    field = f"{evidence}_images"
    shown = [] if evidence == "none" else images.keep_all(row, field, row.get(field))
    return Question(
        id=identifier(row, "id"),
        image=images.keep(row, "image", row.get("image")),
        text=f"{_SEVERAL if shown else ''}{_INSTRUCTION}\n{text(row, 'question')}\n Choices:\n{choices}",
        answers=(one_of(row, "answer_choice", LETTERS),),
        split=split,
        requires_retrieval=True,
        meta={name: str(row[name]) for name in _META if row.get(name) not in (None, "")},
        more_images=tuple(shown[:1] if row.get("scenario") == "Incomplete" else shown),
    )
