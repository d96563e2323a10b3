"""Metrics by name: the score of an answer, the questions each metric can score, and its requirements.

A data set names its own (`metric` in dataset.json); every command that scores answers reads it from there.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from reflectune.core.errors import UserError
from reflectune.core.types import METRICS, Metric, Question
from reflectune.metrics.judging.bem import RECORD, TooLongError
from reflectune.metrics.judging.cover import cover_one, number_agrees
from reflectune.metrics.judging.rouge import rouge_l
from reflectune.metrics.official import evqa, hotpotqa, infoseek, mrag_bench, vqa

Mode = Literal["official", "strict"]
MetricChoice = Literal["", Metric]
"""A config's `metric`; "" stands for the data set's own."""

AnswerMetric = Callable[[str, Question], float]
"""Function of an answer and a question that returns the answer's score, in [0, 1]."""


def is_wrong(score: float) -> bool:
    """Return True if an answer with this score is wrong."""
    return score < 0.5


def answer_metric(metric: Metric, mode: Mode = "official", bem: evqa.BemLogits | None = None) -> AnswerMetric:
    """Return the scoring function of a metric.

    Args:
        metric: `infoseek`: exact match, the range of numbers, the overlap of lists; `evqa`: exact match or overlap of
            lists, else BEM; `evqa_exact`: its part without a model, a lower bound that must not stand in for it; `vqa`:
            soft accuracy over annotators; `exact_match`: see `exact_match`; `hotpotqa_f1`: F1 of words with the answer;
            `cover_match`: an answer is in the reply; `choice`: the letter of a choice, as in MRAG-Bench; `rouge_l`:
            F-measure of the longest common subsequence.
        mode: Mode of `cover_match`.
        bem: The answer-equivalence model, for `evqa`. An answer that is too long for it is wrong.

    Returns:
        A function that raises ValueError or UserError for a question that lacks the metric's references, or whose
        answer is free-form: only `rouge_l` compares sentences.

    Raises:
        UserError: The metric is unknown, or `evqa` without `bem`.
    """
    if metric not in METRICS:
        raise UserError(f"`metric` is one of {', '.join(METRICS)}; found `{metric}`")
    score = _score_function(metric, mode, bem)
    if metric == "rouge_l":
        return score

    def score_short_answer(answer: str, question: Question) -> float:
        infoseek.refuse_free_form(question, metric)
        return score(answer, question)

    return score_short_answer


def _score_function(metric: Metric, mode: Mode, bem: evqa.BemLogits | None) -> AnswerMetric:
    if metric == "infoseek":
        return infoseek.score_one
    if metric == "evqa":
        if bem is None:
            raise UserError(NEEDS_BEM)
        logits = _wrong_if_too_long(bem)
        return lambda answer, question: evqa_score(answer, question, logits)
    if metric == "evqa_exact":
        return lambda answer, question: evqa_score(answer, question, not_equivalent)
    if metric == "cover_match":
        return lambda answer, question: cover_one(answer, question, mode)
    if metric == "exact_match":
        return exact_match
    if metric == "hotpotqa_f1":
        return lambda answer, question: hotpotqa.f1(answer, references(question))
    if metric == "choice":
        return lambda answer, question: mrag_bench.accuracy(answer, references(question))
    of_references = vqa.soft_accuracy if metric == "vqa" else rouge_l
    return lambda answer, question: float(of_references(answer, references(question)))


def has_truth(question: Question, metric: Metric) -> bool:
    """Return True if the question has the metric's references."""
    if question.answer_type == "free_form" and metric != "rouge_l":
        return False
    if question.answer_type == "numerical" and metric in ("infoseek", "cover_match"):
        return question.range is not None
    if question.answer_type == "numerical" and metric == "exact_match" and question.range is not None:
        return True
    return bool(question.answers)


def is_scored(question: Question, metric: Metric) -> bool:
    """Return True if the official score counts the question: it isn't known as visual, and has the metric's references.

    InfoSeek's halves have no two-hop questions, and E-VQA's score counts only the first image of a row. A-OKVQA's
    direct answers are not scored if `difficult_direct_answer` is true.
    """
    if question.is_knowledge_based is False and metric != "rouge_l":  # which compares free replies to visual questions
        return False
    if metric == "infoseek" and is_two_hop(question):
        return False
    if "row_image" in question.meta or (metric == "vqa" and question.meta.get("difficult_direct_answer") == "true"):
        return False
    return has_truth(question, metric)


def is_two_hop(question: Question) -> bool:
    """Return True if the data set marks the question as two-hop."""
    return question.meta.get("two_hop") == "yes"


