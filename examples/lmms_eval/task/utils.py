"""Functions by which lmms-eval asks and scores the questions of `questions.parquet`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def doc_to_visual(doc: Mapping[str, Any]) -> list[Any]:
    """Return the picture."""
    return [doc["image"].convert("RGB")]


def doc_to_text(doc: Mapping[str, Any], lmms_eval_specific_kwargs: Mapping[str, Any] | None = None) -> str:
    """Return the question."""
    return str(doc["question"])


def process_results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Score an answer."""
    return {"accuracy": float(results[0].strip().lower() == doc["answer"].lower())}
