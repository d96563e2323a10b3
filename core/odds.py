"""Convert between probabilities and log-odds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def sigmoid(values: ArrayLike) -> Any:
    """Return 1 / (1 + exp(-x)), same shape; small values keep their precision, and so their order."""
    return np.exp(-np.logaddexp(0, -np.asarray(values, dtype=float)))


def log_odds(yes: float, no: float | None = None, bound: float = 30.0) -> float:
    """Return log(yes / no), with `no` = 1 - `yes` by default, clipped to ± `bound`."""
    no = 1.0 - yes if no is None else no
    if min(yes, no) <= 0.0:
        return bound if yes > no else -bound
    return min(max(math.log(yes) - math.log(no), -bound), bound)
