"""Bootstrap intervals by question (Efron's percentile method) and a paired permutation test, both seeded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

Statistic = Callable[[np.ndarray], float]


@dataclass(frozen=True)
class Batched:
    """A statistic that many resamples at once are quicker for than one after another.

    Attributes:
        of_one: The statistic of rows, shape (questions, …).
        of_many: The same numbers, to the last digit, of each resample, shape (resamples, questions, …).
    """

    of_one: Statistic
    of_many: Callable[[np.ndarray], np.ndarray]

    def __call__(self, rows: np.ndarray) -> float:
        """The statistic of rows."""
        return self.of_one(rows)


RESAMPLES = 1000
LEVEL = 0.95

INDICES_AT_ONCE = 4_000_000
"""Bounds memory at 32 MB of indices. Results of a seed depend on it."""

VALUES_AT_ONCE = 1_000_000
"""Bounds the resampled rows that a `Batched` statistic is given, at 8 MB."""

_ROUNDING = 1e-12
"""Two sums of the same numbers in another order may differ by this much."""


def bootstrap_interval(
    values: ArrayLike,
    statistic: Statistic | None = None,
    *,
    seed: int,
    n: int = RESAMPLES,
    level: float = LEVEL,
    strata: ArrayLike | None = None,
) -> tuple[float, float]:
    """Return the percentile interval of a statistic over questions.

    Args:
        values: One row a question, shape (questions, …).
        statistic: Function of rows of that shape, e.g. the harmonic mean of two splits' means; None is the mean of 1-D
            values, which is vectorized over resamples, as a `Batched` one is.
        seed: Equal seeds give equal intervals.
        n: Number of resamples.
        level: Share of resampled statistics in the interval.
        strata: Label of each question, shape (questions,). Strata are resampled separately and keep their size, so a
            statistic over splits never meets an empty one. None: one stratum.

    Returns:
        (low, high).

    Raises:
        ValueError: No question is given, or the statistic is not finite on some resample.
    """
    drawn = _resampled(np.asarray(values), statistic, seed, n, strata)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class Difference:
    """The difference of two systems on the same questions, its interval, and the share of resamples where it is ≤ 0."""

    value: float
    low: float
    high: float
    share_not_above: float


def paired_bootstrap(
    first: ArrayLike,
    second: ArrayLike,
    statistic: Statistic | None = None,
    *,
    seed: int,
    n: int = RESAMPLES,
    level: float = LEVEL,
    strata: ArrayLike | None = None,
) -> Difference:
    """`statistic(first) - statistic(second)`, both taken on the same resampled questions.

    Args:
        first: One row a question, shape (questions, …).
        second: The other system's, same shape and order of questions.
        statistic: See `bootstrap_interval`; so are the other arguments.
    """
    a, b = np.asarray(first), np.asarray(second)
    if a.shape != b.shape:
        raise ValueError(f"expected both systems on the same questions, found shapes {a.shape} and {b.shape}")
    drawn = _resampled(a, statistic, seed, n, strata) - _resampled(b, statistic, seed, n, strata)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    measure = statistic or _mean
    return Difference(measure(a) - measure(b), float(low), float(high), float((drawn <= 0).mean()))


def permutation_test(
    first: ArrayLike, second: ArrayLike, statistic: Statistic | None = None, *, seed: int, n: int = RESAMPLES
) -> float:
    """Return the two-sided p-value of `statistic(first) - statistic(second)` under exchangeable systems.

    Each resample swaps the two systems' rows on each question with probability 1/2; p is (1 + resamples that differ at
    least as much) / (1 + n), so it is never 0. Strata make no difference.

    Args:
        first: One row a question, shape (questions, …).
        second: The other system's, same shape and order of questions.
        statistic: Function of rows of that shape; None is the mean of 1-D values, which is vectorized over resamples.
        seed: Equal seeds give equal p.
        n: Number of resamples.
    """
    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if a.shape != b.shape:
        raise ValueError(f"expected both systems on the same questions, found shapes {a.shape} and {b.shape}")
    if not len(a) or n < 1:
        raise ValueError(f"expected at least one question and one resample, found {len(a)} and {n}")
    if statistic is None and a.ndim != 1:
        raise ValueError(f"expected 1-D values to average, found shape {a.shape}; give a statistic")
    measure = statistic or _mean
    observed = abs(measure(a) - measure(b))
    generator = np.random.default_rng(seed)
    as_much = 0
    for start in range(0, n, block := max(1, INDICES_AT_ONCE // len(a))):
        swapped = generator.random((min(block, n - start), len(a))) < 0.5
        if statistic is None:
            differences = np.where(swapped, b - a, a - b).mean(axis=1)
        else:
            pairs = (swap.reshape(-1, *(1,) * (a.ndim - 1)) for swap in swapped)
            differences = np.array([measure(np.where(s, b, a)) - measure(np.where(s, a, b)) for s in pairs])
        as_much += int((abs(differences) >= observed - _ROUNDING).sum())
    return (1 + as_much) / (1 + n)


def _resampled(
    values: np.ndarray, statistic: Statistic | None, seed: int, n: int, strata: ArrayLike | None
) -> np.ndarray:
    """The statistic of each resample, shape (n,)."""
    if not len(values) or n < 1:
        raise ValueError(f"expected at least one question and one resample, found {len(values)} and {n}")
    if statistic is None and values.ndim != 1:
        raise ValueError(f"expected 1-D values to average, found shape {values.shape}; give a statistic")
    labels = np.zeros(len(values), dtype=int) if strata is None else np.asarray(strata)
    if labels.shape != (len(values),):
        raise ValueError(f"expected one stratum a question, {len(values)} in all, found shape {labels.shape}")
    parts = [_measured(values, rows, statistic) for rows in _draws(labels, seed, n)]
    drawn = np.concatenate(parts).astype(float)
    if not np.isfinite(drawn).all():
        raise ValueError("the statistic is not finite on some resamples: give strata, or mind empty groups in it")
    return drawn


def _measured(values: np.ndarray, draws: np.ndarray, statistic: Statistic | None) -> np.ndarray:
    """The statistic of each of these resamples, whose indices are of shape (resamples, questions)."""
    if statistic is None:
        return values[draws].mean(axis=1)
    if isinstance(statistic, Batched):
        step = max(1, VALUES_AT_ONCE // values.size)
        return np.concatenate([statistic.of_many(values[draws[k : k + step]]) for k in range(0, len(draws), step)])
    return np.array([statistic(values[row]) for row in draws])


def _draws(labels: np.ndarray, seed: int, n: int) -> Iterator[np.ndarray]:
    """Indices of resampled questions, in blocks of shape (resamples, questions)."""
    generator = np.random.default_rng(seed)
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    block = max(1, INDICES_AT_ONCE // len(labels))
    for start in range(0, n, block):
        count = min(block, n - start)
        yield np.concatenate([rows[generator.integers(len(rows), size=(count, len(rows)))] for rows in members], axis=1)


def _mean(values: np.ndarray) -> float:
    return float(values.mean())
