"""Find duplicate ids and draw samples of ids by 64-bit hashes, in eight bytes per id."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]


def hash_ids(ids: Iterable[str], seed: int | None = None) -> Hashes:
    """Return a 64-bit hash of each id, shape (n,), which depends on the seed.

    Two of 20 million ids collide with a probability of 1 in 90,000; the second would count as a duplicate.
    """
    key = b"" if seed is None else str(seed).encode()
    digests = b"".join(hashlib.blake2b(name.encode(), digest_size=8, key=key).digest() for name in ids)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


class SeenIds:
    """A growing set of hashes in sorted arrays of doubling sizes, with eight bytes per id.

    Attributes:
        runs: The arrays, each more than twice as long as the next. A look-up searches all.
    """

    def __init__(self) -> None:
        self.runs: list[Hashes] = []

    def add(self, hashes: Hashes) -> npt.NDArray[np.int64]:
        """Add a batch.

        Returns:
            The positions in the batch of repeated hashes, in rising order.
        """
        order = np.argsort(hashes, kind="stable")
        ordered = hashes[order]
        old = np.zeros(len(hashes), dtype=bool)
        old[1:] = ordered[1:] == ordered[:-1]
        for run in self.runs:
            old |= is_among(ordered, run)
        self.runs.append(ordered[~old])
        while len(self.runs) > 1 and len(self.runs[-2]) <= 2 * len(self.runs[-1]):
            merged = np.concatenate(self.runs[-2:])
            merged.sort()
            self.runs[-2:] = [merged]
        return np.sort(order[old])

    def __len__(self) -> int:
        return sum(map(len, self.runs))


def is_among(hashes: Hashes, ordered: Hashes) -> npt.NDArray[np.bool_]:
    """Return True for each hash that is in the sorted array `ordered`."""
    if not len(ordered):
        return np.zeros(len(hashes), dtype=bool)
    positions = np.minimum(np.searchsorted(ordered, hashes), len(ordered) - 1)
    return ordered[positions] == hashes


def sample_bound(hashes: Hashes, count: int) -> int:
    """Return the bound below which `count` of the distinct hashes lie; all of them if there are fewer.

    A sample of 100 is a subset of the sample of 1,000 with the same seed.
    """
    if count >= len(hashes):
        return 1 << 64
    return int(np.partition(hashes, count)[count]) if count else 0
