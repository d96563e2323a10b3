import itertools

from reflectune.models.rendering.turns import fit_leading


def test_the_most_leading_passages_that_leave_room_are_read() -> None:
    for passages, room, least in itertools.product(range(5), range(0, 13, 2), (0, 1)):
        most = max(count for count in range(passages + 1) if count <= least or 2 + 3 * count <= room)
        fitted = fit_leading(lambda count: [0] * (2 + 3 * count), passages, room, least=least)
        assert fitted == (most, [0] * (2 + 3 * most))
