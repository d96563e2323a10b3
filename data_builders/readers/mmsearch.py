"""MMSearch: questions for a search engine, some with an image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from reflectune.core.rejected import Reject, stop
from reflectune.core.types import Question
from reflectune.data_builders.readers.files import one_path, read_parquet
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.rows import Placed, SourceRow, identifier, placed, text, texts

_META = ("area", "subfield", "timestamp", "gt_requery")


def questions(
    source: Path | Mapping[str, Any], *, split: str, images: ImageFolder, reject: Reject = stop, text_only: bool = False
) -> Iterator[Placed[Question]]:
    """Yield the questions of the end-to-end task.

    The Hub's `CaraJ/MMSearch`, `end2end.parquet`, has 300 rows of `sample_id`, `query`, `query_image` (null, or the
    bytes of a file), `image_search_result` (an image of a search engine's page, which is not read), `area`,
    `subfield`, `timestamp`, `gt_requery` (a good search query), `gt_answer` and the list `alternative_gt_answers`. All
    need a search. PMSR reads the rows with an image.

    Args:
        source: The Parquet file, or a folder of Parquet files.
        images: Its `save_to` is the folder that the images are written to.
        text_only: Keep rows without an image, too, with `Question.image` "".

    Raises:
        UserError: The source is not a path.
    """
    read = (
        (line, row) for line, row in read_parquet(one_path(source, "MMSearch"), reject) if text_only or _has_image(row)
    )
    return placed(read, partial(_question, split=split, images=images), reject)


def _has_image(row: SourceRow) -> bool:
    """Return False if the column is null. A row without the column is a bad row."""
    value = row.get("query_image", "absent")
    return any(part is not None for part in value.values()) if isinstance(value, dict) else value is not None


def _question(row: SourceRow, *, split: str, images: ImageFolder) -> Question:
    row.id_field = "sample_id"
    others = texts(row, "alternative_gt_answers", default=(), empty=True)
    return Question(
        id=identifier(row, "sample_id"),
        image=images.keep(row, "query_image", row.get("query_image")) if _has_image(row) else "",
        text=text(row, "query"),
        answers=tuple(dict.fromkeys((text(row, "gt_answer"), *others))),
        split=split,
        requires_retrieval=True,
        meta={name: str(row[name]) for name in _META if row.get(name) not in (None, "")},
    )
