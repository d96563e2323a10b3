import dataclasses
from pathlib import Path

import pytest

from reflectune.core.errors import UserError
from reflectune.core.types import METRICS, Question
from reflectune.metrics.judging.bem import RECORD, TooLongError
from reflectune.metrics.scoring import registry
from reflectune.metrics.scoring.registry import answer_metric, find_metric, has_truth, is_scored, metric_problems

OAK = Question("q", "", "What?", answers=("oak",))
TALL = dataclasses.replace(OAK, answers=("50 m",), answer_type="numerical")
RANGED = dataclasses.replace(TALL, range=(45.0, 55.0))
WOOD = dataclasses.replace(OAK, answers=("oak", "oak wood"))
FOUR = dataclasses.replace(OAK, answers=(*["oak"] * 3, *["elm"] * 2, *["ash"] * 4, "fir"))


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_scores_a_right_answer_and_says_what_it_lacks(metric: registry.Metric) -> None:
    right = "B" if metric == "choice" else "oak"
    ten = dataclasses.replace(OAK, answers=(right,) * 10)
    assert answer_metric(metric, bem=registry.not_equivalent)(right, ten) == 1.0
    assert metric_problems(metric, "bem/of/the/hub" if metric == "evqa" else "") == []


def test_bem_and_evqa_need_each_other() -> None:
    (lacking,) = metric_problems("evqa", "")
    assert "needs `bem`" in lacking
    assert "evqa_exact" in lacking
    (idle,) = metric_problems("vqa", "hub/bem")
    assert "the metric is vqa" in idle
    with pytest.raises(UserError, match="found `bleu`"):
        answer_metric("bleu")  # type: ignore[arg-type]


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


@pytest.mark.parametrize("metric", METRICS)
def test_visual_questions_count_in_the_metric_of_free_replies_alone(metric: registry.Metric) -> None:
    visual = dataclasses.replace(OAK, requires_retrieval=False)
    assert is_scored(visual, metric) is (metric == "rouge_l")


@pytest.mark.parametrize("metric", ["exact_match", "infoseek"])
def test_a_perfect_list_is_right_whatever_its_items_hold(metric: registry.Metric) -> None:
    places = "Trinidad and Tobago && R & D && Washington, D.C."
    listed = dataclasses.replace(OAK, answers=(places,), answer_type="multi_answer")
    assert answer_metric(metric)(places, listed) == 1.0
    assert answer_metric(metric)("red and blue", dataclasses.replace(listed, answers=("blue && red",))) == 1.0
    assert answer_metric(metric)("Trinidad && Tobago && R & D", listed) == 0.0


def test_an_item_that_normalisation_deletes_is_needed_in_exact_match() -> None:
    groups = dataclasses.replace(OAK, answers=("A && B && AB && O",), answer_type="multi_answer")
    worth = answer_metric("exact_match")
    assert [worth(answer, groups) for answer in ("A && B && AB && O", "b, a, o and ab")] == [1, 1]
    assert worth("B && AB && O", groups) == 0
    vitamin = dataclasses.replace(groups, answers=("A",))
    assert [worth(answer, vitamin) for answer in ("a", "A.", "", "C")] == [1, 0, 0, 0]


@pytest.mark.parametrize("metric", ["exact_match", "infoseek"])
def test_an_answer_of_one_item_is_right_whatever_it_holds(metric: registry.Metric) -> None:
    """Natural Questions' annotators may answer by one item or by several."""
    one_or_two = ("Trinidad and Tobago", "Spain && Portugal")
    listed = dataclasses.replace(OAK, answers=one_or_two, answer_type="multi_answer")
    worth = answer_metric(metric)
    assert [worth(answer, listed) for answer in ("Trinidad and Tobago", "Spain and Portugal")] == [1.0, 1.0]
    assert worth("Trinidad and Spain", listed) == 0.0


@pytest.mark.parametrize(
    ("metric", "question", "answer", "worth"),
    [
        ("infoseek", WOOD, "Oak.", 1.0),
        ("infoseek", RANGED, "52 m", 1.0),
        ("infoseek", RANGED, "60", 0.0),
        ("evqa_exact", WOOD, "oak wood", 1.0),
        ("evqa_exact", WOOD, "wood of oak", 0.0),
        ("vqa", FOUR, "fir", 0.3),
        ("hotpotqa_f1", OAK, "oak of America", 0.5),
        ("choice", dataclasses.replace(OAK, answers=("B",)), "The answer is (B).", 1.0),
    ],
)
def test_answers_are_worth_what_the_official_metric_says(
    metric: str, question: Question, answer: str, worth: float
) -> None:
    assert find_metric(metric)(answer, question) == pytest.approx(worth, abs=0.01)


@pytest.mark.parametrize("metric", [metric for metric in METRICS if metric != "evqa"])
@pytest.mark.parametrize("answer", ["", "  "])
def test_an_empty_answer_is_wrong(metric: str, answer: str) -> None:
    around_zero = Question("q", "i", "How cold?", ("0",), range=(-1.0, 1.0), answer_type="numerical")
    assert find_metric(metric)(answer, around_zero) == 0.0


@pytest.mark.parametrize("answer", ["", "I don't know", "four"])
def test_an_answer_without_a_number_is_no_zero(answer: str) -> None:
    around_zero = Question("q", "i", "How cold?", ("0",), range=(-1.0, 1.0), answer_type="numerical")
    assert (
        answer_metric("exact_match")(answer, around_zero)
        == answer_metric("cover_match", "strict")(answer, around_zero)
        == 0
    )
    assert answer_metric("exact_match")("½ degree", around_zero) == 1
    assert answer_metric("infoseek")(answer, around_zero) == 1  # officially it reads as [0, 0]


def test_a_number_may_be_given_in_an_accepted_spelling() -> None:
    dozen = Question("q", "i", "How many?", ("12", "twelve"), range=(11.0, 13.0), answer_type="numerical")
    answers = ("Twelve.", "11.5", "ten", "", "1.2")
    assert [answer_metric("exact_match")(answer, dozen) for answer in answers] == [1, 1, 0, 0, 0]


@pytest.mark.parametrize("metric", [metric for metric in METRICS if metric not in ("evqa", "rouge_l")])
def test_an_answer_in_sentences_is_no_wrong_answer(metric: str) -> None:
    told = Question("q", "i", "What is it?", ("It is an oak.",), answer_type="free_form")
    with pytest.raises(UserError, match=f"question q is free_form, and {metric} can't compare.*by rouge_l"):
        find_metric(metric)("It is an oak.", told)
    assert find_metric("rouge_l")("It is an elm.", told) == pytest.approx(0.75)


def test_evqa_asks_bem_and_is_not_found_without_it() -> None:
    with pytest.raises(UserError, match="needs `bem`"):
        find_metric("evqa")
    alike = find_metric("evqa", lambda *segments: (0.0, 1.0))
    assert (alike("elm", WOOD), alike(" ", WOOD)) == (1.0, 0.0)


def test_what_is_too_long_for_bem_is_wrong() -> None:
    def reads_nothing(*segments: str) -> list[float]:
        raise TooLongError("600 word pieces")

    assert find_metric("evqa", reads_nothing)("elm", WOOD) == 0.0
