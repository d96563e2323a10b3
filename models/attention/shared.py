"""reflectune's attention implementation: sdpa, trees in training, and shared prefixes in inference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from reflectune.core.errors import UserError
from reflectune.models.attention.attention import attend, highest_matmul_precision, merge
from reflectune.models.attention.packed import packed_attention
from reflectune.models.attention.positions import TWO_WAY, inner_model
from reflectune.models.attention.recurrence import FULL, LINEAR, SLIDING
from reflectune.models.attention.tree_mask import tree_attention

IMPLEMENTATION = "reflectune_shared_prefix"
"""Name of this attention in transformers."""

COPIED = 80
"""Maximum shared tokens that a CPU copies to each row: up to here one kernel call is faster than two."""

KeysValues = list[tuple[Tensor, Tensor]]
"""Keys and values of each layer, of shape (rows, key heads, tokens, head size)."""


def share_prefixes(model: nn.Module) -> None:
    """Set this attention in a model's language model; without trees or prefixes its output is unchanged.

    Raises:
        UserError: The model's attention can't be replaced exactly.
    """
    network = inner_model(model)
    config = network.config.get_text_config()
    implementation = attention_of(config)
    if implementation not in ("sdpa", IMPLEMENTATION):
        reason = _WHY_NOT.get(implementation.split("|")[0], "no test shows that it can be replaced exactly")
        raise UserError(
            f"a shared prefix needs attn_implementation=sdpa, found {implementation}: {reason}; load the model with "
            "sdpa"
        )
    if problem := _why_not_shared(network, config):
        raise UserError(f"{type(network).__name__}: {problem}; use another model")
    AttentionInterface.register(IMPLEMENTATION, shared_attention)
    AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
    config._attn_implementation = IMPLEMENTATION


def _why_not_shared(network: Any, config: Any) -> str:
    """Return why branches of a model can't share a prefix exactly, "" if they can.

    Within `longest_sequence` tokens a sliding window is equal to full attention.
    """
    if not hasattr(network, "model") or not hasattr(network.config, "image_token_id"):
        return "its layers and its image token are not found where other models have them"  # as in Kosmos-2.5
    rope_index = getattr(network.model, "get_rope_index", None)
    if rope_index and "image_grid_thw" not in signature(rope_index).parameters:
        return "an image's positions depend on more than its grid"  # as in MiniCPM-V 4.7
    layer_types = set(getattr(config, "layer_types", None) or ())
    if unsupported := layer_types - {FULL, SLIDING, LINEAR}:
        return f"layers of type {unsupported.pop()} can't share a prefix exactly"
    has_types = "token_type_ids" in signature(network.model.forward).parameters
    is_unknown = has_types and network.config.model_type not in TWO_WAY
    if is_unknown or getattr(config, "use_bidirectional_attention", None):
        return "text tokens see later tokens too"  # as in PaliGemma and Gemma-4
    if getattr(config, "cross_attention_layers", None):
        return "some layers read the image at every token"  # as in Mllama
    if getattr(config, "num_kv_shared_layers", 0):
        return "some layers use the keys and values of other layers"
    if LINEAR in layer_types:
        from reflectune.models.attention.delta_net import fork_linear_attention  # slow to import

        return fork_linear_attention(network.model.language_model)
    return ""


def attention_of(config: PretrainedConfig) -> str:
    """Return the attention implementation of a model's config: `sdpa`, `eager`, … (private in transformers)."""
    return str(config._attn_implementation)


