"""Predictions of a file against the questions of a data set: which belong together, and what each is worth.

In `official` mode a prediction counts as often as it is written, and a question without one does not count, as in the
official programs. In `strict` mode a missing prediction is wrong, and a doubled or unknown one is an error.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.metrics import evqa, infoseek, vqa
from reflectune.metrics.bem import LONGEST, Bem, Segments, TooLongError
from reflectune.metrics.cover import cover_one
from reflectune.metrics.predictions import Prediction
from reflectune.metrics.rouge import rouge_l

Mode = Literal["official", "strict"]
Metric = Literal["infoseek", "evqa", "evqa_exact", "vqa", "exact_match", "cover_match", "rouge_l"]

_ECHOSIGHT_ROW = re.compile(r"E-VQA_(\d+)")
_LAST_NUMBER = re.compile(r"(\d+)$")


@dataclass(frozen=True)
class Joined:
    """Predictions with their questions.

    Attributes:
        pairs: Every prediction whose question is known, in the file's order.
        missing: Questions without a prediction.
        unknown: Predictions whose question is not in the data set.
        doubled: Predictions whose question an earlier one has answered; they are in `pairs` too.
        left_out: Predictions for questions that need no retrieval: official scores are over the others.
    """

    pairs: tuple[tuple[Question, Prediction], ...]
    missing: tuple[Question, ...]
    unknown: tuple[Prediction, ...]
    doubled: tuple[Prediction, ...]
    left_out: tuple[Prediction, ...] = ()

    @property
    def counts(self) -> dict[str, Any]:
        """How many of each, and `coverage`: the share of questions that have a prediction."""
        answered = len(self.pairs) - len(self.doubled)
        asked = answered + len(self.missing)
        return {
            "questions": asked,
            "predictions": len(self.pairs) + len(self.unknown) + len(self.left_out),
            "missing": len(self.missing),
            "unknown": len(self.unknown),
            "doubled": len(self.doubled),
            "left_out": len(self.left_out),
            "coverage": answered / asked if asked else None,
        }


@dataclass(frozen=True)
class Scored:
    """What each scored row is worth.

    Attributes:
        metric: The metric's name.
        mode: `official` or `strict`.
        questions: One a scored row.
        values: In [0, 1], shape (rows,).
        too_long: Ids of questions whose answer BEM can't read; wrong in `strict` mode, an error in `official` mode.
    """

    metric: Metric
    mode: Mode
    questions: tuple[Question, ...]
    values: np.ndarray
    too_long: tuple[str, ...] = ()


def join(predictions: Sequence[Prediction], questions: Iterable[Question], mode: Mode) -> Joined:
    """Find each prediction's question: by id, by EchoSight's row number, or by its text and references.

    EchoSight calls the n-th row of E-VQA's CSV `E-VQA_n`, from 0: it is the question whose `meta["row"]` is n or, where
    a data set has no such field, whose id ends in the number n.

    Raises:
        UserError: Two questions share an id; in `strict` mode also an unknown or doubled prediction.
    """
    asked = infoseek.by_id(questions)
    find = _finder(asked)
    found = [(find(prediction), prediction) for prediction in predictions]
    seen: dict[str, Prediction] = {}
    doubled = []
    for question, prediction in found:
        if question is not None and seen.setdefault(question.id, prediction) is not prediction and _counts(question):
            doubled.append(prediction)
            if mode == "strict":
                first = seen[question.id].where
                raise UserError(f"{prediction.where}: id {question.id} was answered at {first}; keep one of the two")
    unknown = [prediction for question, prediction in found if question is None]
    if unknown and mode == "strict":
        name = ", ".join(unknown[0].ids) or unknown[0].question
        raise UserError(
            f"{unknown[0].where}: no question is known as {name!r} (nor those of {len(unknown) - 1} more rows): is the "
            "file of another data set or split? `mode: official` leaves them out"
        )
    scored = [(question, prediction) for question, prediction in found if question is not None]
    missing = [question for key, question in asked.items() if key not in seen and _counts(question)]
    return Joined(
        pairs=tuple(pair for pair in scored if _counts(pair[0])),
        missing=tuple(missing),
        unknown=tuple(unknown),
        doubled=tuple(doubled),
        left_out=tuple(prediction for question, prediction in scored if not _counts(question)),
    )


def score(joined: Joined, metric: Metric, mode: Mode, bem: Bem | None = None) -> Scored:
    """What each prediction is worth; in `strict` mode, 0 for each question without one.

    Args:
        joined: Of `join`, in the same mode.
        metric: `evqa` needs `bem`. `evqa_exact` is what of E-VQA's score needs no model: exact match and the overlap of
            lists, a lower bound of `evqa` that must not stand in for it.
        mode: Of the metric itself it decides `cover_match`.
        bem: The answer-equivalence model.

    Raises:
        UserError: A question lacks what the metric compares with, or (`official`) an answer is too long for BEM.
    """
    for question, prediction in joined.pairs:
        if prediction.answer is None:
            raise UserError(f"{prediction.where}: id {question.id}: the file holds no answers, only what was retrieved")
    if metric == "evqa":
        if bem is None:
            raise UserError(
                "the metric `evqa` needs `bem`, a converted checkpoint; `evqa_exact` is the part without it"
            )
        values, too_long = _evqa_values(joined.pairs, bem, mode)
    else:
        values, too_long = _values(joined.pairs, metric_of_one(metric, mode)), ()
    if mode == "strict":
        values = np.concatenate([values, np.zeros(len(joined.missing))])
    questions = [question for question, _ in joined.pairs] + (list(joined.missing) if mode == "strict" else [])
    return Scored(metric, mode, tuple(questions), values, too_long)


def evqa_type(question: Question) -> str:
    """E-VQA's question type: as the data set says (`meta["question_type"]`), else from what it says otherwise."""
    if (said := question.meta.get("question_type")) in evqa.QUESTION_TYPES:
        return str(said)
    if question.meta.get("two_hop") == "yes":
        return "2_hop"
    return "multi_answer" if question.answer_type == "multi_answer" else "templated"


