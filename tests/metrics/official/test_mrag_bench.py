import pytest

from reflectune.metrics.official.mrag_bench import accuracy, letter


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("B", "B"),
        (" B.", "B"),
        ("(C)", "C"),
        ("The answer is B", "B"),
        ("Neither A nor D but C", "C"),
        ("(A) is wrong, (B) is right. See D", "B"),
        ("B: a castle", "B"),
        ("B, a castle with a tower", "B"),
        ("a castle", ""),
        ("Bridge", ""),
        ("It's D-shaped", ""),
        ("", ""),
    ],
)
def test_a_letter_is_read_as_the_official_program_reads_it_or_first(reply: str, expected: str) -> None:
    assert letter(reply) == expected


def test_the_letter_alone_counts() -> None:
    assert [accuracy(reply, ["B"]) for reply in ("B", "C", "stoat", "")] == [1.0, 0.0, 0.0, 0.0]
