"""What validation calls a scheme's gates, and what it measures."""

from __future__ import annotations

from typing import Final

_GATES: Final = {"mr2ag": ("retrieve", "relevance"), "mmkb_rag": ("ret", "srt"), "plain": ()}
_METRICS: Final = ("accuracy", "auroc", "calibration_error")
ANSWERS: Final = "answer_exact_match"
"""The share of right answers, if any are read."""


def gate_names(scheme: str) -> tuple[str, ...]:
    """The names of a scheme's two gates: whether to retrieve, and whether a passage is evidence; `plain` has none."""
    return _GATES[scheme]


def metric_names(scheme: str) -> list[str]:
    """What validation measures, and `best_metric` may be; none for a scheme that is not known."""
    return ["loss", *(f"{gate}_{metric}" for gate in _GATES.get(scheme, ()) for metric in _METRICS), ANSWERS]


def greater_is_better(metric: str) -> bool:
    """Whether more of a metric is better."""
    return not metric.endswith(("loss", "calibration_error"))
