import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.metrics.official import evqa

NO, YES = (1.0, 0.0), (0.0, 1.0)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("ten.", "10"),
        ("none", "0"),
        ("True", "yes"),
        ("contradiction", "no"),
        ("3.5", "35"),
        ("well-known", "wellknown"),
        ("dont", "don't"),
        ("don't", "don't"),
        ("lets", "lets"),
        ("Paris <extra_id_0> x", "paris extraid0 x"),
        ("It’s", "its"),
        ("a\nb\tc", "b c"),
        ("Anthem", "anthem"),
    ],
)
def test_preprocessed_answers(text: str, wanted: str) -> None:
    assert evqa.preprocess_answer(text) == wanted


@pytest.mark.parametrize(
    ("reference", "candidate", "right"),
    [
        ("red&&blue", "red & blue", True),
        ("Trinidad and Tobago", "Trinidad and Tobago", False),
        ("the Oak && an Elm", "oak,elm", True),
    ],
)
def test_lists(reference: str, candidate: str, right: bool) -> None:
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
    assert math.isfinite(sum(logits))
    assert evqa.evaluate_example("Q?", ["x"], "y", "templated", lambda *_: logits) == score


def test_bem_reads_lists_with_commas_and_all_else_as_written() -> None:
    assert evqa.bem_segments("Q?", "r&&B", "C, d", "multi_answer") == ("C, d", "r,B", "Q?")
    assert evqa.bem_segments("Q?", "r&&B", "C, d", "2_hop") == ("C, d", "r&&B", "Q?")


@pytest.mark.parametrize(
    ("references", "kind", "message"),
    [
        ([], "templated", "list cannot be empty"),
        ([""], "templated", "answer cannot be empty"),
        (["x"], "string", "2_hop"),
    ],
)
def test_what_cannot_be_scored(references: list[str], kind: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evqa.evaluate_example("Q?", references, "x", kind, lambda *_: YES)
