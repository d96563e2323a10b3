"""InfoSeek-Human, questions written by people: MMSearch-R1's 2,000 with answers, and the release without."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from reflectune.core.errors import UserError
from reflectune.core.rejected import Reject, stop
from reflectune.core.types import Question
from reflectune.data_builders.readers import infoseek
from reflectune.data_builders.readers.files import one_path, read_parquet
from reflectune.data_builders.readers.fvqa import answers, question_text, row_id
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.rows import Placed, SourceRow, placed, rows, text


def questions(
    source: Path | Mapping[str, Any], *, split: str, images: ImageFolder, reject: Reject = stop
) -> Iterator[Placed[Question]]:
    """Yield the questions of one file, from one of two releases:

    - MMSearch-R1's `mmsearch_r1_infoseek_sub_2k.parquet`, in veRL's form: `prompt[{role, content}]`,
      `images[{bytes, path}]`, `reward_model{ground_truth, candidate_answers, style}`, `data_id`, `image_id` (OVEN's),
      `data_source` and `category`. `candidate_answers` is the text of a JSON list. `ground_truth` is the canonical
      answer and comes first. Numbers have no range, so no question is `numerical`. A row without `data_id` gets its
      file's name and its number as id, as in `mmsearch_r1_infoseek_sub_2k_0`.
    - InfoSeek's `infoseek_human.jsonl`: `data_id`, `image_id`, `question`, and no answers (see the reader `infoseek`).

    Args:
        source: A Parquet file, a folder of Parquet files, or `infoseek_human.jsonl` (`.gz` too).
        images: Folder of OVEN's images, for JSONL and for Parquet rows without an image; its `save_to` is the folder
            that the Parquet's images are written to.

    Raises:
        UserError: The source is not a path, or has another extension.
    """
    source = one_path(source, "InfoSeek-Human")
    if source.is_dir() or source.suffix.lower() == ".parquet":
        return placed(read_parquet(source, reject), partial(_question, split=split, images=images), reject)
    if source.name.lower().removesuffix(".gz").endswith(".jsonl"):
        return infoseek.questions(source, split=split, images=images, reject=reject)
    raise UserError(f"{source}: InfoSeek-Human is read from .parquet, a folder of such, or .jsonl (also `.gz`)")


def _question(row: SourceRow, *, split: str, images: ImageFolder) -> Question:
    row.id_field = "data_id"
    accepted = answers(row)
    meta = {name: text(row, name, default="") for name in ("image_id", "data_source", "category")}
    return Question(
        id=row_id(row),
        image=_image(row, images),
        text=question_text(row),
        answers=accepted,
        answer_type=infoseek.derived_kind(accepted[0]),
        split=split,
        requires_retrieval=True,
        meta={name: value for name, value in meta.items() if value},
    )


def _image(row: SourceRow, images: ImageFolder) -> str:
    found = rows(row, "images") if row.get("images") else []
    if len(found) > 1:
        raise row.bad("images", f"has {len(found)} images", "a question has one image: leave the row out")
    if found and (found[0].get("bytes") or not row.get("image_id")):
        return images.keep(row, "images", found[0])
    return images.path(row, "image_id", text(row, "image_id"))
