"""Savings and costs of PMSR's stop rule, against counts made by hand."""

from types import SimpleNamespace
from typing import Any

import pytest

from reflectune.inference.scoring.scores import TraceScorer
from reflectune.inference.scoring.variants import noise, stop_rule
from reflectune.inference.trace import Step, Trace


def walked(make: SimpleNamespace, number: int, records: int, answer: str, pipeline: str, **more: Any) -> Trace:
    steps = tuple(Step("reason", iteration, text="r") for iteration in range(records))
    return make.trace(number, pipeline, answer=answer, steps=steps, **more)


def test_iterations_with_a_record_are_counted_on_both_sides(make: SimpleNamespace) -> None:
    questions = [make.question(n, split=f"val_unseen_{('question', 'entity')[n % 2]}") for n in range(4)]
    stopping = {q.id: walked(make, n, 1 + n, "oak", "pmsr") for n, q in enumerate(questions)}  # 1, 2, 3 and 4 records
    fixed = {q.id: walked(make, n, 5, ("oak", "elm")[n == 3], "pmsr_fixed") for n, q in enumerate(questions)}
    fixed["q003"] = walked(make, 3, 4, "elm", "pmsr_fixed")  # one that the rule didn't end
    traces = {"pmsr": stopping, "pmsr_fixed": fixed}
    stop = stop_rule(questions, traces, measure=TraceScorer("infoseek"), seed=0)
    assert stop is not None
    assert (stop["iterations"], stop["fixed"], stop["stopped"]) == (2.5, 4.75, 0.75)
    assert stop["saved"]["value"] == pytest.approx(1 - 10 / 19)
    assert stop["saved"]["n"] == 4
    assert stop["lost"]["value"] < 0  # with the stop one more answer is right
    assert stop_rule(questions, {"pmsr": stopping}, measure=TraceScorer("infoseek"), seed=0) is None
    failed = {"pmsr_fixed": {q.id: make.trace(n, error="no image") for n, q in enumerate(questions)}}
    assert stop_rule(questions, {**traces, **failed}, measure=TraceScorer("infoseek"), seed=0) is None


def test_noise_is_told_of_what_had_some(make: SimpleNamespace) -> None:
    noisy = {"q001": make.trace(1, tokens={"noise": 4}), "q002": make.trace(2, tokens={})}
    assert noise({"pmsr": noisy, "mi_rag": {"q001": make.trace(1)}, "empty": {}}) == {"pmsr": 4}
