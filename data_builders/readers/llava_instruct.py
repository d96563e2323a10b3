"""LLaVA-Instruct: conversations about pictures, each a visual-dependent question with what is asked after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from reflectune.core.errors import UserError
from reflectune.core.rejected import Reject, stop
from reflectune.core.types import FollowUp, Question
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.json_documents import read_json_array
from reflectune.data_builders.readers.rows import Placed, SourceRow, one_of, placed, rows, text

_IMAGE_TOKEN = "<image>"


def questions(
    source: Path | Mapping[str, Any],
    *,
    split: str,
    images: ImageFolder,
    reject: Reject = stop,
    max_answer_words: int = 0,
    max_turns: int = 0,
    text_only: bool = False,
) -> Iterator[Placed[Question]]:
    """The questions of `llava_instruct_150k.json` (liuhaotian/LLaVA-Instruct-150K) or `llava_v1_5_mix665k.json`.

    A JSON array of `{id, image, conversations[{from, value}]}`, where `from` is `human` or `gpt` (in some rows without
    a picture also `system`). A row is one question: its first turn of `human` with one of `gpt` after it, and the
    further ones as `follow_ups`, since a later turn can refer to what was said before it. Ids repeat in both files: the
    second row of an id is called `<id>-2`, the third `<id>-3`, in the order of the file. The place of the picture,
    `<image>`, is taken out of the question.

    Args:
        source: The file.
        split: Name of the split.
        images: The folder that the pictures' paths start from: for the 150k that of COCO 2017 (`000000033471.jpg`, or
            the folder above `train2017`), for the 665k the one with `coco`, `gqa`, `ocr_vqa`, `textvqa` and `vg`.
        reject: Called with each bad row.
        max_answer_words: End a conversation before its first longer answer; 0: never.
        max_turns: Take that many rounds of a conversation, from its beginning; 0: all.
        text_only: Take rows without a picture too, of which the 665k has some 40,000.

    Raises:
        UserError: The source is not a path, an option is negative, or the file is missing or damaged.
    """
    if isinstance(source, Mapping):
        raise UserError(f"LLaVA-Instruct is read from one file at a time, not from the roles {', '.join(source)}")
    if min(max_answer_words, max_turns) < 0:
        raise UserError("`max_answer_words` and `max_turns` can't be negative; 0 sets no bound")
    seen: Counter[str] = Counter()
    taken = partial(_taken, max_answer_words=max_answer_words, max_turns=max_turns)
    make = partial(_question, split=split, images=images, text_only=text_only, seen=seen, taken=taken)
    for question, place in placed(read_json_array(source, reject), make, reject):
        if question is not None:
            yield question, place


def _question(
    row: SourceRow,
    *,
    split: str,
    images: ImageFolder,
    text_only: bool,
    seen: Counter[str],
    taken: Callable[[list[FollowUp]], list[FollowUp]],
) -> Question | None:
    row_id = _unique_id(row, seen)
    pictured = row.get("image") not in (None, "")
    if not (pictured or text_only):
        return None
    image = images.path(row, "image", text(row, "image")) if pictured else ""
    rounds = taken(_rounds(row))
    if not rounds:
        return None
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


def _taken(rounds: list[FollowUp], *, max_answer_words: int, max_turns: int) -> list[FollowUp]:
    """The rounds up to the first answer that is too long, and no more than wanted."""
    lengths = (len(each_round.answer.split()) for each_round in rounds)
    too_long = (place for place, words in enumerate(lengths) if max_answer_words and words > max_answer_words)
    return rounds[: next(too_long, None)][: max_turns or None]


def _unique_id(row: SourceRow, seen: Counter[str]) -> str:
    """The id, with a number if it came before; counted for every row, so that it depends on the file alone."""
    value = row.get("id")
    row_id = str(value) if type(value) is int else text(row, "id")
    seen[row_id] += 1
    return row_id if seen[row_id] == 1 else f"{row_id}-{seen[row_id]}"


def _rounds(row: SourceRow) -> list[FollowUp]:
    """Each question with its answer; turns that belong to no round (ShareGPT's begin with `gpt` at times) are not."""
    turns = rows(row, "conversations")
    speakers = [one_of(turn, "from", ("human", "gpt", "system")) for turn in turns]
    starts = [at for at in range(len(turns) - 1) if speakers[at : at + 2] == ["human", "gpt"]]
    if not starts:
        problem = "has no turn of `human` with one of `gpt` after it"
        raise row.bad("conversations", problem, "leave the row out")
    return [FollowUp(_asked(turns[at]), text(turns[at + 1], "value")) for at in starts]


def _asked(turn: SourceRow) -> str:
    said = text(turn, "value").replace(_IMAGE_TOKEN, " ").strip()
    if not said:
        raise turn.bad("value", "asks nothing", "leave the row out")
    return said
