"""ViQuAE: questions of TriviaQA whose entity is replaced by an image of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from reflectune.core.rejected import Reject, stop
from reflectune.core.types import Question
from reflectune.data_builders.readers.files import one_path, read_by_extension, read_jsonl, read_parquet
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.rows import Placed, SourceRow, mapping, placed, rows, text, texts


def questions(
    source: Path | Mapping[str, Any], *, split: str, images: ImageFolder, reject: Reject = stop
) -> Iterator[Placed[Question]]:
    """Yield the questions of one split.

    A row (`PaulLerner/viquae_dataset` on the Hub, in KILT's form) has `id`, `input` (the question),
    `output{answer, original_answer, provenance}`, `image` (a file name, as in `512px-Jackie_Wilson.png`), `url`,
    `wikidata_id` (the entity in the image), `kilt_id`, `original_question` and `meta`. `original_answer` is the
    canonical answer and comes first; `answer` lists it with its aliases.

    `provenance` names the articles that hold the answer without a section, so questions have no evidence; the titles
    are in `Question.meta["provenance"]`, joined by `|`.

    Args:
        source: `{train,validation,test}.jsonl` (`.gz` too), or the Hub's Parquet, a file or a folder.
        images: Folder of the images.

    Raises:
        UserError: The source is not a path, or has another extension.
    """
    make = partial(_question, split=split, images=images)
    readers = {".jsonl": read_jsonl, ".json": read_jsonl, ".parquet": read_parquet}
    return placed(read_by_extension(one_path(source, "ViQuAE"), readers, "ViQuAE", reject), make, reject)


def _question(row: SourceRow, *, split: str, images: ImageFolder) -> Question:
    row.id_field = "id"
    output = mapping(row, "output")
    aliases = texts(output, "answer")
    meta = {
        "kilt_id": text(row, "kilt_id", default=""),
        "original_question": text(row, "original_question", default=""),
        "provenance": "|".join(_titles(output)),
    }
    return Question(
        id=text(row, "id"),
        image=images.path(row, "image", text(row, "image")),
        text=text(row, "input"),
        answers=tuple(dict.fromkeys((text(output, "original_answer", default=aliases[0]), *aliases))),
        split=split,
        requires_retrieval=True,
        entity_ids=(text(row, "wikidata_id"),),
        meta={name: value for name, value in meta.items() if value},
    )


def _titles(output: SourceRow) -> tuple[str, ...]:
    """Return the titles of the articles that hold the answer."""
    if output.get("provenance") is None:
        return ()
    titles = (texts(item, "title", default=(), empty=True) for item in rows(output, "provenance"))
    return tuple(dict.fromkeys(title for several in titles for title in several))
