"""Columns of each metric's table next to its overall score, with values worked out by hand."""

import numpy as np
import pytest

from reflectune.core.types import Metric, Question
from reflectune.metrics.official import infoseek
from reflectune.metrics.reporting.breakdown import breakdown, columns, harmonic, headline


def questions_of(*splits: str) -> list[Question]:
    return [Question(f"q{n}", "", "?", answers=("a",), split=split) for n, split in enumerate(splits)]


def typed(field: str, *values: str) -> list[Question]:
    return [Question(f"q{n}", "", "?", answers=("a",), split="val", meta={field: v}) for n, v in enumerate(values)]


def shown(metric: Metric, questions: list[Question], values: list[float]) -> dict[str, float | None]:
    table = breakdown(metric, questions, values, seed=0)
    return {name: None if score is None else score["value"] for name, score in table.items()}


def test_infoseeks_overall_is_the_harmonic_mean_of_its_halves() -> None:
    questions = questions_of("val_unseen_question", "val_unseen_question", "val_unseen_entity")
    scores = shown("infoseek", questions, [1.0, 0.0, 1.0])
    assert scores == {"overall": pytest.approx(2 / 3), "unseen_question": 0.5, "unseen_entity": 1.0}


def test_the_harmonic_mean_of_a_resample_is_that_of_its_rows_counted() -> None:
    generator = np.random.default_rng(0)
    for size in (2, 5, 41):
        number = headline("infoseek", questions_of("val_unseen_question", *["val_unseen_entity"] * (size - 1)))
        for values in (generator.random(size), np.zeros(size)):
            weights = generator.integers(4, size=(9, size)).astype(float)
            for drawn, row in zip(harmonic(number.rows(values), weights), weights.astype(int), strict=True):
                question, entity = np.repeat(values, row)[: row[0]], np.repeat(values, row)[row[0] :]
                means = [half.mean() if len(half) else 0.0 for half in (question, entity)]
                assert drawn == pytest.approx(infoseek.harmonic_mean(*means), abs=1e-9)


def test_of_one_half_there_is_no_overall_score_and_the_half_is_the_headline() -> None:
    for split, name in (("val_unseen_question", "unseen_question"), ("val_unseen_entity", "unseen_entity")):
        assert shown("infoseek", questions_of(split), [1.0])["overall"] is None
        assert headline("infoseek", questions_of(split)).name == name
    assert headline("exact_match", questions_of("val_unseen_entity")).name == "overall"


@pytest.mark.parametrize("metric", ["evqa", "evqa_exact"])
def test_evqa_has_its_question_types_and_single_hop(metric: Metric) -> None:
    questions = typed("question_type", "templated", "automatic", "multi_answer", "2_hop")
    by_type = {"templated": 1.0, "automatic": 0.0, "multi_answer": 1.0, "2_hop": 0.0}
    scores = shown(metric, questions, [1.0, 0.0, 1.0, 0.0])
    assert scores == {"overall": 0.5, "single_hop": pytest.approx(2 / 3), **by_type}


def test_vqa_has_the_answer_types_that_its_data_says() -> None:
    questions = typed("answer_type", "other", "yes/no", "other", "number")
    by_type = {"yes/no": 1.0, "number": 0.0, "other": pytest.approx(0.6)}
    assert shown("vqa", questions, [0.3, 1.0, 0.9, 0.0]) == {"overall": pytest.approx(0.55), **by_type}
    assert columns("vqa", typed("answer_type", "other", "other")) == ()  # OK-VQA has one


@pytest.mark.parametrize("metric", ["exact_match", "cover_match", "rouge_l"])
def test_the_others_have_their_splits(metric: Metric) -> None:
    scores = shown(metric, questions_of("val", "val", "test"), [1.0, 0.0, 1.0])
    assert scores == {"overall": pytest.approx(2 / 3), "split:test": 1.0, "split:val": 0.5}
    assert shown(metric, questions_of("val", "val"), [1.0, 0.0]) == {"overall": 0.5}
