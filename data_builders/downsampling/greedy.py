"""MI-RAG's greedy downsampling (arXiv 2509.00798, appendix G, figure A13), and the threshold that keeps so many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from reflectune.core.errors import UserError

Vectors = npt.NDArray[np.float32]

DIGITS: Final = 6
"""Decimals of a threshold that is searched for: what is printed gives the same subset again."""


@dataclass(frozen=True)
class Subset:
    """What one pass over the questions kept.

    Attributes:
        threshold: Of the similarity.
        kept: Whether each question was kept, shape (questions,).
        nearest: Each question's similarity to the kept question before it that is most like it, shape (questions,);
            -inf for the first.
    """

    threshold: float
    kept: npt.NDArray[np.bool_]
    nearest: npt.NDArray[np.float32]

    @property
    def size(self) -> int:
        """How many were kept."""
        return int(self.kept.sum())


def downsample(blocks: Sequence[Vectors], threshold: float, most: float = math.inf) -> Subset:
    """Leave out each question whose similarity to a kept one before it exceeds the threshold.

    The work is questions times kept ones: a block is compared with all that were kept before it in one product, and
    its rest with each one that is kept within it.

    Args:
        blocks: Embeddings in the order of the questions, each block of shape (n, dimensions), of rows of length 1.
        threshold: Similarity (cosine) above which a question is redundant; 1 keeps all.
        most: Stop once more than this many are kept; what follows counts as left out.
    """
    subset: list[Vectors] = []
    kept: list[npt.NDArray[np.bool_]] = []
    nearest: list[npt.NDArray[np.float32]] = []
    size = 0
    for block in blocks:
        nearest.append(_nearest(block, subset if size <= most else []))
        kept.append(np.zeros(len(block), dtype=bool))
        chosen: list[int] = []
        for row in range(len(block)):
            if nearest[-1][row] > threshold or size > most:
                continue
            chosen.append(row)
            size += 1
            later = nearest[-1][row + 1 :]
            np.maximum(later, np.minimum(block[row + 1 :] @ block[row], 1), out=later)
        kept[-1][chosen] = True
        subset.append(block[chosen])
    return Subset(threshold, _joined(kept, np.bool_), _joined(nearest, np.float32))


def find_subset(blocks: Sequence[Vectors], wanted: int, tolerance: float) -> Subset:
    """The subset of the threshold, found by bisection, that keeps about `wanted` questions.

    More may be kept by a lower threshold than by a higher one, since each kept question rules out others; so bisection
    finds a threshold that fits or none, and the same one each time.

    Args:
        blocks: As `downsample` takes them.
        wanted: How many to keep.
        tolerance: Share of `wanted` that the number may differ by.

    Raises:
        UserError: There are too few questions, or no threshold that was tried keeps so many.
    """
    total, slack = sum(map(len, blocks)), math.floor(wanted * tolerance)
    if total < wanted - slack:
        raise UserError(f"`questions`: {wanted:,} are wanted, and there are {total:,}; name more `splits`, or fewer")
    if total <= wanted + slack:
        return downsample(blocks, 1.0)
    low, high = -1.0, 1.0
    while high - low > 1.5 * 10**-DIGITS:
        subset = downsample(blocks, round((low + high) / 2, DIGITS), most=wanted + slack)
        if abs(subset.size - wanted) <= slack:
            return subset
        if subset.size > wanted:
            high = subset.threshold
        else:
            low = subset.threshold
    tried = ", ".join(f"{each:g} keeps {downsample(blocks, each).size:,}" for each in (low, high))
    raise UserError(
        f"`questions`: no threshold was found that keeps {wanted:,} ± {slack:,} of {total:,} questions: {tried}; "
        "set `threshold` to one of these, or a larger `tolerance`"
    )


def _nearest(block: Vectors, subset: Sequence[Vectors]) -> npt.NDArray[np.float32]:
    """The highest similarity of each row to those kept before the block, at most 1; -inf if there are none."""
    nearest = np.full(len(block), -np.inf, dtype=np.float32)
    for earlier in subset:
        if len(earlier):
            np.maximum(nearest, np.minimum((block @ earlier.T).max(axis=1), 1), out=nearest)
    return nearest


def _joined(parts: Sequence[npt.NDArray], dtype: type) -> npt.NDArray:  # type: ignore[type-arg]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=dtype)
