from __future__ import annotations

import pytest

from reflectune.metrics.judging.cover import match


@pytest.mark.parametrize(
    ("prediction", "answers", "score"),
    [
        ("Parisian", ["Paris"], 1),
        ("paris", ["Paris"], 0),
        ("in Rome", ["Paris", "Rome"], 1),
        ("x", [], 0),
        ("", ["x"], 0),
    ],
)
def test_an_answer_counts_wherever_it_stands(prediction: str, answers: list[str], score: int) -> None:
    assert match(prediction, answers) == score
