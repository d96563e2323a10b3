"""Budgets of trajectories: tokens of a question, tokens and cost of a run. A spent budget ends the trajectory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from reflectune.core.config import Settings, setting
from reflectune.models.remote.client import RemoteModel

Spent: TypeAlias = tuple[int, float]
"""Tokens that a run's remote model has read and written, and their cost."""

_MESSAGES: Final = {
    "question_tokens": "the question's {:,.0f} tokens are used up",
    "run_tokens": "the run's {:,.0f} tokens are used up",
    "run_cost": "the run's budget of {:,.10g} is used up",
}


class BudgetSettings(Settings):
    """Limits of a question and of a run; 0 means unlimited."""

    question_tokens: int = setting(
        0, "iterative: token budget of a question, which is then answered from its records; 0: no limit", ge=0
    )
    run_tokens: int = setting(
        0,
        "iterative: token budget of all requests of a process to the server; raise it to resume the run; 0: no limit",
        ge=0,
    )
    run_cost: float = setting(
        0.0, "iterative: the same as cost, by llm_input_price and llm_output_price; 0: no limit", ge=0
    )


@dataclass(frozen=True)
class Limit:
    """The budget that ended a trajectory.

    Attributes:
        key: Its key in a config.
        value: Its value.
    """

    key: str
    value: float

    def __str__(self) -> str:
        return _MESSAGES[self.key].format(self.value)


class BudgetSpent(Exception):
    """Raised inside a trajectory in place of a step that the budget no longer allows.

    A pipeline that catches it answers from its records so far. Its requests after that are executed.

    Args:
        limit: The spent budget, used as the message.
    """

    def __init__(self, limit: Limit) -> None:
        super().__init__(str(limit))
        self.limit = limit


@dataclass(frozen=True)
class Budget:
    """Limits of a question and of a run; 0 means unlimited.

    Attributes:
        question_tokens: Tokens of a question's prompts and replies.
        run_tokens: Tokens of all prompts and replies of the remote model, over all runs with the same reply file.
        run_cost: Their cost, in the currency of the prices.
        spent: Returns the used part of `run_tokens` and `run_cost`.
    """

    question_tokens: int = 0
    run_tokens: int = 0
    run_cost: float = 0.0
    spent: Callable[[], Spent] = field(default=lambda: (0, 0.0), compare=False)

    @classmethod
    def of(cls, settings: BudgetSettings, remote: RemoteModel | None) -> Budget:
        """Return the budget of the settings. Usage of the run is that of the remote model."""

        def spent() -> Spent:
            usage = remote.usage() if remote is not None else {}
            tokens = int(usage.get("prompt_tokens", 0)) + int(usage.get("completion_tokens", 0))
            return tokens, float(usage.get("cost", 0.0))

        return cls(settings.question_tokens, settings.run_tokens, settings.run_cost, spent)

    @property
    def limits(self) -> Mapping[str, float]:
        """The limits that are set, by key."""
        values = {"question_tokens": self.question_tokens, "run_tokens": self.run_tokens, "run_cost": self.run_cost}
        return {key: value for key, value in values.items() if value}

    def reached(self, counts: Mapping[str, int], spent: Spent) -> Limit | None:
        """Return the first limit that is reached.

        Args:
            counts: Counts of a trajectory, with `read` and `generated` among them.
            spent: The used part of the run's budget.
        """
        used = {"question_tokens": counts["read"] + counts["generated"], "run_tokens": spent[0], "run_cost": spent[1]}
        return next((Limit(key, value) for key, value in self.limits.items() if used[key] >= value), None)


def was_raised(limit: Mapping[str, float], now: Mapping[str, float]) -> bool:
    """Return True if a limit that ended a trajectory has been raised or removed since."""
    return any(now.get(key, float("inf")) > value for key, value in limit.items())
