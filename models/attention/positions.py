"""Position ids of a prefix with an image, 1-D or the three indices of M-RoPE, and the places of its images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reflectune.models.attention.recurrence import SLIDING

TWO_WAY = frozenset({"gemma3"})
"""Types of models whose images' tokens see all of their image, in every layer."""


def inner_model(model: Any) -> Any:
    """Return the transformers model inside any wrappers (DDP, PEFT)."""
    while hasattr(model, "module"):
        model = model.module
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def longest_sequence(model: Any, most: int | None = None) -> int:
    """Return the maximum length of a sequence: the model's context, or a shorter sliding window.

    Args:
        most: A further bound.
    """
    config: Any = inner_model(model).config.get_text_config()
    longest: int = config.max_position_embeddings
    return min(longest, sliding_window(config) or longest, most or longest)


def sliding_window(config: Any) -> int:
    """Return the tokens that a layer of a language model sees, its own included; 0 if every layer sees all."""
    kinds = getattr(config, "layer_types", None)
    return (getattr(config, "sliding_window", None) or 0) if kinds is None or SLIDING in kinds else 0


def image_numbers(is_image: Tensor) -> Tensor:
    """Number the runs of images' tokens in each row, from 0; -1 for other tokens.

    Args:
        is_image: Bool of shape (rows, tokens).
    """
    begins = is_image & ~F.pad(is_image, (1, -1))
    return torch.where(is_image, begins.cumsum(1) - 1, -1)


class Positions:
    """Compute position ids for one model; blocks of image positions are cached by the image's grid.

    Args:
        model: A multimodal model, possibly wrapped. Its inner model has `get_rope_index` if it uses M-RoPE.

    Attributes:
        is_3d: True under M-RoPE.
        is_two_way: True if an image's tokens see all of it.
        types_key: Argument by which the model learns which tokens are an image's; "" if it doesn't need to.
        image_token_id: Id of an image's tokens.
    """

    def __init__(self, model: nn.Module) -> None:
        whole = inner_model(model)
        self._get_rope_index = getattr(whole.model, "get_rope_index", None)
        self.is_3d = self._get_rope_index is not None
        self.is_two_way = whole.config.model_type in TWO_WAY
        self.types_key = "mm_token_type_ids" if self.is_3d else "token_type_ids" if self.is_two_way else ""
        self.image_token_id: int = whole.config.image_token_id
        self._blocks: dict[tuple[int, ...], tuple[np.ndarray, int]] = {}

    def types(self, ids: Tensor) -> dict[str, Tensor]:
        """Return the model's argument `types_key`, or no argument if it needs none.

        Args:
            ids: Token ids of any shape. The argument has their shape: 1 for an image's token, else 0.
        """
        return {self.types_key: (ids == self.image_token_id).int()} if self.types_key else {}

    def of_prefix(self, ids: np.ndarray, vision: Mapping[str, Tensor]) -> np.ndarray:
        """Return the positions of a sequence from its beginning.

        Args:
            ids: Shape (P,).
            vision: The sequence's vision tensors; M-RoPE reads `image_grid_thw`, of shape (images, 3).

        Returns:
            Shape (1, P), or (3, P) for M-RoPE. A continuation starts at the last column plus one.
        """
        if not self.is_3d:
            return np.arange(len(ids))[None]
        positions = np.repeat(np.arange(len(ids))[None], 3, axis=0)
        places = np.flatnonzero(ids == self.image_token_id)
        start = 0
        for grid in vision["image_grid_thw"].tolist() if "image_grid_thw" in vision else ():
            block, advance = self._block(tuple(grid))
            count = block.shape[1]
            first, end = places[start], places[start] + count
            base = positions[0, first]
            positions[:, first:end] = base + block
            positions[:, end:] += base + advance - positions[0, end] if end < len(ids) else 0
            start += count
        return positions

    def _block(self, grid: tuple[int, ...]) -> tuple[np.ndarray, int]:
        """Return the positions of an image's tokens relative to its start, (3, n), and the advance after it."""
        if grid not in self._blocks:
            assert self._get_rope_index is not None
            count = self._token_count(grid)
            ids = torch.tensor([[self.image_token_id] * count + [0 if self.image_token_id else 1]])
            kinds = (ids == self.image_token_id).int()
            made, _ = self._get_rope_index(ids, mm_token_type_ids=kinds, image_grid_thw=torch.tensor([grid]))
            self._blocks[grid] = made[:, 0, :count].numpy(), int(made[0, 0, count])
        return self._blocks[grid]

    def _token_count(self, grid: tuple[int, ...]) -> int:
        merge = self._get_rope_index.__self__.config.vision_config.spatial_merge_size  # type: ignore[union-attr]
        return int(np.prod(grid)) // merge**2
