from __future__ import annotations

import re

from reflectune.inference.grid.outcomes import Judgement
from reflectune.inference.grid.sweep_page import axis_chart, reliability, standalone


def point(accuracy: float, rate: float, **settings: object) -> dict:
    score = {"value": accuracy, "low": accuracy - 0.1, "high": accuracy + 0.1, "n": 10}
    return {"name": "", "settings": settings, "accuracy": score, "retrieval_rate": rate}


def labels(chart: str) -> list[str]:
    return re.findall(r'class="tick" text-anchor="middle"[^>]*>([^<]*)<', chart)


def test_an_axis_of_numbers_is_ordered_by_size_with_auto_last() -> None:
    points = [point(0.5, 1.0, k=k, gamma=0.5) for k in ("auto", 10, 2)]
    points.append(point(0.1, 1.0, k=5, gamma=0.9))  # another gamma: not on this axis
    chart = axis_chart("k", {"k": "auto", "gamma": 0.5}, points)
    assert labels(chart) == ["2", "10", "auto"]
    assert "the others fixed: gamma 0.5" in chart
    assert ">retrieval rate<" in chart


def test_a_probability_keeps_its_place_on_the_axis() -> None:
    chart = axis_chart("gamma", {"gamma": 0.5}, [point(0.5, 0.25, gamma=g) for g in (1.0, 0.5)])
    assert "accuracy: 0.500, 0.500" in chart
    assert "retrieval rate (right): 1.000, 0.250" in chart
    assert labels(chart) == ["0", "0.25", "0.5", "0.75", "1"]


def test_words_are_not_joined_by_a_line() -> None:
    on_off = [point(0.5, 1.0, ret=value) for value in (True, False)]
    chart = axis_chart("ret", {"ret": True}, on_off)
    assert labels(chart) == ["off", "on"]
    assert 'class="line' not in chart


def test_reliability_is_on_the_diagonal_when_calibrated() -> None:
    judged = [Judgement("gate", 0.75, i < 3) for i in range(4)] + [Judgement("gate", 0.25, i < 1) for i in range(4)]
    chart = reliability("RET", "share", judged)
    assert "RET: 0.250, 0.250" in chart
    assert "RET: 0.750, 0.750" in chart
    assert "Expected calibration error 0.000, AUROC 0.750" in chart


def test_one_kind_of_truth_has_no_auroc() -> None:
    assert "AUROC" not in reliability("RET", "share", [Judgement("gate", 0.9, True)])


def test_a_plot_of_its_own_has_its_namespace_and_style() -> None:
    svg = standalone('<figure><svg viewBox="0 0 1 1"><path d="M0 0"/></svg></figure>', "a > b { }")
    assert svg.startswith('<svg xmlns="http://www.w3.org/2000/svg"')
    assert "<style>a &gt; b { }</style>" in svg
