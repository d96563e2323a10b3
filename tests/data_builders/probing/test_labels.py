import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.core.types import Passage, Question
from reflectune.data_builders.probing.labels import Rule, external_labels, is_right, ret_label, srt_labels
from reflectune.data_builders.probing.records import DocumentProbe, Probe, ProbedAnswer


def reply(correctness: float | None) -> ProbedAnswer:
    """Return an answer with this score; None stands for an answer whose log-probability isn't finite."""
    return ProbedAnswer("x", correctness or 0.0, None if correctness is None else -1.0)


def document(number: int, correctness: float | None, gold: float | None = None, text: str = "") -> DocumentProbe:
    passage = Passage(f"e{number}", 0, 0, "T", "", "H", text)
    return DocumentProbe(passage, 1 - number / 10, number, reply(correctness), gold)


def probe(alone: ProbedAnswer | None, *documents: DocumentProbe, gold: float | None = None) -> Probe:
    return Probe("q", alone, documents, gold="x", gold_log_prob=gold)


@pytest.mark.parametrize(
    ("alone", "expected"), [(1.0, False), (0.0, True), (0.5, False), (0.3, True), (None, None)], ids=str
)
def test_a_question_that_is_answered_right_alone_needs_no_retrieval(alone: float, expected: bool | None) -> None:
    label = ret_label(probe(reply(alone)), Rule())
    assert (label.retrieve if label else None) is expected


@pytest.mark.parametrize(
    ("before", "after", "paper", "outcome"),
    [
        (0, 1, True, True),
        (1, 0, False, False),
        (0, 0, None, False),
        (1, 1, None, None),
        (None, 1, None, None),
        (0, None, None, None),
    ],
)
def test_algorithm_2_labels_changes_and_the_outcome_wrong_answers_too(before, after, paper, outcome) -> None:
    made = probe(reply(before), document(1, after))
    for rule, expected in ((Rule(rule="paper"), paper), (Rule(), outcome)):
        assert [label.relevant for label in srt_labels(made, rule)] == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [(-5.0, -3.0, True), (-3.0, -5.0, False), (-3.0, -2.5, None), (None, -1.0, None), (-1.0, None, None)],
)
def test_the_margin_is_in_nats_of_the_accepted_answer(before: float, after: float, expected: bool | None) -> None:
    labels = srt_labels(probe(reply(0), document(1, 0, gold=after), gold=before), Rule(rule="margin", margin=1.0))
    assert [label.relevant for label in labels] == ([] if expected is None else [expected])
    assert all(math.isclose(label.change, after - before) for label in labels)


@given(st.floats(0, 1), st.lists(st.floats(0, 1)))
def test_by_the_papers_rule_no_question_has_both_labels(alone: float, documents: list[float]) -> None:
    made = probe(reply(alone), *itertools.starmap(document, enumerate(documents)))
    labels = srt_labels(made, Rule(rule="paper"))
    assert len({label.relevant for label in labels}) <= 1
    assert all(label.relevant is not is_right(made.reply) for label in labels)


@given(st.floats(-50, 0), st.lists(st.floats(-50, 0)), st.floats(0, 10), st.floats(0, 10))
def test_a_higher_margin_takes_labels_away_and_turns_none(before, after, first, second) -> None:
    made = probe(reply(0), *(document(k, 0, gold=value) for k, value in enumerate(after)), gold=before)
    low, high = (srt_labels(made, Rule(rule="margin", margin=margin)) for margin in sorted((first, second)))
    assert set(high) <= set(low)


def test_an_external_labeller_labels_every_document_by_its_text() -> None:
    question = Question("q", "i.png", "When?", ("1874",), answer_type="time")
    made = probe(reply(1), document(1, 1, text="Built in 1874."), document(2, 0, text="Built in 1875."))
    assert [label.relevant for label in external_labels(made, question)] == [True, False]
    question = Question("q", "i.png", "Is it green?", ("yes",))
    assert external_labels(made, question) == []  # the words of a text can't tell
