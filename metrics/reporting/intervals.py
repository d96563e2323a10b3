"""Bootstrap intervals over entities (Efron's percentile method) and a paired permutation test, both seeded.

Questions about one entity succeed or fail together, since retrieval finds its article or misses it. Resamples therefore
draw entities with all their questions (cluster bootstrap), and the permutation test swaps whole entities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from reflectune.core.types import Question

Statistic = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Map rows, shape (questions, …), and weights, shape (resamples, questions), to one number a resample.

A row's weight is the number of times that it was drawn. Weights of 1 give the number of the rows themselves.
"""

RESAMPLES = 1000
LEVEL = 0.95

WEIGHTS_AT_ONCE = 4_000_000
"""Bounds memory at 32 MB of weights. Results of a seed depend on it."""

_ROUNDING = 1e-12
"""Two sums of the same numbers in a different order may differ by this much."""


@dataclass(frozen=True)
class Estimate:
    """A number, or the difference of two systems, with its interval."""

    value: float
    low: float
    high: float


def entities(questions: Iterable[Question]) -> list[str]:
    """Return each question's cluster: its first gold entity, the one depicted, or its own id without an entity."""
    return [question.entity_ids[0] if question.entity_ids else question.id for question in questions]


def units(questions: Sequence[Question]) -> str:
    """Return the units that intervals over these questions resample, e.g. `211 entities` or `80 questions`."""
    named = [question for question in questions if question.entity_ids]
    counts = {"entities": len(set(entities(named))), "questions": len(questions) - len(named)}
    return " and ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "no questions"