def metric_problems(metric: Metric, bem: str) -> list[str]:
    """Return the missing requirements of a metric, one sentence each; nothing is loaded.

    Args:
        metric: Name of the metric.
        bem: The config's `bem`.
    """
    issues = []
    if metric == "evqa" and not bem:
        issues.append(NEEDS_BEM)
    if metric != "evqa" and bem:
        issues.append(f"`bem` is read only by the metric evqa, and the metric is {metric}; leave one of them out")
    if bem and Path(bem).is_absolute() and not Path(bem).is_dir():
        issues.append(f"`bem`: {bem} is not there; `python -m reflectune.examples.bem.convert` writes such a folder")
    if bem and Path(bem).is_dir() and not Path(bem, RECORD).is_file():
        issues.append(f"`bem`: {bem} has no {RECORD}; `python -m reflectune.examples.bem.convert` writes such a folder")
    if metric == "rouge_l" and importlib.util.find_spec("rouge_score") is None:
        issues.append("the metric `rouge_l` needs the library rouge-score: pip install 'reflectune[rouge]'")
    return issues


NEEDS_BEM = (
    "the metric `evqa` needs `bem`, a converted checkpoint (`python -m reflectune.examples.bem.convert` makes one); "
    "`metric: evqa_exact` is the part of it without a model"
)


def exact_match(answer: str, question: Question) -> float:
    """Return 1.0 if an answer is an accepted one after InfoSeek's normalisation, else 0.0.

    A number (`number_agrees`) must lie in the question's range, if it has one; a number in words must be an accepted
    answer. A list (`multi_answer`) must have the same items in one of its readings (`evqa.answer_readings`). If
    normalisation deletes a whole accepted answer or item (vitamin "A"), it must be given as it is.

    Raises:
        UserError: The question has no answers, and no range.
    """
    in_words = bool(question.answers) and not any(map(str.isnumeric, answer))
    if question.answer_type == "numerical" and question.range is not None and not in_words:
        return number_agrees(answer, question.range)
    if question.answer_type == "multi_answer":
        readings = [_normalized(items) for items in evqa.answer_readings(answer)]
        return float(any(_normalized(reference.split("&&")) in readings for reference in references(question)))
    if infoseek.normalize_answer(answer):
        return float(infoseek.exact_match(answer, references(question)))
    bare = (name for name in references(question) if not infoseek.normalize_answer(name))
    return float(bool(answer.strip()) and answer.strip().casefold() in (name.strip().casefold() for name in bare))


def evqa_type(question: Question) -> str:
    """Return E-VQA's question type from `meta["question_type"]`, else from the question's other fields."""
    if (question_type := question.meta.get("question_type")) in evqa.QUESTION_TYPES:
        return str(question_type)
    if is_two_hop(question):
        return "2_hop"
    return "multi_answer" if question.answer_type == "multi_answer" else "templated"


def evqa_candidate(answer: str, question: Question) -> str:
    """Return the answer as E-VQA's official code expects it: for `multi_answer`, a list with commas."""
    return evqa.comma_list(answer) if evqa_type(question) == "multi_answer" else answer


def evqa_score(answer: str, question: Question, logits: evqa.BemLogits) -> float:
    """Return E-VQA's official score of an answer, BEM's logits given."""
    infoseek.refuse_free_form(question, "evqa")
    candidate = evqa_candidate(answer, question)
    return evqa.evaluate_example(question.text, references(question), candidate, evqa_type(question), logits)


def references(question: Question) -> Sequence[str]:
    """Return the accepted answers; UserError if there is none."""
    if not question.answers:
        raise UserError(f"question {question.id} has no answers; leave it out of the scores")
    return question.answers


def not_equivalent(*segments: str) -> tuple[float, float]:
    """Return BEM's logits of an answer that isn't equivalent."""
    return (1.0, 0.0)


def _normalized(items: Sequence[str]) -> set[str]:
    """Return the items of a list after InfoSeek's normalisation; one that it deletes (blood group "A") as it is."""
    return {infoseek.normalize_answer(item) or _bare(item) for item in items} - {""}


def _bare(item: str) -> str:
    return item.strip().casefold() if any(map(str.isalnum, item)) else ""


def _wrong_if_too_long(bem: evqa.BemLogits) -> evqa.BemLogits:
    def logits(candidate: str, reference: str, question: str) -> Sequence[float]:
        try:
            return bem(candidate, reference, question)
        except TooLongError:
            return not_equivalent()

    return logits


def find_metric(metric: Metric, bem: evqa.BemLogits | None = None) -> AnswerMetric:
    """Return the function that scores an answer by a metric; an empty answer is wrong in every metric.

    Args:
        metric: See `answer_metric`.
        bem: The answer-equivalence model, for `evqa`.

    Returns:
        A pure function. It raises UserError for a question that lacks the metric's references.

    Raises:
        UserError: The metric is unknown, or `evqa` without `bem`.
    """
    score = answer_metric(metric, bem=bem)

    def correctness(answer: str, question: Question) -> float:
        try:
            value = score(answer, question)
        except ValueError as error:
            raise UserError(f"question {question.id} can't be scored: {error}; fix its answers") from error
        # Officially an empty answer to a numerical question reads as [0, 0], and can so be right.
        return value if answer.strip() else 0.0

    return correctness
