"""Join predictions with the questions of a data set, and score them.

In `official` mode a repeated prediction counts each time, and a question without one does not count, as in the official
programs. In `strict` mode a missing prediction is wrong, and a repeated or unknown one is an error.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from reflectune.core.errors import UserError
from reflectune.core.types import Metric, Question
from reflectune.metrics.judging.bem import LONGEST, Bem, Segments, TooLongError
from reflectune.metrics.official import evqa, infoseek
from reflectune.metrics.scoring.predictions import Prediction
from reflectune.metrics.scoring.registry import (
    NEEDS_BEM,
    AnswerMetric,
    Mode,
    answer_metric,
    evqa_candidate,
    evqa_score,
    evqa_type,
    is_scored,
    not_equivalent,
)

_ECHOSIGHT_ROW = re.compile(r"E-VQA_(\d+)")
_LAST_NUMBER = re.compile(r"(\d+)$")


@dataclass(frozen=True)
class Joined:
    """Predictions with their questions.

    Attributes:
        pairs: Every prediction whose question is known, in the file's order.
        missing: Questions without a prediction.
        unknown: Predictions whose question is not in the data set.
        doubled: Predictions for a question that an earlier one answers; they are also in `pairs`.
        left_out: Each question that the score leaves out (`is_scored`), and its prediction.
    """

    pairs: tuple[tuple[Question, Prediction], ...]
    missing: tuple[Question, ...]
    unknown: tuple[Prediction, ...]
    doubled: tuple[Prediction, ...]
    left_out: tuple[tuple[Question, Prediction], ...] = ()

    @property
    def counts(self) -> dict[str, Any]:
        """Numbers of each, and `coverage`: the share of questions that have a prediction."""
        answered = len(self.pairs) - len(self.doubled)
        questions = answered + len(self.missing)
        return {
            "questions": questions,
            "predictions": len(self.pairs) + len(self.unknown) + len(self.left_out),
            "missing": len(self.missing),
            "unknown": len(self.unknown),
            "doubled": len(self.doubled),
            "left_out": len(self.left_out),
            "coverage": answered / questions if questions else None,
        }


@dataclass(frozen=True)
class Scored:
    """Scored rows.

    Attributes:
        metric: Name of the metric.
        questions: Question of each scored row.
        values: Scores in [0, 1], shape (rows,).
        too_long: Ids of questions whose answer BEM can't read; wrong in `strict` mode, an error in `official` mode.
    """

    metric: Metric
    questions: tuple[Question, ...]
    values: np.ndarray
    too_long: tuple[str, ...] = ()


def join(
    predictions: Sequence[Prediction], questions: Iterable[Question], mode: Mode, metric: Metric | None = None
) -> Joined:
    """Find each prediction's question: by id, by EchoSight's row number, or by its text and references.

    EchoSight calls the n-th row of E-VQA's CSV `E-VQA_n`, from 0: it is the question whose `meta["row"]` is n or, where
    a data set has no such field, whose id ends in the number n.

    Args:
        predictions: The predictions.
        questions: The data set's questions.
        mode: `official` or `strict`.
        metric: Metric, whose unscored questions are left out; None leaves out known visual questions.

    Raises:
        UserError: Two questions share an id, or EchoSight's row number is of several splits; in `strict` mode also an
            unknown or doubled prediction.
    """
    questions_by_id = infoseek.by_id(questions)
    find = _finder(questions_by_id)

    def is_counted(question: Question) -> bool:
        return question.is_knowledge_based is not False if metric is None else is_scored(question, metric)

    matches = [(find(prediction), prediction) for prediction in predictions]
    seen: dict[str, Prediction] = {}
    doubled = []
    for question, prediction in matches:
        if question is not None and seen.setdefault(question.id, prediction) is not prediction and is_counted(question):
            doubled.append(prediction)
            if mode == "strict":
                first = seen[question.id].where
                raise UserError(f"{prediction.where}: id {question.id} was answered at {first}; keep one of the two")
    unknown = [prediction for question, prediction in matches if question is None]
    if unknown and mode == "strict":
        name = ", ".join(unknown[0].ids) or unknown[0].question
        raise UserError(
            f"{unknown[0].where}: no question is known as {name!r} ({len(unknown) - 1} more rows match none): is the "
            "file of another data set or split? `mode: official` leaves such rows out"
        )
    scored = [(question, prediction) for question, prediction in matches if question is not None]
    missing = [question for key, question in questions_by_id.items() if key not in seen and is_counted(question)]
    return Joined(
        pairs=tuple(pair for pair in scored if is_counted(pair[0])),
        missing=tuple(missing),
        unknown=tuple(unknown),
        doubled=tuple(doubled),
        left_out=tuple(pair for pair in scored if not is_counted(pair[0])),
    )


def score(joined: Joined, metric: Metric, mode: Mode, bem: Bem | None = None) -> Scored:
    """Score each prediction; in `strict` mode, 0 for each question without one.

    Args:
        joined: From `join`, in the same mode.
        metric: See `answer_metric`; `evqa` needs `bem`.
        mode: Also the mode of `cover_match`.
        bem: The answer-equivalence model.

    Raises:
        UserError: A question lacks the metric's references, or (`official`) an answer is too long for BEM.
    """
    for question, prediction in joined.pairs:
        if prediction.answer is None:
            raise UserError(f"{prediction.where}: id {question.id}: the file holds no answers, only retrieval results")
    answers = [Answered(q, str(p.answer), f"{p.where}: id {q.id}") for q, p in joined.pairs]
    too_long_is: Literal["stop", "wrong"] = "wrong" if mode == "strict" else "stop"
    values, too_long = score_answers(answers, metric, mode, bem, too_long=too_long_is)
    if mode == "strict":
        values = np.concatenate([values, np.zeros(len(joined.missing))])
    questions = [question for question, _ in joined.pairs] + (list(joined.missing) if mode == "strict" else [])
    return Scored(metric, tuple(questions), values, too_long)


def _finder(questions_by_id: dict[str, Question]) -> Callable[[Prediction], Question | None]:
    by_row: dict[int, Question] = {}
    in_several: dict[int, Question] = {}
    by_text: dict[tuple[str, tuple[str, ...]], deque[Question]] = defaultdict(deque)
    splits_by_text: dict[tuple[str, tuple[str, ...]], set[str]] = defaultdict(set)
    for question in questions_by_id.values():
        row = _row_number(question)
        if row is not None and by_row.setdefault(row, question).split != question.split:
            in_several[row] = question
        asked = _stripped(question.text, question.answers)
        if "row_image" not in question.meta:  # a further image of a row, which isn't scored
            by_text[asked].append(question)
        splits_by_text[asked].add(question.split)

    def find(prediction: Prediction) -> Question | None:
        for name in prediction.ids:
            if name in questions_by_id:
                return questions_by_id[name]
            if (match := _ECHOSIGHT_ROW.fullmatch(name)) is not None:
                row = int(match[1])
                if row in in_several:
                    splits = f"{by_row[row].split} and {in_several[row].split}"
                    raise UserError(f"{prediction.where}: {name} is a row of {splits}; set `splits` to one of them")
                return by_row.get(row)
        if prediction.ids:
            return None
        asked = _stripped(prediction.question, prediction.references)
        if len(found := splits_by_text.get(asked, set())) > 1:
            named = " and ".join(sorted(found))
            raise UserError(f"{prediction.where}: {prediction.question!r} is in {named}; set `splits` to one of them")
        # Questions with the same text and answers differ only in the image, so mixing them up changes no score.
        same = by_text.get(asked)
        return same.popleft() if same else None

    return find


def _row_number(question: Question) -> int | None:
    """Return the row of E-VQA's CSV that a question comes from, by its `meta` or the end of its id; None if unknown."""
    match = _LAST_NUMBER.search(question.id)
    number = question.meta.get("row") or (match[1] if match else "")
    return int(number) if number.isdigit() else None


