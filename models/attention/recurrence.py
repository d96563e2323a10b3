"""States of a hybrid model's linear attention. A branch starts from a copy of its prefix's states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

LINEAR, FULL, SLIDING = "linear_attention", "full_attention", "sliding_attention"
"""Values of transformers' `layer_types`."""

States = tuple[Tensor, Tensor]
"""States of a layer after N rows: the last inputs of its convolution, and its recurrent state.

Their shapes are (N, channels, kernel size - 1), and (N, value heads, key size, value size) in float32.
"""

StatesByLayer = dict[int, States]


@dataclass
class Recurrence:
    """States before and after a forward pass; passed to the layers of linear attention as `attention_mask`.

    Attributes:
        real: Bool of shape (rows, new tokens), False at padding on the right; None without padding.
        before: States of earlier rows, by layer; empty at the beginning of a sequence.
        row: Index of the earlier row that each row continues, shape (rows,); None if row i continues row i.
        after: States after the last real token of each row, by layer; written by the forward pass.
    """

    real: Tensor | None
    before: Mapping[int, States]
    row: Tensor | None = None
    after: StatesByLayer = field(default_factory=dict)

    def initial_states(self, layer: int) -> States | None:
        """Return the states that each row starts from, None at the beginning of a sequence."""
        states = self.before.get(layer)
        if states is None or self.row is None:
            return states
        return select_states(states, self.row)


Generation = tuple[Tensor, Tensor | None]
"""Segments that are read together.

The first tensor holds the indices of their tokens, (segments, max tokens); an index after the last token is padding.
The second holds, for each segment, the index of the segment that it continues in the previous generation, (segments,);
None for the first generation.
"""


@dataclass
class PackedRecurrence:
    """States of the segments of a packed row; passed to the layers of linear attention as `attention_mask`.

    Attributes:
        generations: First the segments that continue no other segment of the row, then those that continue the first
            generation, and so on.
        order: Index of each segment of the row in the concatenated generations, shape (segments,).
        before: States that the first generation starts from, by layer; empty at the beginning of a sequence.
        after: States after each segment of the row, by layer; written by the forward pass.
    """

    generations: Sequence[Generation]
    order: Tensor
    before: Mapping[int, States] = field(default_factory=dict)
    after: StatesByLayer = field(default_factory=dict)


def select_states(states: States, index: Tensor) -> States:
    """Return a copy of some rows of a layer's states, on the layer's device."""
    inputs, state = states
    return inputs[index.to(inputs.device)], state[index.to(state.device)]


def concat_states(parts: Sequence[States]) -> States:
    """Concatenate states along their rows."""
    inputs, states = zip(*parts, strict=True)
    return torch.cat(inputs), torch.cat(states)


def is_hybrid(config: Any) -> bool:
    """Return True if some layers of a language model's config have linear attention."""
    return LINEAR in (getattr(config, "layer_types", None) or ())


def layers_per_cache(config: Any) -> float:
    """Return the ratio of all layers to those with a key-value cache: 4 in Qwen3.5, 1 without linear attention."""
    return len(config.layer_types) / max(1, config.layer_types.count(FULL)) if is_hybrid(config) else 1


def state_tokens(config: Any, dtype: torch.dtype) -> int:
    """Return how many tokens' keys and values take the bytes of one row's states; 0 without linear attention."""
    if not is_hybrid(config):
        return 0
    keys, values = (getattr(config, f"linear_num_{side}_heads") for side in ("key", "value"))
    key_size, value_size = config.linear_key_head_dim, config.linear_value_head_dim
    inputs = (2 * keys * key_size + values * value_size) * (config.linear_conv_kernel_dim - 1)
    states = config.layer_types.count(LINEAR) * (inputs * dtype.itemsize + values * key_size * value_size * 4)
    size = 2 * config.num_key_value_heads * config.head_dim * dtype.itemsize
    return int(-(-states // (size * max(1, config.layer_types.count(FULL)))))
