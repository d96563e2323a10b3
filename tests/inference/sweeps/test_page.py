import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from reflectune.core.html import read_asset
from reflectune.inference.report.drawing import Chart
from reflectune.inference.sweeps.outcomes import CheckedProbability
from reflectune.inference.sweeps.page import axis_chart, reliability, write_page

EVIL = "</td><script>alert(1)</script> & \"' {{ 7 * 7 }}"


def point(accuracy: float, rate: float, **settings: object) -> dict:
    score = {"value": accuracy, "low": accuracy - 0.1, "high": accuracy + 0.1, "n": 10}
    return {"name": "", "settings": settings, "accuracy": score, "retrieval_rate": rate}


def labels(chart: Chart) -> list[str]:
    return [label for _, label in chart.x_ticks]


def test_an_axis_of_numbers_is_ordered_by_size_with_auto_last() -> None:
    points = [point(0.5, 1.0, k=k, gamma=0.5) for k in ("auto", 10, 2)]
    points.append(point(0.1, 1.0, k=5, gamma=0.9))  # another gamma: not on this axis
    chart = axis_chart("k", {"k": "auto", "gamma": 0.5}, points)
    assert labels(chart) == ["2", "10", "auto"]
    assert "the others fixed: gamma 0.5" in chart.note
    assert chart.right_label == "retrieval rate"


def test_a_probability_keeps_its_position_on_the_axis() -> None:
    chart = axis_chart("gamma", {"gamma": 0.5}, [point(0.5, 0.25, gamma=g) for g in (1.0, 0.5)])
    accuracy, rate, interval = chart.lines
    assert accuracy.points == [(0.5, 0.5), (1.0, 0.5)]
    assert rate.points == [(0.5, 0.25), (1.0, 0.25)]
    assert interval.points == [(0.5, 0.4), (1.0, 0.4), (1.0, 0.6), (0.5, 0.6), (0.5, 0.4)]
    assert labels(chart) == ["0", "0.25", "0.5", "0.75", "1"]


def test_words_are_not_joined_by_a_line() -> None:
    on_off = [point(0.5, 1.0, ret=value) for value in (True, False)]
    chart = axis_chart("ret", {"ret": True}, on_off)
    assert labels(chart) == ["off", "on"]
    assert all(line.dots and not line.joined for line in chart.lines[:2])


def test_reliability_is_on_the_diagonal_when_calibrated() -> None:
    judged = [CheckedProbability("gate", 0.75, i < 3) for i in range(4)] + [
        CheckedProbability("gate", 0.25, i < 1) for i in range(4)
    ]
    chart = reliability("RET", "share", judged)
    assert chart.lines[0].points == [(0.25, 0.25), (0.75, 0.75)]
    assert chart.diagonal
    assert "Expected calibration error 0.000, AUROC 0.750" in chart.note


def test_one_kind_of_truth_has_no_auroc() -> None:
    assert "AUROC" not in reliability("RET", "share", [CheckedProbability("gate", 0.9, True)]).note


def sweep(folder: Path, text: str) -> str:
    """Write the page and the charts of a sweep whose model, point and column are called `text`. Return the page."""
    score = {"value": 0.5, "low": 0.25, "high": 0.75, "n": 4}
    record = {
        "pipeline": "mr2ag",
        "model": text,
        "start": {"gamma": 0.5},
        "points": [
            {
                "name": text,
                "settings": {"gamma": 0.5, "fallback": text},
                "accuracy": score,
                "over_start": None,
                "unseen_entity": score,
                "visual": None,
                "retrieval_rate": 0.125,
                "passages_read": 3.25,
            }
        ],
        "metric": {"columns": {"overall": "overall", "unseen_entity": text}},
        "questions": 4,
        "resampled": "3 entities",
        "forward_passes": {"made": 3, "saved": 9},
    }
    results: Any = SimpleNamespace(judgements=lambda kind: [CheckedProbability(kind, 0.5, True)])
    write_page(folder, results, record)
    return (folder / "sweep.html").read_text(encoding="utf-8")


def test_the_page_shows_every_point_with_its_intervals(tmp_path: Path) -> None:
    page = sweep(tmp_path, "gamma=0.5")
    assert "4 questions at 1 points of mr2ag" in page
    assert "Intervals over 3 entities." in page
    score = '<td>50.0<span class="interval">25.0 to 75.0</span></td>'
    cells = f"{score}<td>–</td>{score}<td>–</td><td>0.125</td><td>3.250</td>"
    assert f'<th scope="row">gamma=0.5</th>{cells}' in page
    assert page.count("<figure") == len(list(tmp_path.glob("*.svg"))) == 3


def test_no_text_of_a_sweep_becomes_markup(tmp_path: Path) -> None:
    evil, plain = (re.findall(r"<[a-z]+", sweep(tmp_path / name, text)) for name, text in (("e", EVIL), ("p", "x")))
    assert evil == plain
    for path in (tmp_path / "e").glob("*.svg"):
        assert not list(ElementTree.parse(path).getroot().iter("{http://www.w3.org/2000/svg}script"))


def test_the_page_allows_its_own_style_and_nothing_else(tmp_path: Path) -> None:
    page = sweep(tmp_path, "x")
    style_hash = read_asset("inference/report/page.css").hash
    assert f"content=\"default-src 'none'; img-src data:; style-src '{style_hash}'\"" in page
    assert "<script" not in page
