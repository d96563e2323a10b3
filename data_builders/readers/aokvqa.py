"""A-OKVQA: questions about COCO's images that need common sense or knowledge, with ten answers and four choices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from reflectune.core.rejected import Reject, stop
from reflectune.core.types import Question
from reflectune.data_builders.readers.files import one_path
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.json_documents import read_json_array
from reflectune.data_builders.readers.rows import Placed, SourceRow, flag, integer, placed, text, texts


def questions(
    source: Path | Mapping[str, Any], *, split: str, images: ImageFolder, reject: Reject = stop
) -> Iterator[Placed[Question]]:
    """Yield the questions of one file of the release, `aokvqa_v1p0_{train,val,test}.json`.

    The file is a JSON array of `{split, image_id, question_id, question, choices, correct_choice_idx, direct_answers,
    difficult_direct_answer, rationales}`. The test file has no `correct_choice_idx`, `direct_answers` and `rationales`,
    so its questions have no answers.

    All ten direct answers are kept, with repetitions, the most frequent first. `Question.meta` has the `choices` (one
    per line), the `correct_choice`, the first `rationale`, and `difficult_direct_answer` (if true, direct answers are
    not to be scored). `requires_retrieval` is unknown.

    Args:
        source: The file.
        images: Folder of COCO's images of 2017, `{image_id, twelve digits}.jpg`, or of `{train,val,test}2017`.

    Raises:
        UserError: The source is not a path, or the file is missing or damaged.
    """
    return placed(
        read_json_array(one_path(source, "A-OKVQA"), reject), partial(_question, split=split, images=images), reject
    )


def _question(row: SourceRow, *, split: str, images: ImageFolder) -> Question:
    answers = _list(row, "direct_answers")
    counts = Counter(answers)
    return Question(
        id=text(row, "question_id"),
        image=images.path(row, "image_id", f"{integer(row, 'image_id'):012d}"),
        text=text(row, "question"),
        answers=tuple(sorted(answers, key=lambda answer: -counts[answer])),
        split=split,
        meta=_meta(row),
    )


def _meta(row: SourceRow) -> dict[str, str]:
    choices, rationales = texts(row, "choices"), _list(row, "rationales")
    meta = {"choices": "\n".join(choices)}
    if row.get("correct_choice_idx") is not None:
        correct = integer(row, "correct_choice_idx")  # it counts empty choices too
        given = [row["choices"]] if isinstance(row["choices"], str) else row["choices"]
        if not 0 <= correct < len(given) or not given[correct].strip():
            raise row.bad("correct_choice_idx", f"is {correct} of {len(given)} choices", "download the file again")
        meta["correct_choice"] = given[correct].strip()
    if rationales:
        meta["rationale"] = rationales[0]
    if row.get("difficult_direct_answer") is not None:
        meta["difficult_direct_answer"] = str(flag(row, "difficult_direct_answer")).lower()
    return meta


def _list(row: SourceRow, field: str) -> tuple[str, ...]:
    """Return a list, empty if the field is missing as in the test file; a single text is an error."""
    if isinstance(row.get(field), str):
        raise row.bad(field, "is a text", "it should be a list of texts")
    return texts(row, field, default=())
