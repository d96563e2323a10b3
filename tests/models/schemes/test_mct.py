import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.models.schemes.mct import MctReply, read_reply, write_reply


@given(st.permutations(range(1, 7)), st.integers(1, 6), st.sampled_from(["", "It was built in 1872.", "a, b. c"]))
def test_what_is_written_is_read(order: list[int], count: int, summary: str) -> None:
    keep = tuple(order[:count])
    assert read_reply(write_reply(keep, summary), 6) == MctReply(keep, summary)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no_numbers"),
        ("The tower is gold.", "no_numbers"),
        ("0. It is gold.", "out_of_range"),
        ("2, 4. It is gold.", "out_of_range"),
        ("2, 1, 2. It is gold.", "repeated"),
    ],
)
def test_numbers_that_mean_nothing_are_told_apart(text: str, problem: str) -> None:
    reply = read_reply(text, 3)
    assert (reply.keep, reply.problem) == ((), problem)


def test_a_reply_may_be_written_loosely() -> None:
    assert read_reply(" 3 ,1  It   is\ngold.", 3) == MctReply((3, 1), "It is gold.")
