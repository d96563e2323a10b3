"""States of a hybrid model's linear attention, which a branch copies where it forks from its prefix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

LINEAR, FULL, SLIDING = "linear_attention", "full_attention", "sliding_attention"
"""Types of a model's layers, by their names in transformers."""

States = tuple[Tensor, Tensor]
"""States of a layer after N rows.

The last inputs of its convolution, (N, channels, kernel size - 1), and its recurrent state, (N, value heads, key size,
value size) in float32.
"""

StatesByLayer = dict[int, States]


@dataclass
class Recurrence:
    """States of a pass's rows; passed to the layers of linear attention as `attention_mask`.

    Attributes:
        real: Bool of shape (rows, new tokens), False at padding on the right; None without padding.
        before: States after earlier rows, by layer; none at the beginning of a sequence.
        row: Index of the earlier row that each row continues, shape (rows,); None if row i continues row i.
        after: States after the last real token of each row, by layer; written by the pass.
    """

    real: Tensor | None
    before: Mapping[int, States]
    row: Tensor | None = None
    after: StatesByLayer = field(default_factory=dict)

    def of(self, layer: int) -> States | None:
        """Return a copy of the states that each row begins with, None at the beginning of a sequence."""
        states = self.before.get(layer)
        if states is None or self.row is None:
            return states
        return take_states(states, self.row)


Generation = tuple[Tensor, Tensor | None]
"""Segments that are read together.

The places of their tokens among all tokens, (segments, most tokens), where a place after the last is padding; and the
index of the segment of the generation before that each continues, (segments,), None for the first generation.
"""


@dataclass
class PackedRecurrence:
    """States of the segments of a packed row; passed to the layers of linear attention as `attention_mask`.

    Attributes:
        generations: The segments: those that continue none of the row, then those that continue these, and so on.
        order: Index of each segment of the row among those of all generations, shape (segments,).
        before: States that the first generation begins with, by layer; none at the beginning of a sequence.
        after: States after each segment of the row, by layer; written by the pass.
    """

    generations: Sequence[Generation]
    order: Tensor
    before: Mapping[int, States] = field(default_factory=dict)
    after: StatesByLayer = field(default_factory=dict)


def take_states(states: States, index: Tensor) -> States:
    """Return a copy of some rows of a layer's states, on its device."""
    inputs, state = states
    return inputs[index.to(inputs.device)], state[index.to(state.device)]


def joined_states(parts: Sequence[States]) -> States:
    """Return the rows of several states, one after another."""
    inputs, states = zip(*parts, strict=True)
    return torch.cat(inputs), torch.cat(states)


def is_hybrid(config: Any) -> bool:
    """Return True if some layers of a language model's config have linear attention."""
    return LINEAR in (getattr(config, "layer_types", None) or ())


def layers_per_cache(config: Any) -> float:
    """Return the number of layers for each one with keys and values: 4 in Qwen3.5, 1 without linear attention."""
    return len(config.layer_types) / max(1, config.layer_types.count(FULL)) if is_hybrid(config) else 1


def state_tokens(config: Any, dtype: torch.dtype) -> int:
    """Return the number of tokens whose keys and values take as many bytes as the states of one row; 0 without any."""
    if not is_hybrid(config):
        return 0
    keys, values = (getattr(config, f"linear_num_{side}_heads") for side in ("key", "value"))
    key_size, value_size = config.linear_key_head_dim, config.linear_value_head_dim
    inputs = (2 * keys * key_size + values * value_size) * (config.linear_conv_kernel_dim - 1)
    states = config.layer_types.count(LINEAR) * (inputs * dtype.itemsize + values * key_size * value_size * 4)
    size = 2 * config.num_key_value_heads * config.head_dim * dtype.itemsize
    return int(-(-states // (size * max(1, config.layer_types.count(FULL)))))
