"""Log-odds and the probabilities that they mean."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def sigmoid(values: ArrayLike) -> Any:
    """Return 1 / (1 + exp(-x)), same shape; small values keep their precision, and so their order."""
    return np.exp(-np.logaddexp(0, -np.asarray(values, dtype=float)))


def log_odds(yes: float, no: float | None = None, most: float = 30.0) -> float:
    """Return log(yes / no), with `no` = 1 - `yes` by default, within ± `most`."""
    no = 1.0 - yes if no is None else no
    if min(yes, no) <= 0.0:
        return most if yes > no else -most
    return min(max(math.log(yes) - math.log(no), -most), most)
