"""What trajectories find and know by iteration, against counts made by hand."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from reflectune.inference.scoring.trajectories import costs, course, found_until, records_right, trajectories
from reflectune.inference.trace import FoundPassage, Step, Trace

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
    "more",
    [{"answer": "12", "answer_type": "numerical"}, {"answer": "It is oak.", "answer_type": "free_form"}],
    ids=["a-number-without-a-range", "a-sentence"],
)
def test_a_record_is_not_searched_for_what_cannot_stand_in_it(make, walked, more: dict[str, str]) -> None:
    """Other metrics score such a question; of the record nothing is said."""
    question = make.question(1, entity_ids=("e1",), **more)
    measured = trajectories([question], {"pmsr": {question.id: walked}}, seed=0)["pmsr"]
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
    assert course(right) == expected


def test_all_of_it_by_pipeline(make: SimpleNamespace, walked: Trace) -> None:
    first = make.question(1, entity_ids=("e1",))
    second = make.question(2, entity_ids=("e2",))
    steps = (search(0, ("e2", "texts")), reason(0, "Oak."))
    other = make.trace(2, "pmsr", steps=steps, ended="after 0 iterations", tokens={"iterations": 1})
    failed = make.trace(3, "pmsr", error="no picture")
    traces = {"pmsr": {"q001": walked, "q002": other, "q003": failed}, "closed_book": {"q001": make.trace(1)}}
    measured: dict[str, Any] = trajectories([first, second, make.question(3)], traces, seed=0)
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


def test_what_a_model_asks_itself_is_counted_of_later_searches_alone(make: SimpleNamespace) -> None:
    own = Step("search", 1, queries=(OF_RECORD, "who painted it?"))
    asks = make.trace(1, "mi_rag", steps=(Step("search", 0, queries=("q", "r")), own, search(2)))
    once = make.trace(2, "mi_rag", steps=(search(0, ("e2", "pairs")),))
    questions = [make.question(1), make.question(2)]
    measured_pmsr: dict[str, Any] = trajectories(questions, {"mi_rag": {"q001": asks, "q002": once}}, seed=0)["mi_rag"]
    assert (measured_pmsr["asked"]["value"], measured_pmsr["asked"]["n"]) == (0.5, 1)
    alone: dict[str, Any] = trajectories(questions, {"mi_rag": {"q002": once}}, seed=0)["mi_rag"]
    assert alone["asked"] is None
    assert alone["gained"] == {"article_recall": None, "record": None, "bases": None}


def test_costs_are_means_and_unknown_where_they_are_not_counted(make: SimpleNamespace, walked: Trace) -> None:
    counted = {"calls": 5.0, "searches": 2.0, "read": 70.0, "computed": 40.0, "generated": 12.0}
    assert costs({"q001": walked}) == {**counted, "passages": 0.0, "seconds": 0.75}
    assert costs({"q001": walked, "q002": make.trace(2)})["calls"] is None
    assert costs({"q001": make.trace(1, error="no picture")})["passages"] is None


def test_what_searches_at_most_once_has_its_searches_counted_by_what_it_found(make: SimpleNamespace) -> None:
    found, given = make.hit("e1", 1), dataclasses.replace(make.hit("e1", 1), query="gold")
    looked_up = {"q001": make.trace(1, retrieved=True, hits=(found,)), "q002": make.trace(2, retrieved=False)}
    assert costs(looked_up)["searches"] == 0.5
    assert costs({"q001": make.trace(1, retrieved=True, hits=(given,))})["searches"] == 0.0
