"""The settings of `estimate.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from reflectune.train.config import SftConfig

ARCHITECTURE = "architecture.json"
"""Beside a recipe: what of its model's config decides its shapes."""


def _help(text: str) -> dict[str, str]:
    return {"help": text}


@dataclass
class EstimateConfig(SftConfig):
    """A run's settings, and the machine that it is estimated for."""

    processes: int = field(default=1, metadata=_help("devices that train together"))
    sharding: Literal["", "zero2", "zero3", "fsdp"] = field(default="", metadata=_help("what divides the model"))
    offload: bool = field(default=False, metadata=_help("keep weights and optimiser states in the CPU's memory"))
    device_gib: float | None = field(default=None, metadata=_help("memory of a device, to say whether it fits"))
    image_tokens: int | None = field(
        default=None,
        metadata=_help("tokens of a picture; if unset LLaVA's own number, or of Qwen `max_pixels` (1 MP if that is 0)"),
    )
    branches: int | None = field(
        default=None, metadata=_help("passages or prompts of a long question; what the recipes' data has if unset")
    )
    branch_tokens: int = field(default=250, metadata=_help("tokens of one, with what is asked and answered"))
    branch_supervised: int = field(default=20, metadata=_help("tokens of one that are supervised"))

    def problems(self) -> list[str]:
        """What is wrong with the values; data and model need not be there."""
        issues = self.value_problems()
        for name in ("processes", "device_gib", "image_tokens", "branches", "branch_tokens", "branch_supervised"):
            if (value := getattr(self, name)) is not None and value <= 0:
                issues.append(f"`{name}` must be above 0, found {value}")
        return issues
