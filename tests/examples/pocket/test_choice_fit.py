import math
import random

import pytest

from reflectune.core.errors import UserError
from reflectune.examples.pocket.choice_fit import DocumentChoice, JudgedDocument, fit_choice
from reflectune.inference.reading.document_choice import fuse, keep_relevant
from reflectune.inference.reading.ranking import document_shares


def test_fusion_adds_log_odds_and_shares_are_of_the_documents_entries() -> None:
    assert fuse(0.3, 0.5, (1, 0, 0)) == pytest.approx(0.3)
    assert fuse(0.5, 0.25, (1, 1, 0)) == pytest.approx(0.2)  # odds of 1 times a quarter
    assert 0 <= fuse(0.0, 0.0, (1e9, 1e9, 0)) < 1e-9
    assert document_shares(["a", "b", "a"], [0.8, 0.7, 0.8], 0.1) == pytest.approx([0.731, 0.269, 0.731], abs=1e-3)


def drawn(count: int, weights: tuple[float, float, float], temperature: float) -> list[list[JudgedDocument]]:
    """Draw questions whose documents are right with the probability that the weights give."""
    rng, questions = random.Random(0), []
    for _ in range(count):
        similarities = [rng.uniform(0.7, 0.8) for _ in range(4)]
        scores, entries = [rng.uniform(0.05, 0.95) for _ in range(4)], list("abcd")
        shares = document_shares(entries, similarities, temperature)
        chances = [fuse(s, share, weights) for s, share in zip(scores, shares, strict=True)]
        rows = zip(entries, similarities, scores, [rng.random() < p for p in chances], strict=True)
        questions.append([JudgedDocument(*row) for row in rows])
    return questions


def test_the_fit_recovers_the_weights_and_beats_srt_alone() -> None:
    weights = (0.8, 1.5, 0.6)
    questions = drawn(3000, weights, 0.02)
    choice = fit_choice(questions)
    assert choice.s_ret_temperature == 0.02
    assert choice.srt_fusion == pytest.approx(weights, abs=0.15)
    alone = [q[keep_relevant([d.score for d in q], 1, 0.5)[0][0]].right for q in questions]
    assert choice.f1 > sum(alone) / len(alone)
    assert not choice.k or choice.threshold == 0.5


def test_a_choice_is_printed_as_options_and_needs_both_kinds() -> None:
    choice = DocumentChoice(0.02, (1.0, 0.5, -1.25), 0, 0.35, 0.6)
    assert choice.flags == "--s_ret_temperature 0.02 --srt_fusion 1 0.5 -1.25 --k auto --threshold 0.35"
    separable = fit_choice([[JudgedDocument("a", 0.9, 0.9, True), JudgedDocument("b", 0.5, 0.1, False)]] * 5)
    assert (separable.f1, all(map(math.isfinite, separable.srt_fusion))) == (1.0, True)
    with pytest.raises(UserError, match="of one kind"):
        fit_choice([[JudgedDocument("a", 0.9, 0.9, True)]])