def _counts(question: Question) -> bool:
    """Whether official scores are over a question."""
    return question.is_knowledge_based is not False


def _finder(asked: dict[str, Question]) -> Callable[[Prediction], Question | None]:
    by_row: dict[int, Question] = {}
    by_text: dict[tuple[str, tuple[str, ...]], deque[Question]] = defaultdict(deque)
    for question in asked.values():
        said = question.meta.get("row") or ((found := _LAST_NUMBER.search(question.id)) and found[1])
        if said and said.isdigit():
            by_row.setdefault(int(said), question)
        by_text[question.text, question.answers].append(question)

    def find(prediction: Prediction) -> Question | None:
        for name in prediction.ids:
            if name in asked:
                return asked[name]
            if (row := _ECHOSIGHT_ROW.fullmatch(name)) is not None:
                return by_row.get(int(row[1]))
        if prediction.ids:
            return None
        # Questions of one text and one list of answers differ in the image alone: which is which makes no score differ.
        same = by_text.get((prediction.question, prediction.references))
        return same.popleft() if same else None

    return find


def metric_of_one(metric: Metric, mode: Mode = "official") -> Callable[[str, Question], float]:
    """The worth of one answer to a question, in [0, 1], by any metric but `evqa`.

    It raises ValueError or UserError for a question that lacks what the metric compares with.
    """
    if metric == "infoseek":
        return infoseek.score_one
    if metric == "evqa_exact":
        return _evqa_exact
    if metric == "cover_match":
        return lambda answer, question: cover_one(answer, question, mode)
    of_references: dict[str, Callable[[str, Sequence[str]], float]] = {
        "vqa": vqa.soft_accuracy,
        "exact_match": infoseek.exact_match,
        "rouge_l": rouge_l,
    }
    return lambda answer, question: float(of_references[metric](answer, _references(question)))


def _values(pairs: Sequence[tuple[Question, Prediction]], one: Callable[[str, Question], float]) -> np.ndarray:
    values = np.zeros(len(pairs))
    for place, (question, prediction) in enumerate(pairs):
        try:
            values[place] = one(str(prediction.answer), question)
        except ValueError as error:
            raise UserError(f"{prediction.where}: id {question.id}: {error}") from error
    return values


def _references(question: Question) -> tuple[str, ...]:
    if not question.answers:
        raise UserError(f"question {question.id} has no answers; leave it out of what is scored")
    return question.answers


def _evqa_exact(answer: str, question: Question) -> float:
    return evqa.evaluate_example(question.text, _references(question), answer, evqa_type(question), _never)


def _never(*segments: str) -> tuple[float, float]:
    """Logits of a model that finds nothing equivalent."""
    return (1.0, 0.0)


def _evqa_values(
    pairs: Sequence[tuple[Question, Prediction]], bem: Bem, mode: Mode
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The official function twice: once to learn what it asks BEM, then with all of BEM's answers in one go."""
    asked: dict[Segments, None] = {}
    long: set[Segments] = set()

    def note(*segments: str) -> tuple[float, float]:
        triple = (segments[0], segments[1], segments[2])
        if (pieces := bem.length(triple)) <= LONGEST:
            asked[triple] = None
        elif mode == "strict":
            long.add(triple)
        else:
            raise TooLongError(
                f"the answer makes {pieces} word pieces, more than the {LONGEST} that BEM reads, where "
                "the official program stops; shorten it, or score in `strict` mode"
            )
        return (1.0, 0.0)

    def evaluate(answer: str, question: Question, logits: evqa.BemLogits) -> float:
        return evqa.evaluate_example(question.text, _references(question), answer, evqa_type(question), logits)

    _values(pairs, lambda answer, question: evaluate(answer, question, note))
    known = dict(zip(asked, bem.logits(list(asked)).tolist(), strict=True)) if asked else {}

    def recall(*segments: str) -> Sequence[float]:
        return known.get((segments[0], segments[1], segments[2]), (1.0, 0.0))

    values = _values(pairs, lambda answer, question: evaluate(answer, question, recall))
    cut = [question.id for question, prediction in pairs if not long.isdisjoint(_triples(question, prediction))]
    return values, tuple(cut)


def _triples(question: Question, prediction: Prediction) -> list[Segments]:
    kind, answer = evqa_type(question), str(prediction.answer)
    return [evqa.bem_segments(question.text, reference, answer, kind) for reference in question.answers]
