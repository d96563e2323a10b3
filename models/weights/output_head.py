"""Logits of chosen tokens in float32, next to a head in bfloat16.

A logit of 16 to 32 in bfloat16 has steps of 0.125: gates of different passages tie, and ranks change.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from peft.utils.other import TrainableTokensWrapper
from torch import Tensor, nn

from reflectune.core.devices import copied, on_device


def exact_logits(
    head: nn.Module, hidden: Tensor, logits: Tensor, token_ids: Sequence[int], *, cached: bool = False
) -> Tensor:
    """Return a head's logits in float32; those of some tokens are recomputed in float32 from the hidden states.

    Gradients are those of `logits`. A float32 head, or one with offloaded weights, is not recomputed.

    Args:
        head: The output head, perhaps with trainable rows of new tokens.
        hidden: Its input, shape (..., width).
        logits: Its output, shape (..., vocabulary).
        token_ids: Ids of the tokens.
        cached: Keep the ids on the device, for calls with the same ones.
    """
    new_rows = head.token_adapter if isinstance(head, TrainableTokensWrapper) else None
    layer: Any = new_rows.get_base_layer() if new_rows else head
    if logits.dtype == torch.float32 or not token_ids or layer.weight.is_meta:
        return logits.float()
    put = on_device if cached else copied
    ids = put(tuple(token_ids), layer.weight.device)
    with torch.no_grad(), torch.autocast(logits.device.type, enabled=False):
        bias = None if layer.bias is None else layer.bias[ids].float()
        exact = F.linear(hidden.to(ids.device, torch.float32), _rows(layer.weight, new_rows, ids, token_ids), bias)
    whole, ids = logits.float(), put(tuple(token_ids), logits.device)
    return whole.index_add_(-1, ids, exact.to(whole.device) - whole.detach()[..., ids])


def read_in_float32(head: nn.Module, token_ids: Sequence[int]) -> None:
    """Let a head return `exact_logits` of some tokens."""
    head.register_forward_hook(functools.partial(_exact, token_ids=token_ids))


def _exact(head: nn.Module, inputs: tuple[Tensor], logits: Tensor, token_ids: Sequence[int]) -> Tensor:
    return exact_logits(head, inputs[0], logits, token_ids, cached=True)


def _rows(matrix: Tensor, new_rows: Any, ids: Tensor, token_ids: Sequence[int]) -> Tensor:
    """Return some rows of a matrix in float32; those that an adapter trains replace the matrix's own."""
    rows = matrix[ids].float()  # (tokens, width)
    if new_rows is None or new_rows.disable_adapters or new_rows.merged:
        return rows
    for name in new_rows.active_adapters:
        index_of = {token: index for index, token in enumerate(new_rows.token_indices[name])}
        trained = new_rows.trainable_tokens_delta[name].to(rows.device)
        for row, token in enumerate(token_ids):
            if token in index_of:
                rows[row] = trained[index_of[token]].float()
    return rows
