import pytest

from reflectune.core.errors import UserError
from reflectune.core.types import METRICS, Question
from reflectune.metrics.judging.bem import TooLongError
from reflectune.metrics.scoring.registry import find_metric, has_truth

OAK = Question("q", "i", "What?", ("oak", "oak wood"))
TALL = Question("q", "i", "How tall?", ("50 m",), range=(45.0, 55.0), answer_type="numerical")
FOUR = Question("q", "i", "What?", ("oak", "oak", "oak", "elm", "elm", "ash", "ash", "ash", "ash", "fir"))


@pytest.mark.parametrize(
    ("metric", "question", "answer", "worth"),
    [
        ("infoseek", OAK, "Oak.", 1.0),
        ("infoseek", OAK, "elm", 0.0),
        ("infoseek", TALL, "52 m", 1.0),
        ("infoseek", TALL, "60", 0.0),
        ("evqa_exact", OAK, "oak wood", 1.0),
        ("evqa_exact", OAK, "wood of oak", 0.0),
        ("vqa", FOUR, "fir", 0.3),
        ("vqa", FOUR, "ash", 1.0),
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


def test_a_question_that_cannot_be_scored_is_named() -> None:
    with pytest.raises(UserError, match="question q is numerical but has no range"):
        find_metric("infoseek")("1", Question("q", "i", "How tall?", ("50 m",), answer_type="numerical"))


@pytest.mark.parametrize("metric", [metric for metric in METRICS if metric not in ("evqa", "rouge_l")])
def test_an_answer_in_sentences_is_no_wrong_answer(metric: str) -> None:
    told = Question("q", "i", "What is it?", ("It is an oak.",), answer_type="free_form")
    assert not has_truth(told, metric)
    with pytest.raises(UserError, match=f"question q is free_form, and {metric} can't compare.*by rouge_l"):
        find_metric(metric)("It is an oak.", told)
    assert has_truth(told, "rouge_l")
    assert find_metric("rouge_l")("It is an elm.", told) == pytest.approx(0.75)


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(UserError, match="`metric` is one of infoseek, evqa, evqa_exact, vqa, "):
        find_metric("bleu")


def test_evqa_asks_bem_and_is_not_found_without_it() -> None:
    with pytest.raises(UserError, match="needs `bem`"):
        find_metric("evqa")
    alike = find_metric("evqa", lambda *segments: (0.0, 1.0))
    assert (alike("elm", OAK), alike(" ", OAK)) == (1.0, 0.0)


def test_what_is_too_long_for_bem_is_wrong() -> None:
    def reads_nothing(*segments: str) -> list[float]:
        raise TooLongError("600 word pieces")

    assert find_metric("evqa", reads_nothing)("elm", OAK) == 0.0
