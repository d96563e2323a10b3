"""Position ids of a prefix with images: one index per token, or three under M-RoPE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reflectune.models.attention.recurrence import SLIDING

TWO_WAY = frozenset({"gemma3"})
"""Model types whose image tokens see their whole image, in every layer."""


def inner_model(model: Any) -> Any:
    """Return the transformers model inside any wrappers (DDP, PEFT)."""
    while hasattr(model, "module"):
        model = model.module
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def longest_sequence(model: Any, limit: int | None = None) -> int:
    """Return the maximum length of a sequence: the smallest of the model's context, its sliding window, and `limit`."""
    config: Any = inner_model(model).config.get_text_config()
    longest: int = config.max_position_embeddings
    return min(longest, sliding_window(config) or longest, limit or longest)


def sliding_window(config: Any) -> int:
    """Return the sliding window of a language model in tokens; 0 if every layer has full attention."""
    kinds = getattr(config, "layer_types", None)
    return (getattr(config, "sliding_window", None) or 0) if kinds is None or SLIDING in kinds else 0


def image_numbers(is_image: Tensor) -> Tensor:
    """Number the images of each row from 0, at each of their tokens; -1 for other tokens.

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
        is_two_way: True if an image's tokens see their whole image.
        types_key: Name of the model's argument that marks image tokens; "" if it has none.
        image_token_id: Id of image tokens.
    """

    def __init__(self, model: nn.Module) -> None:
        network = inner_model(model)
        self._get_rope_index = getattr(network.model, "get_rope_index", None)
        self.is_3d = self._get_rope_index is not None
        self.is_two_way = network.config.model_type in TWO_WAY
        self.types_key = ""
        if self.is_3d:
            self.types_key = "mm_token_type_ids"
        elif self.is_two_way:
            self.types_key = "token_type_ids"
        self.image_token_id: int = network.config.image_token_id
        self._blocks: dict[tuple[int, ...], tuple[np.ndarray, int]] = {}

    def types(self, ids: Tensor) -> dict[str, Tensor]:
        """Return the model's argument `types_key`, 1 at image tokens, else 0; {} if the model has no such argument.

        Args:
            ids: Token ids of any shape, which the argument has too.
        """
        return {self.types_key: (ids == self.image_token_id).int()} if self.types_key else {}

    def of_prefix(self, ids: np.ndarray, vision: Mapping[str, Tensor]) -> np.ndarray:
        """Return the position ids of a whole sequence.

        Args:
            ids: Shape (P,).
            vision: The sequence's vision tensors; M-RoPE reads `image_grid_thw`, of shape (images, 3).

        Returns:
            Shape (1, P), or (3, P) under M-RoPE. A continuation starts at the last column plus one.
        """
        if not self.is_3d:
            return np.arange(len(ids))[None]
        positions = np.repeat(np.arange(len(ids))[None], 3, axis=0)
        image_tokens = np.flatnonzero(ids == self.image_token_id)
        start = 0
        for grid in vision["image_grid_thw"].tolist() if "image_grid_thw" in vision else ():
            block, advance = self._block(tuple(grid))
            count = block.shape[1]
            first, end = image_tokens[start], image_tokens[start] + count
            base = positions[0, first]
            positions[:, first:end] = base + block
            if end < len(ids):
                positions[:, end:] += base + advance - positions[0, end]
            start += count
        return positions

    def _block(self, grid: tuple[int, ...]) -> tuple[np.ndarray, int]:
        """Return the positions of an image's tokens relative to its start, (3, n), and the advance after it."""
        if grid not in self._blocks:
            assert self._get_rope_index is not None
            count = self._token_count(grid)
            ids = torch.tensor([[self.image_token_id] * count + [0 if self.image_token_id else 1]])
            types = (ids == self.image_token_id).int()
            positions, _ = self._get_rope_index(ids, mm_token_type_ids=types, image_grid_thw=torch.tensor([grid]))
            self._blocks[grid] = positions[:, 0, :count].numpy(), int(positions[0, 0, count])
        return self._blocks[grid]

    def _token_count(self, grid: tuple[int, ...]) -> int:
        merge = self._get_rope_index.__self__.config.vision_config.spatial_merge_size  # type: ignore[union-attr]
        return int(np.prod(grid)) // merge**2
