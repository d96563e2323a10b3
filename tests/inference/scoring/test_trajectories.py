"""Findings and records of trajectories by iteration, against counts made by hand."""

import dataclasses
import functools
from types import SimpleNamespace
from typing import Any

import pytest

from reflectune.core.types import Passage
from reflectune.inference.scoring.scores import TraceScorer
from reflectune.inference.scoring.trajectories import (
    costs,
    found_until,
    iterations_after,
    records_right,
    trajectories,
    trajectory_type,
)
from reflectune.inference.scoring.variants import saturation_curve
from reflectune.inference.trace import FoundPassage, PassageTrace, Step, Trace

measure = functools.partial(trajectories, seed=0, measure=TraceScorer("exact_match"), names={})
OF_RECORD = "Question: What is it made of?\nIt is a chair.\n"


def found(entry_id: str, base: str) -> FoundPassage:
    return FoundPassage(f"{entry_id}#0.0", entry_id, base, 0, 1, 0.5)


def search(iteration: int, *entries: tuple[str, str]) -> Step:
    return Step("search", iteration, queries=(OF_RECORD,), found=tuple(found(*each) for each in entries))


def reason(iteration: int, text: str) -> Step:
    return Step("reason", iteration, text=text)


@pytest.fixture
def walked(make: SimpleNamespace) -> Trace:
    """Finds the wrong entry, then the right one among the pairs; knows better only at the end."""
    return make.trace(
        1,
        "pmsr",
        steps=(
            *(search(0, ("e2", "texts"), ("e3", "pairs")), reason(0, "It is elm.")),
            *(search(1, ("e2", "texts"), ("e1", "pairs")), reason(1, "It is made of oak.")),
        ),
        ended="queries repeat",
        tokens={"iterations": 3, "calls": 5, "searches": 2, "read": 70, "computed": 40, "generated": 12},
        seconds={"search": 0.25, "reason": 0.5},
    )


def test_recall_is_cumulative_over_all_bases_and_by_base(make: SimpleNamespace, walked: Trace) -> None:
    question = make.question(1, entity_ids=("e1",))
    assert [found_until(question, walked, iteration) for iteration in range(2)] == [0.0, 1.0]
    assert [found_until(question, walked, 1, base) for base in ("texts", "pairs")] == [0.0, 1.0]


def test_a_trajectory_that_ended_keeps_its_last_record(make: SimpleNamespace, walked: Trace) -> None:
    assert records_right(make.question(1), walked, 3) == [0.0, 1.0, 1.0, 1.0]
    assert records_right(make.question(1), make.trace(1, "reag", steps=(search(0),)), 3) == []


@pytest.mark.parametrize(
    ("texts", "right", "after"),
    [
        (["oak", "oak", "oak"], [1, 1, 1], 2),
        (["elm", "oak", "oak", "oak"], [0, 1, 1, 1], 2),
        (["oak", "elm", "oak"], [1, 0, 1], 0),  # right for good from the last record on
        (["elm", "oak"], [0, 1, 1, 1], 0),  # others ran longer
    ],
)
def test_iterations_after_convergence_are_the_records_after_the_first_that_stays_right(
    make: SimpleNamespace, texts: list[str], right: list[float], after: int
) -> None:
    steps = [reason(iteration, f"It is {text}.") for iteration, text in enumerate(texts)]
    trace = make.trace(1, "pmsr", steps=tuple(steps))
    assert records_right(make.question(1), trace, len(right) - 1) == right
    assert iterations_after(trace, right) == after


@pytest.mark.parametrize(
    "more",
    [{"answer": "12", "answer_type": "numerical"}, {"answer": "It is oak.", "answer_type": "free_form"}],
    ids=["a-number-without-a-range", "a-sentence"],
)
def test_a_record_is_not_searched_for_what_cannot_stand_in_it(make, walked, more: dict[str, str]) -> None:
    """Other metrics score such a question; of the record nothing is said."""
    question = make.question(1, entity_ids=("e1",), **more)
    measured = measure([question], {"pmsr": {question.id: walked}})["pmsr"]
    assert [each["record"] for each in measured["by_iteration"]] == [None, None]
    assert [each["article_recall"]["value"] for each in measured["by_iteration"]] == [0.0, 1.0]
    assert measured["courses"] == {}


@pytest.mark.parametrize(
    ("right", "expected"),
    [
        ([1.0, 1.0], "stable_correct"),
        ([0.0, 1.0], "correction"),
        ([1.0, 0.0, 1.0], "correction"),
        ([1.0, 0.0], "conflict"),
        ([0.0, 1.0, 0.0], "conflict"),
        ([0.0, 0.0], "persistent_fail"),
    ],
    ids=["right", "wrong right", "right wrong right", "right wrong", "wrong right wrong", "wrong"],
)
def test_types_of_trajectories(right: list[float], expected: str) -> None:
    assert trajectory_type(right) == expected


