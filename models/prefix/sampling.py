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
    """Sample for the rows of one batch, on the CPU, each from its own generator."""

    temperature: float
    generators: list[torch.Generator]

    def tokens(self, log_probs: Tensor, rows: Sequence[int]) -> Tensor:
        """Sample one token a row; token 0 for a row whose log-probabilities are not all finite.

        Args:
            log_probs: Shape (rows, vocabulary).
            rows: Index in the batch of each row.
        """
        weights = (log_probs.float().cpu() / self.temperature).softmax(-1)  # (rows, vocabulary)
        drawn = [
            int(torch.multinomial(probs, 1, generator=self.generators[row])) if bool(probs.isfinite().all()) else 0
            for row, probs in zip(rows, weights, strict=True)
        ]
        return torch.tensor(drawn, device=log_probs.device)
