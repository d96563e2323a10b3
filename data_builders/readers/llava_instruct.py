"""LLaVA-Instruct: conversations about images, each a visual-dependent question with its follow-ups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from reflectune.core.rejected import Reject, stop
from reflectune.core.types import FollowUp, Question
from reflectune.data_builders.readers.files import one_path
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.json_documents import read_json_array
from reflectune.data_builders.readers.rows import Placed, SourceRow, identifier, one_of, placed, rows, text

_IMAGE_TOKEN = "<image>"


def questions(
    source: Path | Mapping[str, Any],
    *,
    split: str,
    images: ImageFolder,
    reject: Reject = stop,
    text_only: bool = False,
) -> Iterator[Placed[Question]]:
    """Yield the questions of `llava_instruct_150k.json` (liuhaotian/LLaVA-Instruct-150K) or `llava_v1_5_mix665k.json`.

    The file is a JSON array of `{id, image, conversations[{from, value}]}`, where `from` is `human` or `gpt` (in some
    rows without an image also `system`). A row is one question: its first turn of `human` that is followed by one of
    `gpt`. Further rounds are `follow_ups`, since they can refer to earlier ones. Ids repeat: the second row of an id
    becomes `<id>-2`, the third `<id>-3`. `<image>` is removed from the question.

    Args:
        source: The file.
        images: Folder that the images' paths are relative to: for the 150k that of COCO 2017 (`000000033471.jpg`, or
            the parent of `train2017`), for the 665k the parent of `coco`, `gqa`, `ocr_vqa`, `textvqa` and `vg`.
        text_only: Keep rows without an image, too; the 665k has some 40,000.

    Raises:
        UserError: The source is not a path, or the file is missing or damaged.
    """
    seen: Counter[str] = Counter()
    make = partial(_question, split=split, images=images, text_only=text_only, seen=seen)
    for question, line in placed(read_json_array(one_path(source, "LLaVA-Instruct"), reject), make, reject):
        if question is not None:
            yield question, line


def _question(
    row: SourceRow, *, split: str, images: ImageFolder, text_only: bool, seen: Counter[str]
) -> Question | None:
    row_id = _unique_id(row, seen)
    has_image = row.get("image") not in (None, "")
    if not (has_image or text_only):
        return None
    image = images.path(row, "image", text(row, "image")) if has_image else ""
    rounds = _rounds(row)
    return Question(
        id=row_id,
        image=image,
        text=rounds[0].question,
        answers=(rounds[0].answer,),
        answer_type="free_form",
        split=split,
        requires_retrieval=False,
        follow_ups=tuple(rounds[1:]),
    )


def _unique_id(row: SourceRow, seen: Counter[str]) -> str:
    """Return the id, with a number if it is repeated. Every row counts, so that ids depend on the file alone."""
    row_id = identifier(row, "id")
    seen[row_id] += 1
    return row_id if seen[row_id] == 1 else f"{row_id}-{seen[row_id]}"


def _rounds(row: SourceRow) -> list[FollowUp]:
    """Return each question with its answer; turns outside a round are dropped (some of ShareGPT's begin with `gpt`)."""
    turns = rows(row, "conversations")
    speakers = [one_of(turn, "from", ("human", "gpt", "system")) for turn in turns]
    starts = [at for at in range(len(turns) - 1) if speakers[at : at + 2] == ["human", "gpt"]]
    if not starts:
        problem = "has no turn of `human` with one of `gpt` after it"
        raise row.bad("conversations", problem, "leave the row out")
    asked = [text(turns[at], "value").replace(_IMAGE_TOKEN, " ").strip() for at in starts]
    if "" in asked:
        raise turns[starts[asked.index("")]].bad("value", "asks nothing", "leave the row out")
    return [FollowUp(question, text(turns[at + 1], "value")) for question, at in zip(asked, starts, strict=True)]
