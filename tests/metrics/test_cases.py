"""Replays what the official programs printed; the file of pairs lies beside the repository, not in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reflectune.metrics import evqa, infoseek, retrieval, text, vqa

CASES = Path(__file__).parents[3] / "shared" / "cases" / "metrics.json"
BEM_LENGTH = 512


def bem_of_fixed_logits(bem_logits: list[float]) -> Callable[[str, str, str], list[float]]:
    """What the pairs were printed with: a word a piece, padded to 512 with no truncation, then fixed logits."""

    def logits(*segments: str) -> list[float]:
        pieces = 1 + sum(len(segment.split()) + 1 for segment in segments)
        np.zeros(BEM_LENGTH - pieces)
        return bem_logits

    return logits


def evaluate_with_fixed_logits(reference_list: list[str], bem_logits: list[float], **inputs: str) -> float:
    return evqa.evaluate_example(references=reference_list, bem_logits=bem_of_fixed_logits(bem_logits), **inputs)


REPLAYED: dict[str, Callable[..., Any]] = {
    "infoseek.normalize_answer": infoseek.normalize_answer,
    "infoseek.string_exact_match": infoseek.exact_match,
    "infoseek.time_exact_match": infoseek.exact_match,
    "infoseek.parse_numerical": infoseek.parse_numerical,
    "infoseek.clean_str_range": infoseek.clean_str_range,
    "infoseek.numerical": infoseek.numerical,
    "infoseek.numerical_range": infoseek.numerical_range,
    "infoseek.range_iou": infoseek.range_iou,
    "infoseek.harmonic_mean": lambda values: infoseek.harmonic_mean(*values),
    "infoseek.evaluate": infoseek.official_report,
    "evqa.preprocess_answer": evqa.preprocess_answer,
    "evqa.single_exact_match": evqa.single_exact_match,
    "evqa.multi_exact_match": evqa.multi_exact_match,
    "evqa.list_iou": evqa.list_iou,
    "evqa.bem_input_segments": lambda **inputs: list(evqa.bem_segments(**inputs)),
    "evqa.evaluate_example_fixed_bem_logits": evaluate_with_fixed_logits,
    "vqa.soft_accuracy": lambda **inputs: vqa.percent(vqa.soft_accuracy(**inputs)),
    "selfrag.match": text.match,
    "echosight.recall_at_k": lambda **inputs: {str(k): v for k, v in retrieval.recall_at_k(**inputs).items()},
}
NOT_RUN = {"evqa.evaluate_example_real_bem": "not run by anyone: needs BEM's weights from TF-Hub"}


def cases() -> list[Any]:
    if not CASES.exists():
        return [pytest.param(None, marks=pytest.mark.skip(reason=f"no {CASES}: the pairs are not part of the repo"))]
    rows = json.loads(CASES.read_text(encoding="utf-8"))
    return [
        pytest.param(
            row,
            id=f"{row['metric']}-{number}",
            marks=[pytest.mark.skip(reason=NOT_RUN[row["metric"]])] if row["metric"] in NOT_RUN else [],
        )
        for number, row in enumerate(rows)
    ]


@pytest.mark.parametrize("case", cases())
def test_prints_what_the_official_program_prints(case: dict[str, Any]) -> None:
    metric, inputs, expected = REPLAYED[case["metric"]], case["inputs"], case["expected"]
    if isinstance(expected, dict) and "error" in expected:
        with pytest.raises((TypeError, ValueError)) as caught:
            metric(**inputs)
        assert (type(caught.value).__name__, str(caught.value)) == (expected["error"], expected["message"])
    else:
        assert metric(**inputs) == expected
