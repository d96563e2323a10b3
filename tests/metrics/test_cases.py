"""Replays of what the official programs printed: a set of pairs that is part of the repository, and the large file of
cases where it is next to the repository."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reflectune.metrics.judging import bem
from reflectune.metrics.official import evqa, infoseek, vqa
from reflectune.metrics.reporting import retrieval
from tests.metrics.official.report import official_report

PAIRS = Path(__file__).with_name("official_pairs.jsonl")
CASES = Path(__file__).parents[3] / "shared" / "cases" / "metrics.json"
LEFT_OUT = ("evqa.evaluate_example_real_bem", "selfrag.match")
"""Cases of the large file that need BEM's weights, or are of a metric that no command offers."""


def with_fixed_logits(bem_logits: list[float], reference_list: list[str], **inputs: str) -> float:
    """Return E-VQA's score as the cases were printed: a word a piece, padded to 512 without truncation."""

    def logits(*segments: str) -> list[float]:
        np.zeros(bem.LONGEST - 1 - sum(len(segment.split()) + 1 for segment in segments))
        return bem_logits

    return evqa.evaluate_example(references=reference_list, bem_logits=logits, **inputs)


def recalls(candidates: list[str], ground_truth: str, ks: list[int]) -> dict[int, int]:
    """Return EchoSight's recall for each k."""
    return {k: int(retrieval.article_recall_at_k(candidates, [ground_truth], k)) for k in ks}


METRICS: dict[str, Callable[..., Any]] = {
    "infoseek.normalize_answer": infoseek.normalize_answer,
    "infoseek.string_exact_match": infoseek.exact_match,
    "infoseek.time_exact_match": infoseek.exact_match,
    "infoseek.parse_numerical": infoseek.parse_numerical,
    "infoseek.clean_str_range": infoseek.clean_str_range,
    "infoseek.numerical": infoseek.numerical,
    "infoseek.numerical_range": infoseek.numerical_range,
    "infoseek.range_iou": infoseek.range_iou,
    "infoseek.harmonic_mean": lambda values: infoseek.harmonic_mean(*values),
    "infoseek.evaluate": official_report,
    "evqa.preprocess_answer": evqa.preprocess_answer,
    "evqa.single_exact_match": evqa.single_exact_match,
    "evqa.multi_exact_match": evqa.multi_exact_match,
    "evqa.list_iou": evqa.list_iou,
    "evqa.bem_input_segments": evqa.bem_segments,
    "evqa.evaluate_example_fixed_bem_logits": with_fixed_logits,
    "vqa.soft_accuracy": lambda **inputs: round(100 * vqa.soft_accuracy(**inputs), 2),
    "echosight.recall_at_k": recalls,
}


def printed(metric: str, inputs: dict[str, Any]) -> Any:
    """Return the metric's value as JSON holds it; of an error its kind and words."""
    try:
        value = METRICS[metric](**inputs)
    except Exception as error:
        return {"error": type(error).__name__, "message": str(error)}
    return json.loads(json.dumps(value, default=lambda array: array.tolist()))


def small() -> list[dict[str, Any]]:
    return [json.loads(line) for line in PAIRS.read_text(encoding="utf-8").splitlines()]


def test_prints_what_the_official_program_printed_on_every_clone() -> None:
    found = [(pair, printed(pair["metric"], pair["given"])) for pair in small()]
    assert [(pair, value) for pair, value in found if value != pair["printed"]] == []


def test_the_pairs_cover_every_official_metric() -> None:
    counts = Counter(pair["metric"] for pair in small())
    assert set(counts) == set(METRICS)
    assert counts.total() >= 100


@pytest.mark.skipif(not CASES.exists(), reason="the file of cases isn't next to the repository")
def test_prints_what_the_official_program_prints() -> None:
    cases = [case for case in json.loads(CASES.read_text(encoding="utf-8")) if case["metric"] not in LEFT_OUT]
    found = [(case, printed(case["metric"], case["inputs"])) for case in cases]
    assert [(case, value) for case, value in found if value != case["expected"]] == []
