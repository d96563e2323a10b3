"""Which of the derived labels are taken: balance and number, by seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from reflectune.core.errors import UserError

Item = TypeVar("Item")


@dataclass(frozen=True)
class Choice:
    """Which labels are taken.

    Attributes:
        balance: At most this many of the more frequent label for each of the rarer one, at least 1; None takes all.
            Where one label never comes there is nothing to balance with, and all are taken.
        limit: At most this many in all, after balancing; None takes all. The draws of a lower limit are among those
            of a higher one.
        seed: Of the draws.
    """

    balance: float | None = None
    limit: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse shares and numbers that leave nothing; UserError."""
        if self.balance is not None and not self.balance >= 1:
            raise UserError(f"a balance must be at least 1 (of the more frequent label), found {self.balance}")
        if self.limit is not None and self.limit < 1:
            raise UserError(f"a limit must be at least 1, found {self.limit}")


def choose(labels: Sequence[Item], is_positive: Callable[[Item], bool], choice: Choice) -> list[Item]:
    """Balance two labels and draw from them; what is taken keeps its order, and depends on the order and seed alone."""
    rng = random.Random(f"{choice.seed}")
    sides = [[i for i, label in enumerate(labels) if is_positive(label) is side] for side in (True, False)]
    if choice.balance is not None and all(sides):
        most = int(min(map(len, sides)) * choice.balance)
        sides = [rng.sample(side, min(most, len(side))) for side in sides]
    taken = sorted(sides[0] + sides[1])
    rng.shuffle(taken)
    return [labels[i] for i in sorted(taken[: choice.limit])]
