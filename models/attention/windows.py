"""Attention of Qwen's vision towers: images and windows of equal length are read as one batch.

transformers (5.23) calls sdpa once per image or window, and synchronizes the device in each layer to read their
lengths: 2,244 calls and 100 waits for an image of 1,280 tokens in Qwen2.5-VL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary
from transformers import AttentionInterface

from reflectune.models.attention.positions import inner_model

IMPLEMENTATION = "reflectune_windows_flash"
"""Name of this attention in transformers, which passes packed rows and `cu_seq_lens` only to names with `flash`."""


@dataclass(frozen=True)
class _Windows:
    """Windows of a row, grouped by length.

    Attributes:
        groups: Length and number of the windows of each group.
        order: Indices of the tokens, group by group, shape (tokens,); None if the row is in this order already.
        inverse: Inverse permutation of `order`.
    """

    groups: tuple[tuple[int, int], ...]
    order: Tensor | None = None
    inverse: Tensor | None = None

    @classmethod
    def of(cls, borders: Tensor) -> _Windows:
        """Group windows between borders of shape (windows + 1,)."""
        ends = borders.cpu()
        lengths = ends.diff()
        groups = tuple(zip(*(part.tolist() for part in lengths.unique(return_counts=True)), strict=True))
        if len(groups) == 1:
            return cls(groups)
        by_length = lengths.argsort(stable=True).tolist()
        order = torch.cat([torch.arange(int(ends[i]), int(ends[i + 1])) for i in by_length])
        return cls(groups, order.to(borders.device), order.argsort().to(borders.device))


_KNOWN: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""Windows by the tensor of their borders, which all layers of a forward pass share."""


def read_windows_at_once(model: nn.Module) -> None:
    """Set this attention in Qwen's vision tower; other models are left unchanged."""
    tower: Any = getattr(inner_model(model).model, "visual", None)
    if tower is not None and tower.config._attn_implementation == "sdpa":
        AttentionInterface.register(IMPLEMENTATION, window_attention)
        tower.config._attn_implementation = IMPLEMENTATION


def window_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    cu_seq_lens_q: Tensor,
    **_: Any,
) -> tuple[Tensor, None]:
    """Compute the attention of a layer, called by transformers: shape (1, tokens, heads, size).

    Args:
        query: Shape (1, heads, tokens, size); key and value too.
        scaling: Factor of the scores.
        cu_seq_lens_q: Borders of the windows, shape (windows + 1,). A token sees its own window.
    """
    if cu_seq_lens_q not in _KNOWN:
        _KNOWN[cu_seq_lens_q] = _Windows.of(cu_seq_lens_q)
    windows: _Windows = _KNOWN[cu_seq_lens_q]
    rows = [tensor[0] if windows.order is None else tensor[0, :, windows.order] for tensor in (query, key, value)]
    sizes = [length * count for length, count in windows.groups]
    outputs = []
    for (length, count), *parts in zip(windows.groups, *(row.split(sizes, 1) for row in rows), strict=True):
        # (windows, heads, length, size)
        queries, keys, values = (part.unflatten(1, (count, length)).transpose(0, 1) for part in parts)
        attended = F.scaled_dot_product_attention(queries, keys, values, scale=scaling)
        outputs.append(attended.transpose(1, 2).flatten(0, 1))
    output = torch.cat(outputs)
    return (output if windows.inverse is None else output[windows.inverse])[None], None
