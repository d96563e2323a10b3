"""State of the prefix engine: questions and branches that have been read, and answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from reflectune.models.prefix.packed_rows import OpenedTrees, Spot
from reflectune.models.prefix.rows import Rows

if TYPE_CHECKING:
    from reflectune.models.prefix.engine import PrefixEngine


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
        chunks: The batches in which they were read.
        places: Chunk and row of each question.
        trees: The questions where they are read in packed rows, which are read later; `chunks` is empty then.
    """

    engine: PrefixEngine
    chunks: list[Rows]
    places: dict[int, tuple[int, int]]
    trees: OpenedTrees | None = None

    def __len__(self) -> int:
        return len(self.places)

    def probabilities(self, token_ids: Sequence[int]) -> Tensor:
        """Return the probability of each token to come next, full softmax: float32 of shape (questions, tokens)."""
        if self.trees is not None:
            return self.engine.probabilities_at(self.engine.spots_of(self, range(len(self))), token_ids)
        hidden = [chunk.hidden for chunk in self.chunks]
        return self.engine.probabilities(hidden, [self.places[q] for q in range(len(self))], token_ids)


@dataclass(frozen=True)
class BranchRows:
    """Branches of one batch, by (question, branch), with their rows."""

    branches: list[tuple[int, int]]
    rows: Rows


@dataclass(frozen=True)
class Branches:
    """Branches that have been read on top of prefixes, in chunks or packed rows; a question may have any number."""

    engine: PrefixEngine
    prefixes: Prefixes
    ids: Sequence[Sequence[Sequence[int]]]
    chunks: list[BranchRows]
    places: dict[tuple[int, int], tuple[int, int]]
    spots: Mapping[tuple[int, int], Spot] = field(default_factory=dict)

    def probabilities(self, token_ids: Sequence[int]) -> list[Tensor]:
        """Return the probability of each token to come next, full softmax: (branches, tokens) for each question."""
        rows = [(q, k) for q, question_branches in enumerate(self.ids) for k in range(len(question_branches))]
        if self.prefixes.trees is not None:
            branch_probabilities = self.engine.probabilities_at([self.spots[row] for row in rows], token_ids)
        else:
            hidden = [chunk.rows.hidden for chunk in self.chunks]
            branch_probabilities = self.engine.probabilities(hidden, [self.places[row] for row in rows], token_ids)
        return list(branch_probabilities.split([len(question_branches) for question_branches in self.ids]))
