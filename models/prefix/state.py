"""Results of the prefix engine: prefixes and branches that have been read, and answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

if TYPE_CHECKING:
    from reflectune.models.prefix.engine import PrefixEngine

Ready = TypeVar("Ready")
Result = TypeVar("Result")
RowIndex = tuple[int, int]
"""Question and branch; the branch is ignored for the result of `read`."""
Work = Callable[[Ready, list[int]], list[Result]]
"""Function of rows that a reader has prepared, and their indices; returns a result per row."""


@dataclass(frozen=True)
class Generation:
    """A greedy answer.

    Attributes:
        token_ids: Generated ids without the forced ones, with the end token if it was reached.
        text: Text of the ids without the end token; reflection tokens are kept.
        log_probs: Log-probability of each token under the model.
        finished: True if the end token was reached.
    """

    token_ids: list[int]
    text: str
    log_probs: list[float]
    finished: bool

    @property
    def score(self) -> float:
        """S_ans, equation 7 of mR²AG: the geometric mean of the tokens' probabilities, including the end token's."""
        return self.score_after(0)

    def score_after(self, skipped: int) -> float:
        """Return S_ans without the first `skipped` tokens; 0 if no token is left."""
        log_probs = self.log_probs[skipped:]
        return math.exp(sum(log_probs) / len(log_probs)) if log_probs else 0.0


@dataclass(frozen=True)
class Prefixes:
    """Questions whose images and prefixes have been read.

    Attributes:
        engine: The engine that read them.
        lengths: Number of tokens of each prefix.
        cache: Their keys and values, in the form of the engine's reader.
    """

    engine: PrefixEngine
    lengths: Sequence[int]
    cache: Any

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def prefixes(self) -> Prefixes:
        """The prefixes themselves; `Branches` has the same attribute."""
        return self

    @property
    def rows(self) -> list[RowIndex]:
        """All rows in order."""
        return [(q, 0) for q in range(len(self))]

    def branch_ids(self, _: RowIndex) -> Sequence[int]:
        """Return no token ids: no branch follows the prefix."""
        return ()

    def probabilities(self, token_ids: Sequence[int]) -> Tensor:
        """Return the probability of each token to come next, full softmax: float32 of shape (questions, tokens)."""
        return self.engine.probabilities(self, token_ids)


@dataclass(frozen=True)
class Branches:
    """Branches that have been read on top of prefixes; a question may have any number of them.

    Attributes:
        engine: The engine that read them.
        prefixes: Their prefixes.
        ids: Token ids of each question's branches.
        cache: Their keys and values, in the form of the engine's reader.
    """

    engine: PrefixEngine
    prefixes: Prefixes
    ids: Sequence[Sequence[Sequence[int]]]
    cache: Any

    @property
    def rows(self) -> list[RowIndex]:
        """All rows in order."""
        return [(q, k) for q, question_branches in enumerate(self.ids) for k in range(len(question_branches))]

    def branch_ids(self, row: RowIndex) -> Sequence[int]:
        """Return a branch's token ids."""
        return self.ids[row[0]][row[1]]

    def probabilities(self, token_ids: Sequence[int]) -> list[Tensor]:
        """Return the probability of each token to come next, full softmax: (branches, tokens) for each question."""
        return list(self.engine.probabilities(self, token_ids).split([*map(len, self.ids)]))
