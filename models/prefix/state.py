"""State of the prefix engine: questions and branches that have been read, and answers."""

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
"""Work on rows that a reader has made ready, given with their indices."""


@dataclass(frozen=True)
class Generation:
    """A greedy answer.

    Attributes:
        token_ids: Generated ids without the forced ones; the end token is included if it was reached.
        text: Decoded ids without the end token; reflection tokens are kept.
        log_probs: Log-probability of each token under the model.
        finished: True if the end token was reached.
    """

    token_ids: list[int]
    text: str
    log_probs: list[float]
    finished: bool

    @property
    def score(self) -> float:
        """S_ans, equation 7 of mR²AG: the geometric mean of the tokens' probabilities, the end token's included."""
        return self.score_behind(0)

    def score_behind(self, first: int) -> float:
        """Return S_ans of the tokens after the first `first`; 0 if there are none."""
        log_probs = self.log_probs[first:]
        return math.exp(sum(log_probs) / len(log_probs)) if log_probs else 0.0


@dataclass(frozen=True)
class Prefixes:
    """Questions whose images and prefixes have been read.

    Attributes:
        engine: The engine that read them.
        lengths: Number of tokens of each prefix.
        cache: Their keys and values, as the engine's reader keeps them.
    """

    engine: PrefixEngine
    lengths: Sequence[int]
    cache: Any

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def prefixes(self) -> Prefixes:
        """The prefixes, as branches have them."""
        return self

    @property
    def rows(self) -> list[RowIndex]:
        """All rows in order."""
        return [(q, 0) for q in range(len(self))]

    def branch_ids(self, _: RowIndex) -> Sequence[int]:
        """Return no token ids: a prefix has none after it."""
        return ()

    def probabilities(self, token_ids: Sequence[int]) -> Tensor:
        """Return the probability of each token to come next, full softmax: float32 of shape (questions, tokens)."""
        return self.engine.probabilities(self, token_ids)


@dataclass(frozen=True)
class Branches:
    """Branches that have been read on top of prefixes; a question may have any number.

    Attributes:
        engine: The engine that read them.
        prefixes: Their prefixes.
        ids: Token ids of each question's branches.
        cache: Their keys and values, as the engine's reader keeps them.
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
