import pytest

from reflectune.models.rendering.turns import fit_leading


@pytest.mark.parametrize("least", [0, 1])
@pytest.mark.parametrize("room", range(0, 13, 2))
@pytest.mark.parametrize("passages", range(5))
def test_the_most_leading_passages_that_leave_room_are_read(passages: int, room: int, least: int) -> None:
    counts = [count for count in range(passages + 1) if count <= least or 2 + 3 * count <= room]
    assert fit_leading(lambda count: [0] * (2 + 3 * count), passages, room, least=least) == (
        max(counts),
        [0] * (2 + 3 * max(counts)),
    )