@dataclass(frozen=True)
class Shared:
    """Cached tokens of N rows, and the query rows that see them.

    Attributes:
        cache: Keys and values of N rows.
        bias: Padding mask of the scores, 0 or -inf: (N, 1, 1, tokens); None without padding.
        members: Query rows that see each of the N rows: (N, G), padded with any index. None if query row i sees row i.
        slots: Index of each query row in the flattened `members`, shape (query rows,).
        row: Index of the row that each query row sees, shape (query rows,).
    """

    cache: KeysValues
    bias: Tensor | None
    members: Tensor | None
    slots: Tensor
    row: Tensor

    @classmethod
    def of(cls, cache: KeysValues, real: Tensor, row: Tensor) -> Shared:
        """Group query rows by the row that they see.

        Args:
            cache: Keys and values of N rows.
            real: Bool of shape (N, tokens); False at padding.
            row: Index of the row that each query row sees, shape (query rows,).
        """
        bias = None
        if not bool(real.all()):
            bias = torch.zeros(real.shape, dtype=cache[0][0].dtype, device=real.device)
            bias = bias.masked_fill_(~real, -torch.inf)[:, None, None]
        count = len(real)
        if len(row) == count and bool((row == torch.arange(count, device=row.device)).all()):
            return cls(cache, bias, None, row, row)
        sizes = torch.bincount(row, minlength=count)
        width = int(sizes.max())
        order = row.argsort(stable=True)
        rank = torch.arange(len(row), device=row.device) - (sizes.cumsum(0) - sizes)[row[order]]
        slots = torch.empty_like(row)
        slots[order] = row[order] * width + rank
        members = torch.zeros(count * width, dtype=torch.long, device=row.device)
        members[slots] = torch.arange(len(row), device=row.device)
        return cls(cache, bias, members.view(count, width), slots, row)

    def on(self, device: torch.device) -> Shared:
        """Return a copy with its indices and mask on a device; each layer's keys and values are there already."""
        members, bias = (None if tensor is None else tensor.to(device) for tensor in (self.members, self.bias))
        return replace(self, bias=bias, members=members, slots=self.slots.to(device), row=self.row.to(device))

    def attend(self, query: Tensor, layer: int, scale: float) -> tuple[Tensor, Tensor]:
        """Attend from queries (rows, heads, T, size) to these tokens. Returns output and lse (rows, heads, T)."""
        keys, values = self.cache[layer]
        if self.members is None:
            return self._attend(query, keys, values, scale)
        _, heads, new, size = query.shape
        count, width = self.members.shape
        grouped = query[self.members].transpose(1, 2).reshape(count, heads, width * new, size)
        output, lse = self._attend(grouped, keys, values, scale)
        output = output.unflatten(2, (width, new)).transpose(1, 2).flatten(0, 1)[self.slots]
        return output, lse.unflatten(2, (width, new)).transpose(1, 2).flatten(0, 1)[self.slots]

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Fold the query heads that share a key head into the query dimension, so that each key is read once."""
        count, heads, new, _ = query.shape
        folded = query.reshape(count, keys.shape[1], -1, query.shape[3])
        output, lse = attend(folded, keys, values, scale=scale, bias=self.bias)
        return output.reshape(query.shape), lse.reshape(count, heads, new)


class SharedContext:
    """Cached tokens before the rows of a forward pass; passed to the model as `shared_context`.

    A row's own tokens are causal and need no mask: they are read at once, padded on the right, or one by one.

    Args:
        parts: Cached tokens, at least one part.
    """

    def __init__(self, parts: Sequence[Shared]) -> None:
        self._all_parts = tuple(parts)
        self._tokens = sum(part.cache[0][0].shape[2] for part in parts)
        self._parts: dict[torch.device, list[Shared]] = {}
        self._masks: dict[tuple[int, torch.device], Tensor] = {}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, layer: int, scale: float) -> Tensor:
        """Attend from queries (rows, heads, T, size) to the shared parts and, causally, to their own tokens."""
        if query.device.type == "cpu" and query.shape[2] > 1 and self._tokens <= COPIED:
            return self._attend_to_copies(query, key, value, layer, scale)
        self_attention = attend(query, key, value, scale=scale, causal=query.shape[2] > 1)
        output, _ = merge([self_attention, *(part.attend(query, layer, scale) for part in self._on(query.device))])
        return output

    def _on(self, device: torch.device) -> list[Shared]:
        """Return the parts for the layers on one device; a model's layers may be on several."""
        if device not in self._parts:
            self._parts[device] = [part.on(device) for part in self._all_parts]
        return self._parts[device]

    def _attend_to_copies(self, query: Tensor, key: Tensor, value: Tensor, layer: int, scale: float) -> Tensor:
        parts = self._on(query.device)
        copies = zip(*(part.cache[layer] for part in parts), strict=True)
        keys, values = (
            torch.cat([*(copy[part.row] for copy, part in zip(side, parts, strict=True)), own_tokens], 2)
            for side, own_tokens in zip(copies, (key, value), strict=True)
        )
        with highest_matmul_precision():
            return F.scaled_dot_product_attention(
                query, keys, values, attn_mask=self._mask(query), scale=scale, enable_gqa=keys.shape[1] < query.shape[1]
            )

    def _mask(self, query: Tensor) -> Tensor:
        """Return the mask added to scores: shape (rows or 1, 1, T, tokens seen + T)."""
        new = query.shape[2]
        if (key := (new, query.device)) not in self._masks:
            hidden = query.new_full((new, new), -torch.inf).triu(1)[None, None]
            seen = [
                query.new_zeros(1, 1, 1, part.cache[0][0].shape[2]) if part.bias is None else part.bias[part.row]
                for part in self._on(query.device)
            ]
            rows = max(len(mask) for mask in seen)
            parts = [mask.expand(rows, 1, new, -1) for mask in (*seen, hidden)]
            self._masks[key] = torch.cat(parts, -1)
        return self._masks[key]


def shared_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    shared_context: SharedContext | None = None,
    packed_mask: BlockMask | None = None,
    memory: list[Tensor] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute the attention of a layer, called by transformers: shape (rows, T, heads, size).

    `shared_context` arrives through the model's keyword arguments. An integer mask of shape (B, 1, 1, L) holds the
    segments of trees; see `tree_attention`. `packed_mask` and `memory` are those of `packed_attention`.
    """
    # under autocast the rotation returns float32
    query, key = query.to(value.dtype), key.to(value.dtype)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if packed_mask is not None:
        return packed_attention(query, key, value, packed_mask, scale, memory), None
    if shared_context is not None:
        layer: Any = module.layer_idx
        return shared_context.attend(query, key, value, layer, scale).transpose(1, 2), None
    if attention_mask is not None and attention_mask.dtype == torch.long and attention_mask.dim() == 4:
        return tree_attention(query, key, value, attention_mask, scale, dropout), None
    return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)


_WHY_NOT = {
    "eager": "it adds a bool mask to the scores instead of applying it, which gives wrong results without an error",
    "flash_attention_2": "it takes no mask and would let branches see one another",
    "flash_attention_3": "it takes no mask and would let branches see one another",
    "flex_attention": "it takes a block mask, not a tensor",
}