def test_all_of_it_by_pipeline(make: SimpleNamespace, walked: Trace) -> None:
    first = make.question(1, entity_ids=("e1",))
    second = make.question(2, entity_ids=("e2",))
    steps = (search(0, ("e2", "texts")), reason(0, "Oak."))
    other = make.trace(2, "pmsr", steps=steps, ended="after 0 iterations", tokens={"iterations": 1})
    failed = make.trace(3, "pmsr", error="no image")
    traces = {"pmsr": {"q001": walked, "q002": other, "q003": failed}, "closed_book": {"q001": make.trace(1)}}
    measured: dict[str, Any] = measure([first, second, make.question(3)], traces)
    assert list(measured) == ["pmsr"]
    measured_pmsr = measured["pmsr"]
    assert measured_pmsr["iterations"] == 2.0
    assert measured_pmsr["ended"] == {"queries repeat": 1, "after 0 iterations": 1}
    assert [row["article_recall"]["value"] for row in measured_pmsr["by_iteration"]] == [0.5, 1.0]
    assert [row["by_base"]["texts"]["value"] for row in measured_pmsr["by_iteration"]] == [0.5, 0.5]
    assert [row["record"]["value"] for row in measured_pmsr["by_iteration"]] == [0.5, 1.0]
    gained = {name: score["value"] for name, score in measured_pmsr["gained"].items()}
    assert gained == {"article_recall": 0.5, "record": 0.5, "bases": 0.5}  # texts find q002's alone, pairs q001's
    assert measured_pmsr["asked"]["value"] == 0.0  # the one later search has the record's query alone
    courses = {"stable_correct": 0.5, "correction": 0.5, "conflict": 0.0, "persistent_fail": 0.0}
    assert measured_pmsr["courses"] == courses
    after = {name: (score["value"], score["n"]) for name, score in measured_pmsr["after_convergence"].items()}
    assert after == {"stable_correct": (0.0, 1), "correction": (0.0, 1)}


def test_what_a_model_asks_itself_is_counted_of_later_searches_alone(make: SimpleNamespace) -> None:
    own = Step("search", 1, queries=(OF_RECORD, "who painted it?"))
    asks = make.trace(1, "mi_rag", steps=(Step("search", 0, queries=("q", "r")), own, search(2)))
    once = make.trace(2, "mi_rag", steps=(search(0, ("e2", "pairs")),))
    questions = [make.question(1), make.question(2)]
    measured_pmsr: dict[str, Any] = measure(questions, {"mi_rag": {"q001": asks, "q002": once}})["mi_rag"]
    assert (measured_pmsr["asked"]["value"], measured_pmsr["asked"]["n"]) == (0.5, 1)
    alone: dict[str, Any] = measure(questions, {"mi_rag": {"q002": once}})["mi_rag"]
    assert alone["asked"] is None
    assert alone["gained"] == {"article_recall": None, "record": None, "bases": None}


def test_costs_are_means_and_unknown_where_they_are_not_counted(make: SimpleNamespace, walked: Trace) -> None:
    counted = {"calls": 5.0, "searches": 2.0, "read": 70.0, "computed": 40.0, "generated": 12.0}
    assert costs({"q001": walked}) == {**counted, "passages": 0.0, "seconds": 0.75}
    assert costs({"q001": walked, "q002": make.trace(2)})["calls"] is None
    assert costs({"q001": make.trace(1, error="no image")})["passages"] is None


def test_what_searches_at_most_once_has_its_searches_counted_by_what_it_found(make: SimpleNamespace) -> None:
    found, given = make.hit("e1", 1), dataclasses.replace(make.hit("e1", 1), query="gold")
    looked_up = {"q001": make.trace(1, retrieved=True, hits=(found,)), "q002": make.trace(2, retrieved=False)}
    assert costs(looked_up)["searches"] == 0.5
    assert costs({"q001": make.trace(1, retrieved=True, hits=(given,))})["searches"] == 0.0


def reads(entry_id: str, title: str, text: str) -> PassageTrace:
    return PassageTrace(Passage(entry_id, 0, 0, title, "", "", text))


