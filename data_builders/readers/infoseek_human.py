"""InfoSeek-Human, questions that people wrote: MMSearch-R1's 2,000 with answers, and the release without."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from reflectune.core.errors import UserError
from reflectune.core.rejected import Reject, stop
from reflectune.core.types import Question
from reflectune.data_builders.readers import infoseek
from reflectune.data_builders.readers.files import read_parquet
from reflectune.data_builders.readers.fvqa import answers, question_text, row_id
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.rows import Placed, SourceRow, placed, rows, text


def questions(
    source: Path | Mapping[str, Any], *, split: str, images: ImageFolder, reject: Reject = stop
) -> Iterator[Placed[Question]]:
    """The questions of one file.

    Two releases are read:

    - MMSearch-R1's `mmsearch_r1_infoseek_sub_2k.parquet`, in veRL's form: `prompt[{role, content}]`,
      `images[{bytes, path}]`, `reward_model{ground_truth, candidate_answers, style}`, `data_id`, `image_id` (OVEN's),
      `data_source` and `category`. `candidate_answers` is the text of a JSON list. `ground_truth` is the canonical
      answer and comes first. Numbers have no range there, so that no answer is `numerical`. A row without `data_id` is
      called by its file and its place in it, as in `mmsearch_r1_infoseek_sub_2k_0`.
    - InfoSeek's `infoseek_human.jsonl`: `data_id`, `image_id`, `question`, and no answers (see the reader `infoseek`).

    Args:
        source: A Parquet file, a folder of such, or `infoseek_human.jsonl` (`.gz` too).
        split: Name of the split.
        images: Where the Parquet's pictures are written (`ImageFolder.save_to`); for JSONL and for Parquet rows that
            hold no picture, the folder of OVEN's images.
        reject: Called with each bad row.

    Raises:
        UserError: The source is not a path, or of another kind.
    """
    if isinstance(source, Mapping):
        raise UserError(f"InfoSeek-Human is read from one file or folder, not from the roles {', '.join(source)}")
    if source.is_dir() or source.suffix == ".parquet":
        return placed(read_parquet(source, reject), partial(_question, split=split, images=images), reject)
    if source.name.removesuffix(".gz").endswith(".jsonl"):
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
    """The picture that the row holds, else the one of OVEN that it names."""
    held = rows(row, "images") if row.get("images") else []
    if len(held) > 1:
        raise row.bad("images", f"has {len(held)} images", "a question has one image: leave the row out")
    if held and (held[0].get("bytes") or not row.get("image_id")):
        return images.keep(row, "images", held[0])
    return images.path(row, "image_id", text(row, "image_id"))
