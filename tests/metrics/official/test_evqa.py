import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.metrics.official import evqa

NO, YES = (1.0, 0.0), (0.0, 1.0)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("contradiction", "no"),
        ("3.5", "35"),
        ("dont", "don't"),
        ("don't", "don't"),
        ("lets", "lets"),
        ("Paris <extra_id_0> x", "paris extraid0 x"),
        ("It’s", "its"),
        ("a\nb\tc", "b c"),
        ("Anthem", "anthem"),
    ],
)
def test_answers_are_preprocessed_as_by_the_official_code(text: str, wanted: str) -> None:
    assert evqa.preprocess_answer(text) == wanted


@pytest.mark.parametrize(
    ("reference", "candidate", "right"),
    [
        ("red&&blue", "red & blue", True),
        ("Trinidad and Tobago", "Trinidad and Tobago", False),
        ("the Oak && an Elm", "oak,elm", True),
    ],
)
def test_a_list_is_right_if_the_official_code_says_so(reference: str, candidate: str, right: bool) -> None:
    assert evqa.multi_exact_match(reference, candidate) is right


@given(st.sets(st.sampled_from("bcdefgh"), min_size=1), st.sets(st.sampled_from("bcdefgh")))
def test_lists_agree_when_half_of_their_union_is_shared(wanted: set[str], given_: set[str]) -> None:
    agrees = 2 * len(wanted & given_) >= len(wanted | given_)
    assert evqa.multi_exact_match("&&".join(wanted), ",".join(given_)) is agrees


def test_bem_is_asked_only_where_exact_match_fails_and_any_reference_will_do() -> None:
    bem_triples: list[tuple[str, str, str]] = []

    def bem(candidate: str, reference: str, question: str) -> tuple[float, float]:
        bem_triples.append((candidate, reference, question))
        return YES if reference == "elm" else NO

    assert evqa.evaluate_example("Q?", ["The oak"], "oak", "templated", bem) == 1.0
    assert not bem_triples
    assert evqa.evaluate_example("Q?", ["oak", "elm"], "an ash", "automatic", bem) == 1.0
    assert bem_triples == [("an ash", "oak", "Q?"), ("an ash", "elm", "Q?")]
    assert evqa.evaluate_example("Q?", ["oak"], "an ash", "2_hop", bem) == 0.0


@pytest.mark.parametrize(
    ("logits", "score"), [((0.0, 0.0), 1.0), ((0.1, 0.0), 0.0), ((900.0, 900.0), 1.0), ((-800.0, 800.0), 1.0)]
)
def test_bem_at_one_half_is_right(logits: tuple[float, float], score: float) -> None:
    assert evqa.evaluate_example("Q?", ["x"], "y", "templated", lambda *_: logits) == score
