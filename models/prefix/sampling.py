"""Drawing tokens with a seed of each row's own, so that what is drawn doesn't depend on a row's company."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn.

    Attributes:
        temperature: What the logits are divided by; above 0.
        seeds: One per row, each below 2 ** 63.
    """

    temperature: float
    seeds: Sequence[int]

    def __post_init__(self) -> None:
        """Refuse a temperature that nothing can be drawn with; ValueError."""
        if not self.temperature > 0:
            raise ValueError(f"temperature must be above 0, found {self.temperature}")

    def of(self, rows: Sequence[int]) -> Draw:
        """What draws for some of the rows."""
        return Draw(self.temperature, [torch.Generator().manual_seed(self.seeds[row]) for row in rows])


@dataclass(frozen=True)
class Draw:
    """Draws for the rows of one batch, on the CPU, each from its own generator."""

    temperature: float
    generators: list[torch.Generator]

    def tokens(self, log_probs: Tensor, rows: Sequence[int]) -> Tensor:
        """Draw one token per row; token 0 for a row whose log-probabilities are not all finite.

        Args:
            log_probs: Of shape (rows, vocabulary).
            rows: Which row of the batch each of them is.
        """
        weights = (log_probs.float().cpu() / self.temperature).softmax(-1)  # (rows, vocabulary)
        drawn = [
            int(torch.multinomial(probs, 1, generator=self.generators[row])) if bool(probs.isfinite().all()) else 0
            for row, probs in zip(rows, weights, strict=True)
        ]
        return torch.tensor(drawn, device=log_probs.device)
