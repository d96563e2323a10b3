import math
import os
from collections.abc import Iterator
from functools import partial

import pytest

from reflectune.core.durable import read_json
from reflectune.core.errors import UserError
from reflectune.data_builders.conversion.workers import Workers


@pytest.mark.parametrize("count", [1, 2])
def test_a_users_mistake_keeps_its_message(count: int) -> None:
    with Workers(count) as workers, pytest.raises(UserError, match="the file is missing: nowhere"):
        list(workers.map(partial(read_json, what="the file"), ["nowhere"]))


def test_few_tasks_are_taken_ahead() -> None:
    taken = 0

    def tasks() -> Iterator[int]:
        nonlocal taken
        for n in range(100):
            taken += 1
            yield n

    with Workers(2) as workers:
        next(results := workers.map(math.factorial, tasks()))
        assert taken <= 6
        results.close()  # type: ignore[attr-defined]


def test_a_killed_worker_is_a_users_error() -> None:
    with Workers(2) as workers, pytest.raises(UserError, match="fewer `workers`"):
        list(workers.map(os._exit, [1, 1]))
