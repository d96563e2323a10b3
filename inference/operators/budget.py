"""What trajectories may use: tokens of a question, tokens and money of a run. When it is used up, they end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from reflectune.inference.config import TrajectoryConfig
from reflectune.models.remote.client import RemoteModel

Spent: TypeAlias = tuple[int, float]
"""Tokens that a server's model has read and written for a run, and what they cost."""

_SAID: Final = {
    "question_tokens": "the question's {:,g} tokens are used up",
    "run_tokens": "the run's {:,g} tokens are used up",
    "run_cost": "the run's budget of {:,g} is used up",
}


@dataclass(frozen=True)
class Limit:
    """The budget that ended a trajectory.

    Attributes:
        key: Its key in a config.
        value: How much it was.
    """

    key: str
    value: float

    def __str__(self) -> str:
        return _SAID[self.key].format(self.value)


class BudgetSpent(Exception):
    """Raised inside a trajectory, at a step that is not carried out since its budget is used up.

    A pipeline that catches it answers from what it has; what it asks for then is carried out.

    Args:
        limit: The budget, which the message is of.
    """

    def __init__(self, limit: Limit) -> None:
        super().__init__(str(limit))
        self.limit = limit


def _nothing() -> Spent:
    return 0, 0.0


@dataclass(frozen=True)
class Budget:
    """How much a question and a run may use; 0 is no limit.

    Attributes:
        question_tokens: Tokens of a question's prompts and replies.
        run_tokens: Tokens of all replies of the server's model, whichever run into the same file asked for them.
        run_cost: What these cost, in the currency of the prices.
        spent: How much of the last two is used.
    """

    question_tokens: int = 0
    run_tokens: int = 0
    run_cost: float = 0.0
    spent: Callable[[], Spent] = field(default=_nothing, compare=False)

    @classmethod
    def of(cls, config: TrajectoryConfig, remote: RemoteModel | None) -> Budget:
        """The budget of a config; that of a run is of the replies that a server's model has given."""

        def spent() -> Spent:
            usage = remote.usage() if remote is not None else {}
            tokens = int(usage.get("prompt_tokens", 0)) + int(usage.get("completion_tokens", 0))
            return tokens, float(usage.get("cost", 0.0))

        return cls(config.question_tokens, config.run_tokens, config.run_cost, spent)

    @property
    def limits(self) -> Mapping[str, float]:
        """The limits that there are, by their keys."""
        every = {"question_tokens": self.question_tokens, "run_tokens": self.run_tokens, "run_cost": self.run_cost}
        return {key: value for key, value in every.items() if value}

    def reached(self, counts: Mapping[str, int], spent: Spent) -> Limit | None:
        """The first limit that is reached.

        Args:
            counts: What a trajectory has counted, `read` and `generated` among it.
            spent: How much of the run's budget is used.
        """
        used = {
            "question_tokens": counts["read"] + counts["generated"],
            "run_tokens": spent[0],
            "run_cost": spent[1],
        }
        return next((Limit(key, value) for key, value in self.limits.items() if used[key] >= value), None)


def outgrown(limit: Mapping[str, float], now: Mapping[str, float]) -> bool:
    """Whether what ended a trajectory would not end it now: a limit, by its key, that has been raised or taken away."""
    return any(now.get(key, float("inf")) > value for key, value in limit.items())
