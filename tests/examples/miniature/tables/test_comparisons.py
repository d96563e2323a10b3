import dataclasses

import pytest

from reflectune.examples.miniature.tables.comparisons import Comparison, SeedAnswers, answers, compare, verdict_of

SPLITS = ("val_unseen_question", "val_unseen_entity")


@pytest.fixture
def questions(make) -> list:
    return [make.question(i, SPLITS[i % 2]) for i in range(100)]


def rates(questions: list, unseen_question: float, unseen_entity: float) -> SeedAnswers:
    """Answers with these shares of the two splits' 50 questions are right."""
    right = [float(i // 2 < 50 * (unseen_question, unseen_entity)[i % 2]) for i in range(len(questions))]
    return answers(questions, right)


def test_a_clear_lead_holds_and_its_reverse_does_not(questions) -> None:
    better, worse = [rates(questions, 0.9, 0.9)] * 3, [rates(questions, 0.3, 0.3)] * 3
    forth, back = compare([(1, better), (-1, worse)], 0), compare([(1, worse), (-1, better)], 0)
    assert forth.value == pytest.approx(0.6)
    assert back.value == pytest.approx(-0.6)
    assert (forth.verdict, back.verdict) == ("holds", "does not hold")


def test_equal_answers_are_within_noise(questions) -> None:
    same = [rates(questions, 0.5, 0.5)] * 3
    comparison = compare([(1, same), (-1, same)], 0)
    assert (comparison.value, comparison.low, comparison.high) == (0.0, 0.0, 0.0)
    assert comparison.verdict == "within noise"


def test_seeds_that_disagree_widen_the_interval(questions) -> None:
    base = [rates(questions, 0.5, 0.5)] * 3
    steady = [rates(questions, 0.6, 0.6)] * 3
    shaky = [rates(questions, 0.3, 0.3), rates(questions, 0.6, 0.6), rates(questions, 0.9, 0.9)]
    one, other = (compare([(1, seed_answers), (-1, base)], 0) for seed_answers in (steady, shaky))
    assert one.value == pytest.approx(other.value)
    assert other.high - other.low > 2 * (one.high - one.low)
    assert (one.verdict, other.verdict) == ("holds", "within noise")


def test_questions_shared_by_seeds_are_no_more_evidence_than_asked_once(questions) -> None:
    first, second = rates(questions, 0.6, 0.6), rates(questions, 0.5, 0.5)
    once = compare([(1, [first]), (-1, [second])], 0)
    thrice = compare([(1, [first] * 3), (-1, [second] * 3)], 0)
    assert thrice.high - thrice.low == pytest.approx(once.high - once.low, rel=0.1)
    apart = [
        [dataclasses.replace(setting, ids=tuple(f"{n}/{i}" for i in setting.ids)) for n in range(3)]
        for setting in (first, second)
    ]
    independent = compare([(1, apart[0]), (-1, apart[1])], 0)
    assert independent.high - independent.low < 0.8 * (once.high - once.low)


def test_questions_of_one_entity_are_drawn_together(make) -> None:
    alike = [make.question(i, SPLITS[0], entity_ids=(f"e{i // 4}",)) for i in range(200)]
    right = [float(i // 4 % 2) for i in range(200)]
    lead = compare([(1, [answers(alike, right)])], 0)
    alone = compare([(1, [answers(alike[::4], right[::4])])], 0)
    assert (lead.low, lead.high) == pytest.approx((alone.low, alone.high))


def test_settings_asked_other_questions_are_not_compared(questions) -> None:
    with pytest.raises(ValueError, match="same questions"):
        compare([(1, [rates(questions, 1, 1)]), (-1, [rates(questions[:50], 1, 1)])], 0)
    with pytest.raises(ValueError, match="at least one seed"):
        compare([(1, []), (-1, [])], 0)


@pytest.mark.parametrize(
    ("intervals", "verdict"),
    [
        ([], "not measured"),
        ([(0.1, 0.2)], "holds"),
        ([(-0.1, 0.2)], "within noise"),
        ([(0.1, 0.2), (-0.1, 0.2)], "within noise"),
        ([(0.1, 0.2), (-0.2, -0.1)], "does not hold"),
        ([(0.0, 0.2)], "within noise"),
    ],
)
def test_a_claim_is_as_good_as_its_weakest_order(intervals, verdict) -> None:
    assert verdict_of([Comparison((low + high) / 2, low, high) for low, high in intervals]) == verdict
