"""Tokens that a picture's placeholder in a prompt becomes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Expansion:
    """Tokens of a picture, and those that the processor writes around them.

    Attributes:
        token: Id of the picture's tokens; in Gemma-3 another than the placeholder's.
        before: Number of tokens before the first of them.
        after: Number of tokens after the last.
    """

    token: int
    before: int
    after: int

    @classmethod
    def of(cls, ids: Sequence[int]) -> Expansion:
        """Describe an expanded placeholder, whose longest run is the picture's."""
        token = max((list(run) for _, run in itertools.groupby(ids)), key=len)[0]
        return cls(token, ids.index(token), ids[::-1].index(token))

    def range_in(self, ids: Sequence[int]) -> tuple[int, int]:
        """Return the range of ids that the one picture among them was expanded to."""
        return ids.index(self.token) - self.before, len(ids) - ids[::-1].index(self.token) + self.after
