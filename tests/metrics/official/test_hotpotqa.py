import pytest

from reflectune.metrics.official.hotpotqa import f1

CASES = [
    # prediction, answer, F1: 2 · same / (words said + words accepted)
    ("Chief of Protocol", "Chief of Protocol", 1.0),
    ("the chief of protocol.", "Chief of Protocol", 1.0),
    ("the Chief of Protocol of America", "Chief of Protocol", 2 * 3 / (5 + 3)),
    ("Protocol", "Chief of Protocol", 2 * 1 / (1 + 3)),
    ("of of of", "Chief of Protocol", 2 * 1 / (3 + 3)),  # a word counts as often as both have it
    ("Secretary", "Chief of Protocol", 0.0),
    ("yes", "Yes.", 1.0),
    ("yes, both", "yes", 0.0),  # no partial credit for yes, no and noanswer, on either side
    ("yes", "yes, both of them", 0.0),
    ("no", "no man", 0.0),
    ("", "Chief of Protocol", 0.0),
    ("the", "a", 0.0),  # nothing is left of either
]


@pytest.mark.parametrize(("prediction", "answer", "overlap"), CASES)
def test_scores_of_answers_worked_out_by_hand(prediction: str, answer: str, overlap: float) -> None:
    assert f1(prediction, [answer]) == pytest.approx(overlap)


def test_the_best_of_several_answers_counts() -> None:
    assert f1("Chief of Protocol", ["Secretary", "Chief of Protocol of America"]) == pytest.approx(2 * 3 / (3 + 5))
    assert f1("Chief", []) == 0.0
