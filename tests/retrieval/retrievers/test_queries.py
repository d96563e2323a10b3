"""Queries, weights, and the papers' settings of them."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from reflectune.retrieval.retrievers.queries import (
    PART_FIELDS,
    Query,
    Weights,
    equation_3,
    equation_7,
    modality_weights,
    usual_weights,
)

IMAGE = Image.new("RGB", (4, 4), "red")
QUERIES = {"image": Query(IMAGE), "text": Query(text="an owl"), "both": Query(IMAGE, "an owl")}


def shares() -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 9), min_size=len(PART_FIELDS), max_size=len(PART_FIELDS)).filter(any)


@pytest.mark.parametrize("text", ["", " \n\t"], ids=["empty", "space"])
def test_a_query_of_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="neither"):
        Query(text=text)


@given(counts=shares(), name=st.sampled_from(sorted(QUERIES)))
@settings(deadline=None)
def test_what_a_query_lacks_takes_no_weight_and_the_rest_keeps_its_proportions(counts: list[int], name: str) -> None:
    total = sum(counts)
    weights = Weights(**dict(zip(PART_FIELDS, [count / total for count in counts], strict=True)))
    has = {part for part in PART_FIELDS if name == "both" or part.startswith("text_") == (name == "text")}
    own_total = sum(count for part, count in zip(PART_FIELDS, counts, strict=True) if part in has)
    if not own_total:
        with pytest.raises(ValueError, match="can't be searched with"):
            weights.of(QUERIES[name])
        return
    found = weights.of(QUERIES[name])
    expected = {p: count / own_total for p, count in zip(PART_FIELDS, counts, strict=True) if p in has}
    assert found == pytest.approx({p: weight for p, weight in expected.items() if weight or "summary" not in p})


@pytest.mark.parametrize(
    "values",
    [{"image": -0.5, "title": 1.5}, {"image": 0.5}, {"image": float("nan"), "title": 1.0}, {"image": 2.0}],
    ids=["negative", "less than 1", "no number", "more than 1"],
)
def test_weights_that_are_none_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="sum to 1"):
        Weights(**values)


@pytest.mark.parametrize("make", [equation_3, equation_7], ids=["equation_3", "equation_7"])
@pytest.mark.parametrize("weight", [-0.1, 1.1, float("nan")], ids=str)
def test_a_share_lies_between_0_and_1(make, weight: float) -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        make(weight)


def test_the_papers_settings_are_weights() -> None:
    assert equation_3(0.25) == Weights(image=0.75, title=0.25)
    assert equation_7(0.25) == Weights(image=0.75, text_title=0.25)
    assert modality_weights("I", "IT") == equation_3()
    assert modality_weights("I", "I") == Weights(image=1)
    assert modality_weights("IQ", "I") == modality_weights("IC", "I") == Weights(image=0.5, text_image=0.5)
    assert modality_weights("C", "IT") == Weights(text_image=0.5, text_title=0.5)
    assert dataclasses.astuple(modality_weights("IQ", "IT")) == (0.25, 0.25, 0.25, 0.25, 0.0, 0.0, "scores")


def test_every_kind_of_query_has_usual_weights() -> None:
    assert usual_weights(QUERIES["image"], 0.3) == equation_3(0.3)
    assert usual_weights(QUERIES["both"], 0.3) == equation_7(0.5)
    assert usual_weights(QUERIES["text"], 0.3) == Weights(text_title=1)
