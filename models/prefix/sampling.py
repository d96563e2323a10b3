"""Sampling with one generator a row, so that a row's tokens don't depend on the rest of its batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """Temperature and seeds of sampled answers.

    Attributes:
        temperature: Divisor of the logits, above 0.
        seeds: A seed for each row, below 2 ** 63.
    """

    temperature: float
    seeds: Sequence[int]

    def __post_init__(self) -> None:
        """Raise a ValueError for a temperature that can't be sampled with."""
        if not self.temperature > 0:
            raise ValueError(f"temperature must be above 0, found {self.temperature}")

    def of(self, rows: Sequence[int]) -> Draw:
        """Return the generators of some of the rows."""
        return Draw(self.temperature, [torch.Generator().manual_seed(self.seeds[row]) for row in rows])


@dataclass(frozen=True)
class Draw:
    """Sample for the rows of one batch, each by uniform numbers from its own generator."""

    temperature: float
    generators: list[torch.Generator]

    def tokens(self, log_probs: Tensor, rows: Sequence[int]) -> Tensor:
        """Sample one token a row, by inverse transform on the device of `log_probs`.

        Token 0 is returned for a row with NaN.

        Args:
            log_probs: Shape (rows, vocabulary).
            rows: Index in the batch of each row.
        """
        uniform = torch.cat([torch.rand(1, generator=self.generators[row], dtype=torch.float64) for row in rows])
        shares = (log_probs.double() / self.temperature).softmax(-1).cumsum(-1)  # (rows, vocabulary), up to about 1
        drawn = torch.searchsorted(shares, uniform.to(shares.device)[:, None] * shares[:, -1:], right=True)[:, 0]
        return drawn.clamp(max=shares.shape[1] - 1) * shares[:, -1].isfinite()
