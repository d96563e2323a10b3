"""Numbers of a model that may be broken: a log-probability that isn't finite says nothing, and is None."""

from __future__ import annotations

import math
from collections.abc import Sequence


def finite_sum(log_probs: Sequence[float]) -> float | None:
    """Log-probability of a sequence in nats, or None if it is no finite number."""
    total = math.fsum(log_probs) if all(map(math.isfinite, log_probs)) else math.nan
    return total if math.isfinite(total) else None
