"""InfoSeek's official score, to the last digit and quirks included.

Written after `infoseek_eval.py` of edchengg/infoseek_eval. Quirks are kept: a time scores only on exact match, whatever
its docstring says; an unanswered numerical question reads as [0, 0]; "1.5 to 1.2" reads as 1.5; the official
denominator is the predictions, so a question left out costs nothing (`score --mode strict` counts it).
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Sequence
from typing import Any

from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.metrics.official import evqa

Number = float | list[float]
"""A number, or [lowest, highest]."""

_TINY = 1e-12
_ARTICLE = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_NUMBER = re.compile(r"[-+]?[.]?\d+(?:,\d\d\d)*\.?\d*(?:[eE][-+]?\d+)?")


def score_one(prediction: str, question: Question) -> float:
    """Return 1.0 if the prediction is right, else 0.0.

    `string` and `time` need an exact match with an accepted answer, `numerical` a value in the range or a range that
    overlaps it. `multi_answer`, which InfoSeek does not have, is compared as E-VQA compares lists; an answer with the
    `&&` that mR²AG's prompt asks for (arXiv 2411.15041, §7.3) is parted there alone (`evqa.answer_readings`).

    Raises:
        UserError: The question has no range (`numerical`) or no answers (all others), or is `free_form`.
    """
    refuse_free_form(question, "infoseek")
    if question.answer_type == "numerical":
        if question.range is None:
            raise UserError(f"question {question.id} is numerical but has no range; its data set must give one")
        return float(numerical(prediction, question.range))
    if not question.answers:
        raise UserError(f"question {question.id} has no answers; leave it out of the scores")
    if question.answer_type == "multi_answer":
        return float(evqa.list_match(prediction, question.answers))
    return float(exact_match(prediction, question.answers))


def refuse_free_form(question: Question, metric: str) -> None:
    """Raise a `UserError` if a metric for short answers is used for an answer in sentences: 0 would mean nothing."""
    if question.answer_style == "free":
        raise UserError(
            f"question {question.id} is free_form, and {metric} can't compare answers in sentences; score such "
            "questions by rouge_l, or leave them out"
        )


def is_unseen_question(split: str) -> bool:
    """Return the official test of a split's name; every other split, `train` too, counts as unseen entity."""
    return split.endswith("unseen_question")


def official_kind(question: Question) -> str:
    """Return the official question type: `time`, `num` or `string`."""
    return {"numerical": "num", "time": "time"}.get(question.answer_type, "string")


def percent_report(scored: Iterable[tuple[str, str, float]]) -> dict[str, Any]:
    """Return the official report, percentages with two decimals, of rows (split, `time`, `num` or `string`, right)."""
    parts: dict[bool, list[tuple[str, float]]] = {True: [], False: []}
    for split, kind, right in scored:
        parts[is_unseen_question(split)].append((kind, right))
    halves = [_percentages(parts[half]) for half in (True, False)]
    return {
        "final_score": round(harmonic_mean(*(half["score"] for half in halves)), 2),
        "unseen_question_score": halves[0],
        "unseen_entity_score": halves[1],
    }


def harmonic_mean(*values: float) -> float:
    """Return the harmonic mean where 0 counts as 1e-12, as the official code has it."""
    return len(values) / sum(1.0 / (value if value != 0 else _TINY) for value in values)


def exact_match(prediction: str, answers: Iterable[str]) -> int:
    """Return 1 if the prediction equals any answer after `normalize_answer`, else 0; ValueError without answers.

    Serves strings and times alike.
    """
    given = normalize_answer(prediction)
    return max(int(normalize_answer(answer) == given) for answer in answers)


def normalize_answer(text: str) -> str:
    """Lower case, ASCII punctuation deleted, articles left out, single spaces."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def numerical(prediction: str, answer_range: Sequence[float]) -> int:
    """Return 1 if the number or range read from the prediction agrees with [lowest, highest], else 0."""
    return numerical_range(parse_numerical(prediction), [float(value) for value in answer_range])


def numerical_range(pred: float | Sequence[float], answer: float | Sequence[float], tolerance: float = 0.1) -> int:
    """Return 1 if a number lies in the answer's range; or if a range lies inside it, or overlaps it with IoU ≥ 0.5.

    Args:
        pred: A number or (lowest, highest).
        answer: The same; a number x stands for x·(1 - tolerance) to x·(1 + tolerance).
        tolerance: A fraction of 1.
    """
    low, high = answer if isinstance(answer, Sequence) else (answer * (1 - tolerance), answer * (1 + tolerance))
    if not isinstance(pred, Sequence):
        return int(low <= pred <= high)
    if all(low <= bound <= high for bound in pred):
        return 1
    return int(range_iou(pred, (low, high)) >= 0.5 - _TINY)


def range_iou(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the intersection over union of two ranges, each made 1e-12 longer.

    The margin of `numerical_range` is smaller than what that takes off a short range's ratio: an exact half passes
    only if the overlap is at least 0.5.
    """
    overlap = max(0.0, min(max(x), max(y)) - max(min(x), min(y)))
    length_x, length_y = max(x) - min(x) + _TINY, max(y) - min(y) + _TINY
    union = length_x + length_y - overlap
    return overlap / union if union != 0 else 0.0


def parse_numerical(text: str) -> Number:
    """Return the first number of a text, or its first two as a range if they ascend; [0, 0] if it has none.

    Units, words, percent signs and the minus sign U+2212 are not understood; ".5" reads as 5. The official code crashes
    on a sign with two points ("-.5.2"); here it reads as -0.5.
    """
    numbers = [_number(written) for written in _NUMBER.findall(clean_str_range(text))[:2]]
    if not numbers:
        return [0, 0]
    return numbers if len(numbers) == 2 and numbers[0] <= numbers[1] else numbers[0]


def clean_str_range(text: str) -> str:
    """Put spaces round each hyphen that follows a digit, so that "9-10" is not read as 9 and -10."""
    return "".join(" - " if letter == "-" and i and text[i - 1].isdigit() else letter for i, letter in enumerate(text))


def _number(written: str) -> float:
    parts = written.replace(",", "").strip(".").split(".")
    return float(".".join(parts[:2]))


def by_id(questions: Iterable[Question]) -> dict[str, Question]:
    """Return questions by their ids; UserError if two share one."""
    questions_by_id: dict[str, Question] = {}
    for question in questions:
        if question.id in questions_by_id:
            raise UserError(f"two questions have the id {question.id!r}; ids must be unique within a data set")
        questions_by_id[question.id] = question
    return questions_by_id


def _percentages(scored: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Score of all rows (kind, right), then by kind; 0 where there is none."""
    parts = {"score": [right for _, right in scored]} | {
        f"score_{kind}": [right for row_kind, right in scored if row_kind == kind] for kind in ("time", "num", "string")
    }
    return {name: round(100 * (sum(rights) / len(rights)), 2) if rights else 0 for name, rights in parts.items()}
