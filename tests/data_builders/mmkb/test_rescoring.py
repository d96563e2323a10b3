"""Answers that a probe kept, judged again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from reflectune.core.errors import UserError
from reflectune.core.types import Passage, Question
from reflectune.data_builders.mmkb.config import DeriveConfig
from reflectune.data_builders.mmkb.rescoring import by_judge, by_metric, rescore, said_in
from reflectune.data_builders.probing.records import DocumentProbe, Probe, Reply
from reflectune.metrics.judging.judges import PROTOCOLS, Judging

PASSAGE = Passage("e", 0, 0, "T", "", "", "Text.")
QUESTIONS = {"q": Question("q", "i.png", "What is it made of?", ("oak",))}
PROBES = [
    Probe(
        "q",
        (Reply("elm", 0.0, -1.0), Reply("a kind of oak", 0.0, -2.0)),
        (
            DocumentProbe(PASSAGE, 0.9, 1, (Reply("a kind of oak", 0.0, -1.0),)),
            DocumentProbe(PASSAGE, 0.8, 2, (Reply(" ", 1.0, -1.0),)),
        ),
    ),
    Probe("bad", problem="image not found"),
]


class Equivalence:
    """Stands for BEM: an answer that holds the accepted one is equivalent."""

    def length(self, triple: tuple[str, str, str]) -> int:
        return 10

    def logits(self, triples: Sequence[tuple[str, str, str]]) -> torch.Tensor:
        return torch.tensor([[0.0, 5.0] if reference in said else [5.0, 0.0] for said, reference, _ in triples])


def correctness(probes: Sequence[Probe]) -> list[float]:
    return [reply.correctness for probe in probes for replies in _replies(probe) for reply in replies]


def _replies(probe: Probe) -> list[tuple[Reply, ...]]:
    return [probe.replies, *(document.replies for document in probe.documents)]


def test_each_answer_to_a_question_is_judged_once_and_silence_never() -> None:
    assert said_in(PROBES) == [("q", "elm"), ("q", "a kind of oak")]


def test_every_reply_gets_its_new_worth_and_silence_is_worth_nothing() -> None:
    rescored = rescore(PROBES, {("q", "elm"): 0.25, ("q", "a kind of oak"): 1.0})
    assert correctness(rescored) == [0.25, 1.0, 1.0, 0.0]
    assert [reply.log_prob for reply in rescored[0].replies] == [-1.0, -2.0]
    assert rescored[1] == PROBES[1]


def test_bem_finds_equivalent_what_no_exact_match_does() -> None:
    said, bem = said_in(PROBES), Equivalence()
    assert by_metric(said, QUESTIONS, "evqa_exact") == {said[0]: 0.0, said[1]: 0.0}
    assert by_metric(said, QUESTIONS, "evqa", bem) == {said[0]: 0.0, said[1]: 1.0}  # type: ignore[arg-type]
    with pytest.raises(UserError, match="needs `bem`"):
        by_metric(said, QUESTIONS, "evqa")


def test_a_judge_decides_and_what_it_mumbles_is_not_right() -> None:
    def complete(conversations: list[list[dict[str, Any]]]) -> list[str]:
        prompts = [messages[-1]["content"] for messages in conversations]
        return ["Correct" if "a kind of oak" in text else "well…" for text in prompts]

    said = said_in(PROBES)
    judging = Judging(PROTOCOLS["mrag"], "stub", complete)
    assert by_judge(said, QUESTIONS, judging) == {said[0]: 0.0, said[1]: 1.0}


def test_a_judge_is_asked_at_temperature_0_as_its_record_says() -> None:
    server = {"llm_url": "http://localhost:8000/v1", "llm_model": "stub", "llm_options": '{"temperature": 1}'}
    judged, unjudged = (DeriveConfig(metric=metric, **server).problems() for metric in ("judge", "infoseek"))

    assert set(judged) - set(unjudged) == {"`llm_options` can't set the temperature of a judge: it is 0"}
