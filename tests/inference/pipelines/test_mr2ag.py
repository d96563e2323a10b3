from collections.abc import Callable
from typing import Any

import pytest

from reflectune.inference.pipelines.mr2ag import MR2AG, Mr2agSettings
from reflectune.inference.trace import Trace


def build(scripted, knowledge, reader, scores=None, **settings):
    retriever = scripted.retriever(scores or {"a": 0.8, "b": 0.4})
    return MR2AG(reader, retriever, knowledge, Mr2agSettings(lead="none", **settings)), retriever


@pytest.fixture
def ask(make, scripted, knowledge) -> Callable[..., Trace]:
    """Return a function that asks a question, which is looked up, of a reader."""

    def run(reader: Any, number: int = 0, **more: Any) -> Trace:
        pipeline, _ = build(scripted, knowledge, reader, **more)
        (trace,) = pipeline.run([make.question(number)], scripted.images(1))
        assert trace.retrieved
        return trace

    return run


def test_the_highest_product_wins_though_no_single_score_does(ask, scripted) -> None:
    reader = scripted.reader(
        gates={"q000": 0.9},
        relevance={"a#0.0": 0.6, "a#1.0": 0.7, "b#0.0": 0.9},
        answers={"a#0.0": ("first", 0.95), "a#1.0": ("second", 0.9), "b#0.0": ("third", 0.97)},
    )
    trace = ask(reader)
    # 0.8·0.6·0.95 = 0.456, 0.8·0.7·0.9 = 0.504, 0.4·0.9·0.97 = 0.349
    assert trace.answer == "second"
    assert trace.passages[trace.chosen].passage.id == "a#1.0"
    assert [p.answer for p in trace.passages] == ["first", "second", "third", None]  # the irrelevant one has no answer
    assert [p.s_ret for p in trace.passages] == [0.8, 0.8, 0.4, 0.4]
    assert trace.fallback == ""


@pytest.mark.parametrize(("gate", "retrieves"), [(0.49, False), (0.5, True), (0.51, True)])
def test_the_gate_opens_at_gamma(make, scripted, knowledge, gate: float, retrieves: bool) -> None:
    reader = scripted.reader(gates={"q000": gate}, answers={"direct": ("red", 0.7)})
    pipeline, retriever = build(scripted, knowledge, reader, gamma=0.5)
    (trace,) = pipeline.run([make.question(0)], scripted.images(1))
    assert trace.retrieved is retrieves
    assert retriever.searched == int(retrieves)
    assert bool(trace.hits) is bool(trace.passages) is retrieves
    if not retrieves:
        assert (trace.answer, trace.confidence, reader.read_passages) == ("red", 0.7, [])


def test_only_questions_that_need_it_go_on(make, scripted, knowledge) -> None:
    reader = scripted.reader(gates={"q000": 0.1, "q001": 0.9, "q002": 0.2}, relevance={"b#1.0": 0.8})
    pipeline, retriever = build(scripted, knowledge, reader)
    traces = pipeline.run([make.question(i) for i in range(3)], scripted.images(3))
    assert [trace.question_id for trace in traces] == ["q000", "q001", "q002"]
    assert retriever.searched == 1
    assert reader.read_passages == ["a#0.0", "a#1.0", "b#0.0", "b#1.0"]
    assert reader.answered == ["q000 directly", "q002 directly", "b#1.0"]
    assert [trace.answer for trace in traces] == ["from direct", "from b#1.0", "from direct"]


def test_nothing_relevant_answers_from_the_best_product_and_says_so(ask, scripted) -> None:
    relevance = {"b#0.0": 0.45, "a#0.0": 0.2}
    trace = ask(scripted.reader({"q000": 1.0}, relevance, {"b#0.0": ("b", 0.9)}), fallback="best_product")
    assert trace.fallback == "best_product"
    assert trace.passages[trace.chosen].passage.id == "b#0.0"  # 0.4·0.45·0.9 = 0.162 against 0.8·0.2·0.5 = 0.08
    assert not any(passage.relevant for passage in trace.passages)
    assert all(passage.answer is not None for passage in trace.passages)


def test_nothing_relevant_may_be_answered_from_a_passage_drawn_by_the_questions_id(ask, scripted) -> None:
    chosen = set()
    for number in range(20):
        reader = scripted.reader(gates={f"q{number:03d}": 1.0})
        trace, again = (ask(reader, number, fallback="random") for _ in range(2))
        read = [place for place, passage in enumerate(trace.passages) if passage.answer is not None]
        assert trace.fallback == "random"
        assert read == [trace.chosen] == [again.chosen]
        chosen.add(trace.chosen)
    assert chosen == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("settings", "expected", "answered", "passages"),
    [
        ({"fallback": "closed_book"}, ("by heart", "closed_book"), ["q000 directly"], 4),
        ({"fallback": "abstain"}, ("", "abstain"), [], 4),
        ({"fallback": "best_product", "scores": {"empty": 0.9}}, ("by heart", "closed_book"), ["q000 directly"], 0),
    ],
    ids=["closed book", "unanswered", "no passage at all"],
)
def test_nothing_relevant_may_be_answered_by_heart_or_not(
    ask, scripted, settings, expected, answered, passages
) -> None:
    reader = scripted.reader(gates={"q000": 1.0}, answers={"direct": ("by heart", 0.3)})
    trace = ask(reader, **settings)
    assert (trace.answer, trace.fallback, trace.chosen) == (*expected, None)
    assert (reader.answered, len(trace.passages)) == (answered, passages)


@pytest.mark.parametrize(("temperature", "chosen"), [(0.0, "b"), (0.01, "a")])
def test_a_temperature_lets_the_nearest_entry_count(ask, scripted, temperature: float, chosen: str) -> None:
    answers = {"a#0.0": ("a", 0.9), "b#0.0": ("b", 0.9)}
    reader = scripted.reader({"q000": 1.0}, {"a#0.0": 0.6, "b#0.0": 0.9}, answers)
    trace = ask(reader, scores={"a": 0.8, "b": 0.78}, s_ret_temperature=temperature)
    assert trace.answer == chosen
    assert [hit.score for hit in trace.hits] == [0.8, 0.78]  # what was found stays as it was found
    assert {round(passage.s_ret, 3) for passage in trace.passages} == ({0.881, 0.119} if temperature else {0.8, 0.78})


def test_a_passage_that_does_not_fit_is_left_out_and_counted(ask, scripted) -> None:
    trace = ask(scripted.reader(gates={"q000": 1.0}, relevance={"a#0.0": 0.9}, room=3))
    assert [p.passage.id for p in trace.passages] == ["a#0.0", "a#1.0", "b#0.0"]
    assert (trace.tokens["passages_read"], trace.tokens["passages_left_out"]) == (3, 1)
