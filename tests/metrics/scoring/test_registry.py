import dataclasses
from pathlib import Path

import pytest

from reflectune.core.types import METRICS, Question
from reflectune.metrics.judging.bem import RECORD
from reflectune.metrics.scoring import registry
from reflectune.metrics.scoring.registry import has_truth, metric_of_one, metric_problems

OAK = Question("q", "", "What?", answers=("oak",))
TALL = dataclasses.replace(OAK, answers=("50 m",), answer_type="numerical")


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_scores_a_right_answer_and_says_what_it_lacks(metric: registry.Metric) -> None:
    ten = dataclasses.replace(OAK, answers=("oak",) * 10)
    assert metric_of_one(metric, bem=registry.never)("oak", ten) == 1.0
    assert metric_problems(metric, "bem/of/the/hub" if metric == "evqa" else "") == []


def test_bem_and_evqa_need_each_other() -> None:
    (lacking,) = metric_problems("evqa", "")
    assert "needs `bem`" in lacking
    assert "evqa_exact" in lacking
    (idle,) = metric_problems("vqa", "hub/bem")
    assert "the metric is vqa" in idle
    (unknown,) = metric_problems("bleu", "")
    assert "found `bleu`" in unknown


def test_a_folder_that_is_no_converted_bem_is_named_before_it_is_loaded(tmp_path: Path) -> None:
    assert "is not there" in metric_problems("evqa", str(tmp_path / "none"))[0]
    assert f"has no {RECORD}" in metric_problems("evqa", str(tmp_path))[0]
    (tmp_path / RECORD).write_text("{}")
    assert metric_problems("evqa", str(tmp_path)) == []


def test_rouge_says_which_library_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.importlib.util, "find_spec", lambda name: None)
    assert "rouge-score" in metric_problems("rouge_l", "")[0]


@pytest.mark.parametrize("metric", METRICS)
def test_a_question_has_a_truth_if_the_metric_has_something_to_compare_with(metric: registry.Metric) -> None:
    ranged = dataclasses.replace(TALL, answers=(), range=(45.0, 55.0))
    assert has_truth(OAK, metric)
    assert not has_truth(dataclasses.replace(OAK, answers=()), metric)
    assert has_truth(TALL, metric) is (metric not in ("infoseek", "cover_match"))
    assert has_truth(ranged, metric) is (metric in ("infoseek", "cover_match", "exact_match"))
    assert has_truth(dataclasses.replace(OAK, answer_type="free_form"), metric) is (metric == "rouge_l")


@pytest.mark.parametrize("metric", ["exact_match", "infoseek"])
def test_a_perfect_list_is_right_whatever_its_items_hold(metric: registry.Metric) -> None:
    places = "Trinidad and Tobago && R & D && Washington, D.C."
    listed = dataclasses.replace(OAK, answers=(places,), answer_type="multi_answer")
    assert metric_of_one(metric)(places, listed) == 1.0
    assert metric_of_one(metric)("red and blue", dataclasses.replace(listed, answers=("blue && red",))) == 1.0
    assert metric_of_one(metric)("Trinidad && Tobago && R & D", listed) == 0.0


@pytest.mark.parametrize("metric", ["exact_match", "infoseek"])
def test_an_answer_of_one_item_is_right_whatever_it_holds(metric: registry.Metric) -> None:
    """Natural Questions' annotators may answer by one item or by several."""
    one_or_two = ("Trinidad and Tobago", "Spain && Portugal")
    listed = dataclasses.replace(OAK, answers=one_or_two, answer_type="multi_answer")
    worth = metric_of_one(metric)
    assert [worth(answer, listed) for answer in ("Trinidad and Tobago", "Spain and Portugal")] == [1.0, 1.0]
    assert worth("Trinidad and Spain", listed) == 0.0


def test_evqa_reads_a_list_as_its_official_code_does() -> None:
    listed = dataclasses.replace(OAK, answers=("Trinidad and Tobago&&oak",), answer_type="multi_answer")
    assert metric_of_one("evqa_exact")("Trinidad and Tobago&&oak", listed) == 0.0
