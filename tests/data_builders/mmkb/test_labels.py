import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.core.config import find_problems
from reflectune.core.types import Passage, Question
from reflectune.data_builders.mmkb.labels import LabelSettings, assemble, derive, sample, sample_labels
from reflectune.data_builders.probing.records import DocumentProbe, Probe, ProbedAnswer
from reflectune.models.schemes.examples import PromptedBranch


@given(st.lists(st.booleans()), st.floats(1, 4), st.integers(1, 30), st.integers(0, 3))
def test_balance_and_limit_hold(labels: list[bool], balance: float, limit: int, seed: int) -> None:
    numbered = list(enumerate(labels))
    chosen = sample(numbered, limit, seed, balance, lambda numbered_label: numbered_label[1])
    yes, no = sum(label for _, label in chosen), sum(not label for _, label in chosen)
    assert chosen == sorted(chosen)
    assert len(chosen) <= limit
    if len(chosen) < limit and all((sum(labels), labels.count(False))):
        assert max(yes, no) <= min(yes, no) * balance
        assert min(yes, no) == min(sum(labels), labels.count(False))


@given(st.lists(st.booleans()), st.integers(1, 30), st.integers(1, 30))
def test_a_lower_limit_takes_of_what_a_higher_one_takes(labels: list[bool], first: int, second: int) -> None:
    numbered = list(enumerate(labels))
    low, high = (
        sample(numbered, limit, 0, 1.0, lambda numbered_label: numbered_label[1]) for limit in sorted((first, second))
    )
    assert set(low) <= set(high)


def test_without_limits_and_of_a_single_kind_all_are_taken() -> None:
    assert sample([3, 0, 2], None, 0) == [3, 0, 2]
    assert sample([True, True, True], None, 0, balance=1) == [True, True, True]


def answer(right: bool) -> ProbedAnswer:
    return ProbedAnswer("x", float(right), -1.0)


def probe(name: str, alone: bool, *rows: tuple[bool, float, float]) -> Probe:
    """Return a probe; a row is (right, log-probability of the accepted answer, S_ret)."""
    documents = tuple(
        DocumentProbe(Passage(f"e{k}", 0, 0, "T", "", "H", f"{k}"), s, k + 1, answer(right), log, found=f"{k + 1} of 3")
        for k, (right, log, s) in enumerate(rows)
    )
    return Probe(name, answer(alone), documents, gold="x", gold_log_prob=-4.0)


MIXED = probe("q", False, (True, -2.0, 0.3), (False, -6.0, 0.5), (True, -1.0, 0.2), (False, -4.5, 0.9))
QUESTIONS = {name: Question(name, "a.png", "?", ("x",), split="train") for name in "qrs"}


def branches(probes: list[Probe], prompt: str, rel_scores=None, **settings) -> list[PromptedBranch]:
    labels = LabelSettings(**settings)
    assert labels.problems() == []
    derived = derive(probes, QUESTIONS, labels, summaries=False, rel_scores=rel_scores)
    examples = assemble(sample_labels(derived, labels), derived, QUESTIONS, labels)
    return [branch for example in examples for branch in example.branches if branch.prompt == prompt]


def test_a_pair_is_the_most_helpful_document_and_the_nearest_useless_one() -> None:
    one_kind = probe("r", False, (False, -9.0, 0.9))
    pair = branches([MIXED, one_kind], "srt", pairs=True)
    assert [(b.documents[0].entry_id, b.role, b.found) for b in pair] == [
        ("e2", "relevant", "3 of 3"),
        ("e3", "irrelevant", "4 of 3"),
    ]
    twice = [MIXED, dataclasses.replace(MIXED, question_id="s")]
    assert len(branches(twice, "srt", pairs=True)) == 4
    assert [b.role for b in branches(twice, "srt", pairs=True, srt_limit=3)] == ["relevant", "irrelevant"]


def test_soft_labels_weigh_both_tokens_by_the_change_of_the_log_probability() -> None:
    soft = branches([MIXED], "srt", rule="margin", margin=2.0, soft=True)
    assert [branch.role for branch in soft] == ["relevant", "irrelevant"] * 4
    for k, change in enumerate((2.0, -2.0, 3.0, -0.5)):
        assert soft[2 * k].weight == pytest.approx(1 / (1 + math.exp(-change / 2)))
        assert soft[2 * k].weight + soft[2 * k + 1].weight == pytest.approx(1)
    hard = branches([MIXED], "srt", rule="margin", margin=2.0)
    assert [(b.documents[0].entry_id, b.weight) for b in hard] == [("e0", 1.0), ("e1", 1.0), ("e2", 1.0)]


@pytest.mark.parametrize(
    ("most", "scores", "read"),
    [
        (None, None, ["e0", "e2"]),
        (2, None, None),  # e3 and e1 are nearest, and neither is relevant
        (3, None, ["e3", "e1", "e0"]),
        (2, [0.1, 0.2, 0.9, 0.3], ["e2", "e3"]),
    ],
)
def test_a_shared_model_answers_from_the_list_that_it_will_read(most, scores, read) -> None:
    by_passage = {("q", d.passage.id): s for d, s in zip(MIXED.documents, scores or [], strict=False)} or None
    made = branches([MIXED], "vqa", by_passage, answer_model="shared", answer_documents=most)
    assert [[p.entry_id for p in branch.documents] for branch in made] == ([read] if read else [])


@pytest.mark.parametrize(("rule", "roles"), [("known", ["retrieve", "no_retrieve", "retrieve"]), ("utility", None)])
def test_by_utility_a_question_that_no_document_answers_is_not_retrieved_for(rule: str, roles) -> None:
    probes = [MIXED, probe("r", True, (True, -1.0, 0.5)), probe("s", False, (False, -9.0, 0.5))]
    expected = roles or ["retrieve", "no_retrieve", "no_retrieve"]
    assert [branch.role for branch in branches(probes, "ret", ret_rule=rule)] == expected


@pytest.mark.parametrize(
    "values", [{"pairs": True, "srt_balance": 2}, {"answer_documents": 2}, {"soft": True}, {"min_relevant": 0}]
)
def test_switches_without_what_they_need_are_refused(values: dict) -> None:
    assert find_problems(LabelSettings, values)
