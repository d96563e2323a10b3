"""Scores of metrics.json: looked up by path, shown in per cent."""

from reflectune.examples.scores import at
from reflectune.metrics.reporting.breakdown import in_per_cent


def test_a_score_that_is_missing_is_none_and_a_dash() -> None:
    assert at({"a": {"b": 1}}, "a", "b") == 1
    assert at({"a": None}, "a", "b") is None
    assert at(None, "a") is None
    assert in_per_cent(None) == in_per_cent({"value": None}) == "–"


def test_a_score_is_shown_with_its_interval_if_it_has_one() -> None:
    assert in_per_cent({"value": 0.5}) == "50.0"
    assert in_per_cent({"value": 0.5, "low": 0.25, "high": 0.75, "n": 8}) == "50.0 [25.0, 75.0], n = 8"