def _stripped(question: str, references: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return question and references without spaces around them, which E-VQA's CSV has and its reader drops."""
    return question.strip(), tuple(stripped for reference in references if (stripped := reference.strip()))


@dataclass(frozen=True)
class Answered:
    """Answer to score.

    Attributes:
        question: The question.
        answer: The answer.
        where: Name of the answer in errors, e.g. `p.jsonl:3: id q2`.
    """

    question: Question
    answer: str
    where: str


def score_answers(
    answers: Sequence[Answered], metric: Metric, mode: Mode, bem: Bem | None, *, too_long: Literal["stop", "wrong"]
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Score answers; BEM reads all that it is asked about in one call.

    Args:
        metric: `evqa` needs `bem`.
        mode: Mode of `cover_match`.
        bem: The answer-equivalence model.
        too_long: Reaction to an answer that BEM can't read.

    Returns:
        Scores in [0, 1], shape (answers,), and the ids of the questions whose answer BEM can't read.

    Raises:
        UserError: A question lacks the metric's references, or (`stop`) an answer is too long for BEM.
    """
    if metric == "evqa":
        if bem is None:
            raise UserError(NEEDS_BEM)
        return _evqa_values(answers, bem, too_long)
    return _values(answers, answer_metric(metric, mode)), ()


def _values(answers: Sequence[Answered], score_one: AnswerMetric) -> np.ndarray:
    values = np.zeros(len(answers))
    for row, answered in enumerate(answers):
        try:
            values[row] = score_one(answered.answer, answered.question)
        except ValueError as error:
            raise UserError(f"{answered.where}: {error}") from error
    return values


def _evqa_values(
    answers: Sequence[Answered], bem: Bem, too_long: Literal["stop", "wrong"]
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Run the official function twice: to collect BEM's inputs, then with all of BEM's answers from one call."""
    triples: dict[Segments, None] = {}
    long: set[Segments] = set()

    def collect(*segments: str) -> tuple[float, float]:
        triple = (segments[0], segments[1], segments[2])
        if (pieces := bem.length(triple)) <= LONGEST:
            triples[triple] = None
        elif too_long == "wrong":
            long.add(triple)
        else:
            raise TooLongError(
                f"the answer makes {pieces} word pieces, more than the {LONGEST} that BEM reads, where "
                "the official program stops; shorten it, or score in `strict` mode"
            )
        return not_equivalent()

    _values(answers, lambda answer, question: evqa_score(answer, question, collect))
    logits = dict(zip(triples, bem.logits(list(triples)).tolist(), strict=True)) if triples else {}

    def look_up(*segments: str) -> Sequence[float]:
        return logits.get((segments[0], segments[1], segments[2]), not_equivalent())

    values = _values(answers, lambda answer, question: evqa_score(answer, question, look_up))
    wrong = [answered for answered, value in zip(answers, values, strict=True) if not value]
    return values, tuple(answered.question.id for answered in wrong if not long.isdisjoint(_triples(answered)))


def _triples(answered: Answered) -> list[Segments]:
    question, candidate = answered.question, evqa_candidate(answered.answer, answered.question)
    kind = evqa_type(question)
    return [evqa.bem_segments(question.text, reference, candidate, kind) for reference in question.answers]
