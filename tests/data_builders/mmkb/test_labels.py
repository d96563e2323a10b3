import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.core.config import find_problems
from reflectune.data_builders.mmkb.labels import LabelLimits, LabelSettings, choose


@given(st.lists(st.booleans()), st.floats(1, 4), st.integers(1, 30), st.integers(0, 3))
def test_balance_and_limit_hold(labels: list[bool], balance: float, limit: int, seed: int) -> None:
    numbered = list(enumerate(labels))
    chosen = choose(numbered, lambda numbered_label: numbered_label[1], LabelLimits(balance, limit, seed))
    yes, no = sum(label for _, label in chosen), sum(not label for _, label in chosen)
    assert chosen == sorted(chosen)
    assert len(chosen) <= limit
    if len(chosen) < limit and all((sum(labels), labels.count(False))):
        assert max(yes, no) <= min(yes, no) * balance
        assert min(yes, no) == min(sum(labels), labels.count(False))


@given(st.lists(st.booleans()), st.integers(1, 30), st.integers(1, 30))
def test_a_lower_limit_takes_of_what_a_higher_one_takes(labels: list[bool], first: int, second: int) -> None:
    numbered = list(enumerate(labels))
    low, high = (
        choose(numbered, lambda numbered_label: numbered_label[1], LabelLimits(1.0, limit))
        for limit in sorted((first, second))
    )
    assert set(low) <= set(high)


def test_without_limits_all_are_taken() -> None:
    assert choose([3, 1, 2], bool, LabelLimits()) == [3, 1, 2]


def test_a_single_kind_of_label_cannot_be_balanced() -> None:
    assert choose([1, 1, 1], bool, LabelLimits(balance=1)) == [1, 1, 1]


@pytest.mark.parametrize("values", [{"ret_balance": 0.5}, {"srt_balance": 0.5}, {"ret_limit": 0}, {"mct_limit": 0}])
def test_limits_that_leave_nothing_are_refused(values: dict[str, float]) -> None:
    (problem,) = find_problems(LabelSettings, values)
    assert f"`{next(iter(values))}` must be at least 1" in problem
