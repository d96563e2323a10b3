"""Trajectories in the report: findings of each search, reasons of their end, pipelines that iterate."""

from typing import Any

from reflectune.inference.report.trajectories import browsed, costs, endings
from reflectune.inference.scoring.trajectories import COSTS
from reflectune.inference.trace import FoundPassage, Step, Trace


def test_a_search_says_whether_it_found_an_entry_that_is_asked_about() -> None:
    other, right = (FoundPassage(f"{entry}#0.0", entry, "pairs", 0, 1, 0.5) for entry in ("heron", "stork"))
    steps = (
        Step("search", 0, queries=("a bird",), found=(other,)),
        Step("search", 1, queries=("a white bird",), found=(other, right)),
        Step("search", 2, queries=("a bird",)),
        Step("answer", 2, "two eggs"),
    )
    shown = browsed(Trace("q", "pmsr", steps=steps), {"stork"})
    assert [(step["found"], step["right"]) for step in shown] == [(1, False), (2, True), (0, False), (0, False)]


def test_of_many_endings_the_most_common_are_named() -> None:
    many = {"ended": {"queries repeat": 5, "identified a": 2, **{f"identified {name}": 1 for name in "bcdefg"}}}
    assert endings(many).startswith("queries repeat: 5, identified a: 2, ")
    assert endings(many).endswith(", 2 other reasons: 2")
    assert endings({"ended": {f"identified {n}": 1 for n in range(21)}}) == "21 different reasons"
    assert endings({"ended": {"queries repeat": 2, "identified a": 1}}) == "queries repeat: 2, identified a: 1"


UNMEASURED = {"best_baseline": None, "best_of_all": None, "saturation": [], "stop_rule": None}
ENDED = {"ended": {"done": 9}, "courses": {}, "after_convergence": {}}


def test_questions_without_accepted_answers_have_no_share_of_answers() -> None:
    """Numerical questions of one's own may have a range alone."""
    nothing = {"so_far": {}, "alone": {}}
    iteration = {"article_recall": None, "by_base": {}, "record": None, "answer": None, "prr": nothing}
    walked = {"iterations": 2, "by_iteration": [iteration] * 2, **ENDED}
    costed = {"names": {"pmsr": "PMSR"}, "costs": {"pmsr": dict.fromkeys(COSTS, 1.0)}, **UNMEASURED}
    assert "PMSR, after each iteration" in costs({**costed, "trajectories": {"pmsr": walked}})


def test_only_what_iterates_has_a_table_of_iterations() -> None:
    score = {"value": 0.5, "low": 0.4, "high": 0.6, "n": 9}
    iteration = {"article_recall": score, "by_base": {}, "record": None, "answer": None}

    def walked(count: int) -> dict[str, Any]:
        return {"iterations": count, "by_iteration": [iteration] * count, **ENDED}

    shown = costs(
        {
            "names": {"once": "once", "twice": "twice"},
            "costs": {name: dict.fromkeys(COSTS, 1.0) for name in ("once", "twice")},
            "trajectories": {"once": walked(1), "twice": walked(2)},
            **UNMEASURED,
        }
    )
    assert "twice, after each iteration" in shown
    assert "once, after each iteration" not in shown
    assert "once: 1 iterations on average (done: 9)." in shown
