"""Greedy downsampling against figure A13 of MI-RAG written out, and the search for a threshold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.core.errors import UserError
from reflectune.data_builders.downsampling.greedy import Vectors, downsample, find_subset

EIGHTHS = st.integers(-4, 4).map(lambda number: number / 8)
QUESTIONS = st.lists(st.tuples(EIGHTHS, EIGHTHS, EIGHTHS), max_size=24)
"""Embeddings whose products are exact and at most 0.75: a tie with the threshold is one, however they are summed."""


def figure_a13(embeddings: Vectors, t: float) -> list[int]:
    """`DownSampleDataset`, line by line; a question is its number."""
    subset = []
    subset_emb: list[Vectors] = []
    for question, emb_q in enumerate(embeddings):
        is_redundant = False
        for emb in subset_emb:
            if float(np.dot(emb_q, emb)) > t:
                is_redundant = True
                break
        if not is_redundant:
            subset.append(question)
            subset_emb.append(emb_q)
    return subset


def in_blocks(vectors: Vectors, size: int) -> list[Vectors]:
    return [vectors[start : start + size] for start in range(0, len(vectors), size)]


def unit(seed: int, count: int, dimensions: int) -> Vectors:
    """Directions at random, of length 1."""
    vectors = np.random.default_rng(seed).normal(size=(count, dimensions))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@given(questions=QUESTIONS, eighths=st.integers(-48, 49), size=st.integers(1, 9))
def test_it_keeps_what_figure_a13_keeps(questions: list[tuple[float, ...]], eighths: int, size: int) -> None:
    vectors, threshold = np.array(questions, dtype=np.float32).reshape(-1, 3), eighths / 64
    subset = downsample(in_blocks(vectors, size), threshold)
    assert np.flatnonzero(subset.kept).tolist() == figure_a13(vectors, threshold)
    assert subset.size == len(figure_a13(vectors, threshold))
    assert ((subset.nearest > threshold) == ~subset.kept).all()


def test_a_case_by_hand() -> None:
    """At 0.7: b is 0.8 like a; c is 0.6 like a, and like b, which was left out, in all; d is c again; e is opposite."""
    vectors = np.array([[1, 0], [0.8, 0.6], [0.6, 0.8], [0.6, 0.8], [-1, 0]], dtype=np.float32)
    subset = downsample([vectors], 0.7)
    assert subset.kept.tolist() == [True, False, True, False, True]
    assert subset.nearest.tolist() == pytest.approx([-np.inf, 0.8, 0.6, 1.0, -0.6])


def test_identical_questions_stay_once_and_at_1_all_of_them() -> None:
    """Rounding makes a vector's product with itself more than 1 for some."""
    vectors = np.repeat(unit(0, 50, 7), 2, axis=0)
    assert ((vectors.astype(np.float32) ** 2).sum(axis=1) > 1).any()
    assert downsample([vectors], 0.9999).size == 50
    assert downsample([vectors], 1.0).size == 100


@pytest.mark.parametrize("wanted", [20, 100, 190])
def test_the_threshold_found_keeps_about_as_many_as_wanted(wanted: int) -> None:
    blocks = in_blocks(unit(1, 200, 16), 64)
    subset = find_subset(blocks, wanted, 0.05)
    assert abs(subset.size - wanted) <= wanted * 0.05
    again = downsample(blocks, subset.threshold)
    assert (again.kept == subset.kept).all()
    assert (again.nearest == subset.nearest).all()
    assert find_subset(blocks, wanted, 0.05).threshold == subset.threshold == round(subset.threshold, 6)


def test_as_few_questions_as_wanted_all_stay() -> None:
    vectors = np.repeat(unit(2, 1, 4), 21, axis=0)
    assert find_subset([vectors], 20, 0.05).kept.all()


def test_too_few_questions_are_an_error() -> None:
    with pytest.raises(UserError, match=r"20 are wanted, and there are 18; name more `splits`, or fewer"):
        find_subset([unit(3, 18, 4)], 20, 0.05)


def test_a_number_that_no_threshold_keeps_is_an_error_that_says_what_is_kept_instead() -> None:
    """Ten groups of ten questions that are one: nothing lies between 10 and 100."""
    with pytest.raises(UserError, match=r"keeps 50 ± 2 of 100 questions: .* keeps 10, 1 keeps 100; set `threshold`"):
        find_subset([np.repeat(np.eye(10, dtype=np.float32), 10, axis=0)], 50, 0.05)