def test_texts_found_are_measured_by_iteration_without_entity_ids(make: SimpleNamespace, walked: Trace) -> None:
    texts = (reads("e2", "Elm", "A tree."), reads("e3", "Bench", "See the Windsor chair."), reads("e1", "Oak", "Wood."))
    traces = {"pmsr": {"q001": dataclasses.replace(walked, passages=texts)}}
    question = make.question(1)  # its answer is oak
    [first, second] = measure([question], traces, names={"q001": ["Windsor Chair"]})["pmsr"]["by_iteration"]

    def values(measured: dict[str, Any]) -> dict[str, float]:
        return {base: score["value"] for base, score in measured.items()}

    assert values(first["entity_mention"]["alone"]) == {"": 1.0, "pairs": 1.0, "texts": 0.0}
    assert values(second["entity_mention"]["alone"]) == {"": 0.0, "pairs": 0.0, "texts": 0.0}
    assert values(second["entity_mention"]["so_far"]) == {"": 1.0, "pairs": 1.0, "texts": 0.0}
    assert [values(each["prr"]["so_far"])[""] for each in (first, second)] == [0.0, 1.0]
    [by_answer, _] = measure([question], traces)["pmsr"]["by_iteration"]
    assert by_answer["entity_mention"]["so_far"][""]["value"] == 0.0  # without a name, its answers'
    unread: dict[str, Any] = measure([question], {"pmsr": {"q001": walked}})["pmsr"]
    assert "entity_mention" not in unread["by_iteration"][0]


def test_recall_of_a_base_in_one_iteration(make: SimpleNamespace, walked: Trace) -> None:
    measured = measure([make.question(1, entity_ids=("e2",))], {"pmsr": {"q001": walked}})["pmsr"]
    assert [each["alone"]["texts"]["value"] for each in measured["by_iteration"]] == [1.0, 1.0]
    assert [each["alone"]["pairs"]["value"] for each in measured["by_iteration"]] == [0.0, 0.0]


def fixed(make: SimpleNamespace, *answers: str) -> Trace:
    """Three iterations whose queries resemble earlier ones more and more; the second record alone is right."""
    steps = [reason(0, "Elm."), *([Step("answer", 0, text=answers[0])] if answers else [])]
    for iteration, (alike, record) in enumerate([(0.7, "It is oak."), (0.92, "It is elm.")], start=1):
        steps += [Step("rewrite", iteration, read=10), Step("liken", iteration, probability=alike), search(iteration)]
        steps += [reason(iteration, record)]
        steps += [Step("answer", iteration, text=answers[iteration], read=5)] if answers else []
    return make.trace(1, "pmsr_fixed", steps=(*steps, *([] if answers else [Step("answer", 2, text="elm", read=5)])))


def test_what_the_stop_would_have_done_at_each_threshold(make: SimpleNamespace) -> None:
    questions, scorer = [make.question(1, answer_type="string")], TraceScorer("infoseek")
    curve = saturation_curve(questions, {"pmsr_fixed": {"q001": fixed(make, "elm", "oak", "elm")}}, measure=scorer)
    at = {point["tau"]: point for point in curve}
    assert [at[tau]["iterations"] for tau in (0.6, 0.9, 2.0)] == [1, 2, 3]
    assert [at[tau]["stopped"] for tau in (0.6, 0.9, 2.0)] == [1, 1, 0]
    assert [at[tau]["record"] for tau in (0.6, 0.9, 2.0)] == [0, 1, 0]
    assert [at[tau]["answer"] for tau in (0.6, 0.9, 2.0)] == [0, 1, 0]
    assert [at[tau]["calls"] for tau in (0.6, 0.9, 2.0)] == [1 + 1 + 1, 2 + 2 + 1, 3 + 2 + 1]
    assert [at[tau]["tokens"] for tau in (0.6, 0.9, 2.0)] == [10, 25, 25]
    detailed = fixed(make, "It is elm.", "It may be oak.", "So it is elm.")
    short = [Step("extract", i, text=f"##Best Answer: {said}") for i, said in enumerate(("elm", "oak", "elm"))]
    shortened = dataclasses.replace(detailed, steps=(*detailed.steps, *short))
    curve = saturation_curve(questions, {"pmsr_fixed": {"q001": shortened}}, measure=scorer)
    at = {point["tau"]: point for point in curve}
    assert [at[tau]["answer"] for tau in (0.6, 0.9, 2.0)] == [0, 1, 0]
    assert [at[tau]["calls"] for tau in (0.6, 0.9, 2.0)] == [4, 6, 7]
    early = dataclasses.replace(fixed(make), steps=(*fixed(make).steps[:-1], Step("answer", 0, text="elm")))
    for once in (fixed(make), early):  # one answer in all, whichever iteration it is of
        curve = saturation_curve(questions, {"pmsr_fixed": {"q001": once}}, measure=scorer)
        assert {point["answer"] for point in curve} == {None}
    assert saturation_curve(questions, {"pmsr": {"q001": fixed(make)}}, measure=scorer) == []
