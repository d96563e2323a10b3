"""Attention with its softmax denominator: what parts of a context contribute can be computed apart and merged.

If a query attends to parts of its context one by one, each giving an output and the log of its softmax denominator
(the log-sum-exp of its scores), then the outputs weighted by the denominators are the attention to the whole. The same
denominator of the whole, given to the backward pass of a part, gives that part's share of the gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_CPU_KERNEL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_CPU_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def attend(
    query: Tensor, keys: Tensor, values: Tensor, *, scale: float, bias: Tensor | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Attention of queries to one part of their context. Not differentiable by itself; see `attend_backward`.

    Args:
        query: Of shape (rows, heads, T, size).
        keys: Of shape (rows, key heads, S, size); key heads divide heads, as in grouped-query attention.
        values: The same.
        scale: What scores are multiplied by.
        bias: Added to scores, broadcastable to (rows, 1, T, S). Each query must see at least one key.
        causal: Whether query i sees keys 0 … i alone; then T is S and there is no bias.

    Returns:
        The output, of `query`'s shape, and the log-sum-exp of the scores, float32 of shape (rows, heads, T).
    """
    if query.device.type == "cpu":
        mask = None if bias is None else bias.expand(query.shape[0], 1, query.shape[2], keys.shape[2])
        output, lse = _CPU_KERNEL(query, keys, values, 0.0, causal, attn_mask=mask, scale=scale)
        return output, lse.float()
    return _attend_plainly(query, keys, values, scale, bias, causal)


def attend_backward(
    grad: Tensor,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    output: Tensor,
    lse: Tensor,
    *,
    scale: float,
    bias: Tensor | None = None,
    causal: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, keys and values through one part of the context, on a CPU.

    Args:
        grad: Of the output of the attention to the *whole* context.
        query: As in `attend`; keys, values, scale, bias and causal too.
        keys: See `query`.
        values: See `query`.
        output: The attention to the whole context.
        lse: The log-sum-exp of the scores of the whole context; +inf for queries that don't count.
        scale: See `query`.
        bias: See `query`.
        causal: See `query`.
    """
    mask = None if bias is None else bias.expand(query.shape[0], 1, query.shape[2], keys.shape[2])
    heads, key_heads = query.shape[1], keys.shape[1]
    groups = heads // key_heads
    wide_keys, wide_values = (
        (tensor.repeat_interleave(groups, 1) if groups > 1 else tensor) for tensor in (keys, values)
    )
    d_query, d_keys, d_values = _CPU_BACKWARD(
        grad, query, wide_keys, wide_values, output, lse, 0.0, causal, attn_mask=mask, scale=scale
    )
    if groups > 1:
        d_keys, d_values = (tensor.unflatten(1, (key_heads, groups)).sum(2) for tensor in (d_keys, d_values))
    return d_query, d_keys, d_values


def merge(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The attention to a whole context from that to its parts, and the log-sum-exp of the whole.

    Args:
        parts: Pairs as `attend` returns them, for the same queries and disjoint keys.
    """
    if len(parts) == 1:
        return parts[0]
    whole = torch.logsumexp(torch.stack([lse for _, lse in parts]), 0)
    output = sum(part * (lse - whole).exp()[..., None].to(part.dtype) for part, lse in parts)
    assert isinstance(output, Tensor)
    return output, whole


def _attend_plainly(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, bias: Tensor | None, causal: bool
) -> tuple[Tensor, Tensor]:
    """The equation itself, for devices without a kernel that returns denominators; scores are kept in float32."""
    rows, heads, new, size = query.shape
    grouped = query.reshape(rows, keys.shape[1], -1, new, size)  # (rows, key heads, group, T, size)
    scores = (grouped.float() @ keys[:, :, None].float().transpose(-1, -2)) * scale
    if bias is not None:
        scores = scores + bias[:, :, None].float()
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores[0, 0, 0], dtype=torch.bool).triu(1), float("-inf"))
    lse = scores.logsumexp(-1)
    output = (scores - lse[..., None]).exp().to(values.dtype) @ values[:, :, None]
    return output.reshape(rows, heads, new, size), lse.reshape(rows, heads, new)
