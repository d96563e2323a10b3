"""Answers of probes, scored by a different metric."""

from collections.abc import Sequence

import pytest
import torch

from reflectune.core.errors import UserError
from reflectune.core.types import Passage, Question
from reflectune.data_builders.mmkb.run import answers_of, rescore, score_by_metric
from reflectune.data_builders.probing.records import DocumentProbe, Probe, ProbedAnswer

PASSAGE = Passage("e", 0, 0, "T", "", "", "Text.")
QUESTIONS = {"q": Question("q", "i.png", "What is it made of?", ("oak",))}
PROBES = [
    Probe(
        "q",
        ProbedAnswer("elm", 0.0, -2.0),
        (
            DocumentProbe(PASSAGE, 0.9, 1, ProbedAnswer("a kind of oak", 0.0, -1.0)),
            DocumentProbe(PASSAGE, 0.8, 2, ProbedAnswer("elm", 0.0, -1.0)),
            DocumentProbe(PASSAGE, 0.7, 3, ProbedAnswer(" ", 1.0, -1.0)),
        ),
    ),
    Probe("bad", problem="image not found"),
]


class Equivalence:
    """A stand-in for BEM: an answer that contains the accepted one is equivalent."""

    def length(self, triple: tuple[str, str, str]) -> int:
        return 10

    def logits(self, triples: Sequence[tuple[str, str, str]]) -> torch.Tensor:
        return torch.tensor([[0.0, 5.0] if reference in answer else [5.0, 0.0] for answer, reference, _ in triples])


def correctness(probes: Sequence[Probe]) -> list[float]:
    return [reply.correctness for probe in probes for reply in probe.replies]


def test_each_answer_to_a_question_is_scored_once_and_empty_ones_never() -> None:
    assert answers_of(PROBES) == [("q", "elm"), ("q", "a kind of oak")]


def test_every_reply_gets_its_new_score_and_an_empty_one_scores_0() -> None:
    rescored = rescore(PROBES, {("q", "elm"): 0.25, ("q", "a kind of oak"): 1.0})
    assert correctness(rescored) == [0.25, 1.0, 0.25, 0.0]
    assert [reply.log_prob for reply in rescored[0].replies] == [-2.0, -1.0, -1.0, -1.0]
    assert rescored[1] == PROBES[1]


def test_bem_accepts_an_answer_that_does_not_match_exactly() -> None:
    answers, bem = answers_of(PROBES), Equivalence()
    assert score_by_metric(answers, QUESTIONS, "evqa_exact") == dict.fromkeys(answers, 0.0)
    assert score_by_metric(answers, QUESTIONS, "evqa", bem) == {answers[0]: 0.0, answers[1]: 1.0}  # type: ignore[arg-type]
    with pytest.raises(UserError, match="needs `bem`"):
        score_by_metric(answers, QUESTIONS, "evqa")
