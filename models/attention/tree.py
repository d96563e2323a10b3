"""Trees of token ids: a prefix shared by K passages, and a branch for each passage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # torch is slow to import; a wrong config must fail before that
    from torch import Tensor

IGNORE = -100
"""Label of a token that is not supervised."""


@dataclass(frozen=True)
class Segment:
    """Consecutive tokens. `labels` are `ids` where supervised, else -100; `weights` multiply the tokens' losses."""

    ids: tuple[int, ...]
    labels: tuple[int, ...]
    weights: tuple[float, ...]

    @classmethod
    def of(cls, ids: Sequence[int], labels: Sequence[int], weight: float = 1.0) -> Segment:
        """Return a segment whose supervised tokens all have the same weight."""
        return cls(tuple(ids), tuple(labels), tuple(weight * (label != IGNORE) for label in labels))


@dataclass(frozen=True)
class Tree:
    """Prefix with its image, and branches that continue it independently. Without branches it is an ordinary row."""

    prefix: Segment
    branches: tuple[Segment, ...]
    vision: Mapping[str, Tensor]

    @property
    def length(self) -> int:
        """Number of tokens of the packed row: every branch repeats the prefix's last token."""
        return len(self.prefix.ids) + sum(len(branch.ids) + 1 for branch in self.branches) - bool(self.branches)

    @property
    def depth(self) -> int:
        """Number of tokens from the beginning to the end of the longest branch, which must fit the context."""
        return len(self.prefix.ids) + max((len(branch.ids) for branch in self.branches), default=0)

    @property
    def supervised(self) -> int:
        """Number of supervised tokens."""
        return sum(label != IGNORE for part in (self.prefix, *self.branches) for label in part.labels)


def independent_rows(tree: Tree) -> list[Tree]:
    """Return one row per branch. Reading the tree is equivalent to reading these rows.

    The prefix is supervised in the first row only, since it counts once per question.
    """
    if not tree.branches:
        return [tree]
    unsupervised = replace(tree.prefix, labels=(IGNORE,) * len(tree.prefix.ids), weights=(0.0,) * len(tree.prefix.ids))
    prefixes = [tree.prefix] + [unsupervised] * (len(tree.branches) - 1)
    return [
        Tree(Segment(p.ids + b.ids, p.labels + b.labels, p.weights + b.weights), (), tree.vision)
        for p, b in zip(prefixes, tree.branches, strict=True)
    ]
