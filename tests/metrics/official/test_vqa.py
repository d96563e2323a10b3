import pytest

from reflectune.metrics.official import vqa
from reflectune.metrics.official.vqa import CONTRACTIONS


@pytest.mark.parametrize(("matches", "wanted"), [(0, 0.0), (1, 0.3), (2, 0.6), (3, 0.9), (4, 1.0), (10, 1.0)])
def test_soft_accuracy_leaves_one_annotator_out_at_a_time(matches: int, wanted: float) -> None:
    answers = ["pony"] * matches + ["horse"] * (10 - matches)
    assert vqa.soft_accuracy("pony", answers) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("prediction", "reference", "right"),
    [
        ("The Pony.", "pony", 1.0),
        ("2", "two", 0.0),
        ("pony", "Pony", 0.0),
        ("3.5", "3.5", 1.0),
        ("black/white", "black white", 1.0),
        ("dont know", "don't know", 1.0),
        ("a\tb\nc", "b c", 1.0),
    ],
)
def test_predictions_are_processed_and_unanimous_references_are_not(
    prediction: str, reference: str, right: float
) -> None:
    assert vqa.soft_accuracy(prediction, [reference] * 10) == right


def test_references_lose_punctuation_only_where_annotators_differ() -> None:
    assert vqa.soft_accuracy("black/white", ["black/white"] * 10) == 0.0
    assert vqa.soft_accuracy("black/white", ["black/white"] * 9 + ["grey"]) == 1.0


def test_at_most_32_full_stops_are_deleted() -> None:
    assert vqa.process_punctuation("x" + "." * 40) == "x" + "." * 8


def test_no_annotator_is_an_error() -> None:
    with pytest.raises(ValueError, match="none"):
        vqa.soft_accuracy("x", [])


@pytest.mark.parametrize(
    ("answers", "possible"),
    [
        (["oak"] * 10, True),
        (["Oak"] * 10, False),
        (["Oak"] * 7 + ["oak"] * 3, True),
        (["oak"], False),
        (["oak", "ash"], True),
        (["an oak"] * 10, False),
        ([], False),
    ],
)
def test_answers_that_no_prediction_matches_are_known(answers: list[str], possible: bool) -> None:
    assert vqa.can_match(answers) == possible


def test_a_contraction_lacks_exactly_one_apostrophe() -> None:
    odd = {"somebody'd": "somebodyd"}
    for slip, word in CONTRACTIONS.items():
        assert slip.replace("'", "") == word.replace("'", "")
        assert slip.count("'") == word.count("'") - 1 or odd.get(slip) == word


def test_words_that_are_words_without_their_apostrophe_are_left_alone() -> None:
    assert not {"lets", "shed", "shell", "well", "were", "ill", "id", "wed"} & set(CONTRACTIONS)