def average(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the weighted mean of values, shape (questions,), in each resample; 0 in one that drew none of them."""
    total = weights.sum(axis=1)
    return np.divide((weights * rows).sum(axis=1), total, out=np.zeros_like(total), where=total > 0)


def over_seeds(
    runs: Sequence[ArrayLike],
    statistic: Statistic = average,
    against: Sequence[ArrayLike] | None = None,
    *,
    seed: int,
    n: int = RESAMPLES,
    strata: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
) -> Estimate:
    """Return the mean of a statistic over training seeds, or of a difference, with its percentile interval.

    Each resample draws as many seeds as there are, with replacement, and one set of entities for all of them, since the
    luck of a set of questions is the same for every seed.

    Args:
        runs: One run of a system for each seed, with one row a question, shape (questions, …).
        statistic: Function of rows of that shape, e.g. the harmonic mean of two splits' means.
        against: The other system's runs in the same order of seeds; its statistic is subtracted.
        seed: Equal seeds give equal intervals.
        n: Number of resamples.
        strata: Label of each question, shape (questions,). Strata are resampled separately and keep their number of
            clusters, so a statistic over splits never meets an empty one. None: one stratum.
        clusters: Label of each question, shape (questions,), as `entities` returns. A resample draws as many clusters
            of a stratum as it has, with replacement, each with all its questions. None: every question by itself.

    Raises:
        ValueError: No question is given, or the statistic is not finite on some resample.
    """
    rows = [np.asarray(run, dtype=float) for run in runs]
    others = [np.asarray(run, dtype=float) for run in against or ()]
    shapes = {run.shape for run in (*rows, *others)}
    if len(shapes) != 1 or (against is not None and len(others) != len(rows)):
        raise ValueError(f"expected all systems on the same questions and seeds, found shapes {sorted(shapes)}")

    def measured(weights: np.ndarray) -> np.ndarray:
        """Return the statistic of each seed in each resample, shape (seeds, resamples)."""
        numbers = np.stack([statistic(run, weights) for run in rows])
        return numbers - np.stack([statistic(run, weights) for run in others]) if others else numbers

    _check(rows[0], statistic, n)
    generator = np.random.default_rng(seed)
    drawn = np.concatenate([measured(w) for w in draw_weights(len(rows[0]), generator, n, strata, clusters)], axis=1)
    if len(rows) > 1:
        drawn = np.take_along_axis(drawn, generator.integers(len(rows), size=drawn.shape), axis=0)
    means = drawn.mean(axis=0)
    if not np.isfinite(means).all():
        raise ValueError("the statistic is not finite on some resamples: pass strata, or handle empty groups in it")
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    value = measured(np.ones((1, len(rows[0])))).mean()
    return Estimate(float(value), float(low), float(high))


def permutation_test(
    first: ArrayLike,
    second: ArrayLike,
    statistic: Statistic = average,
    *,
    seed: int,
    n: int = RESAMPLES,
    clusters: ArrayLike | None = None,
) -> float:
    """Return the two-sided p-value of `statistic(first) - statistic(second)` under exchangeable systems.

    Each resample swaps the two systems' rows on each cluster with probability 1/2; p is (1 + resamples that differ at
    least as much) / (1 + n), so it is never 0. Strata make no difference.

    Args:
        first: One row a question, shape (questions, …).
        second: The other system's, same shape and order of questions.
        statistic: Function of rows of that shape.
        seed: Equal seeds give equal p.
        n: Number of resamples.
        clusters: See `over_seeds`.
    """
    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if a.shape != b.shape:
        raise ValueError(f"expected both systems on the same questions, found shapes {a.shape} and {b.shape}")
    _check(a, statistic, n)
    ones = np.ones((1, len(a)))
    observed = abs(statistic(a, ones) - statistic(b, ones))[0]
    generator = np.random.default_rng(seed)
    members = _numbered(clusters, len(a))
    at_least_as_large = 0
    for start in range(0, n, block := max(1, WEIGHTS_AT_ONCE // len(a))):
        swapped = (generator.random((min(block, n - start), members.max() + 1)) < 0.5)[:, members]
        if statistic is average:
            differences = np.where(swapped, b - a, a - b).mean(axis=1)
        else:
            masks = (swap.reshape(-1, *(1,) * (a.ndim - 1)) for swap in swapped)
            pairs = ((np.where(mask, b, a), np.where(mask, a, b)) for mask in masks)
            differences = np.array([(statistic(one, ones) - statistic(other, ones))[0] for one, other in pairs])
        at_least_as_large += int((abs(differences) >= observed - _ROUNDING).sum())
    return (1 + at_least_as_large) / (1 + n)


def draw_weights(
    size: int,
    generator: np.random.Generator,
    n: int,
    strata: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
) -> Iterator[np.ndarray]:
    """Yield the counts of each of `size` questions in `n` resamples, in blocks of shape (resamples, questions).

    A stratum of a single cluster is resampled by question: resampled by cluster it would never vary.

    Args:
        size: Number of questions.
        generator: Source of the draws.
        n: Number of resamples.
        strata: See `over_seeds`.
        clusters: See `over_seeds`.
    """
    stratum = _numbered(np.zeros(size) if strata is None else strata, size)
    cluster = _numbered(clusters, size)
    rows_by_stratum = [np.flatnonzero(stratum == number) for number in range(stratum.max() + 1)]
    members = [np.unique(cluster[rows], return_inverse=True)[1] for rows in rows_by_stratum]
    members = [inside if inside.any() else np.arange(len(inside)) for inside in members]
    for start in range(0, n, block := max(1, WEIGHTS_AT_ONCE // size)):
        count = min(block, n - start)
        weights = np.empty((count, size))
        for rows, inside in zip(rows_by_stratum, members, strict=True):
            clusters_here = inside.max() + 1
            drawn = generator.integers(clusters_here, size=(count, clusters_here))
            drawn += clusters_here * np.arange(count)[:, None]
            drawn_counts = np.bincount(drawn.ravel(), minlength=count * clusters_here).reshape(count, clusters_here)
            weights[:, rows] = drawn_counts[:, inside]
        yield weights


def _numbered(labels: ArrayLike | None, size: int) -> np.ndarray:
    """Return the labels as numbers from 0, in the labels' sorted order; each question its own label if None."""
    names = np.arange(size) if labels is None else np.asarray(labels)
    if names.shape != (size,):
        raise ValueError(f"expected one stratum and one cluster a question, {size} in all, found shape {names.shape}")
    return np.unique(names, return_inverse=True)[1]


def _check(rows: np.ndarray, statistic: Statistic, n: int) -> None:
    if not len(rows) or n < 1:
        raise ValueError(f"expected at least one question and one resample, found {len(rows)} and {n}")
    if statistic is average and rows.ndim != 1:
        raise ValueError(f"expected 1-D values to average, found shape {rows.shape}; give a statistic")
