"""How lmms-eval asks and scores the questions of `questions.parquet`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def doc_to_visual(doc: Mapping[str, Any]) -> list[Any]:
    return [doc["image"].convert("RGB")]


def doc_to_text(doc: Mapping[str, Any], lmms_eval_specific_kwargs: Mapping[str, Any] | None = None) -> str:
    return str(doc["question"])


def process_results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    return {"accuracy": float(results[0].strip().lower() == doc["answer"].lower())}
