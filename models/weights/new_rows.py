"""Trainable rows of new tokens next to their frozen matrix, without PEFT's copy of the matrix in every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from peft.tuners.trainable_tokens import TrainableTokensLayer
from torch import Tensor, nn
from torch.nn import functional as F


class NewRows(TrainableTokensLayer):
    """PEFT's trainable rows of an embedding or a head, applied in place of the matrix's own rows.

    PEFT writes the rows into a copy of the matrix before each product, and the backward pass computes the gradient of
    the whole copy. Both cost as much memory as the matrix, and the latter as much time as the product itself: with
    Qwen2-VL-7B's 152,064 rows, 1.1 GB each in half precision. Here the frozen matrix is used unchanged: the rows
    replace looked-up embeddings, or the logits of a head. Results are equal.
    """

    def forward_adapters(self, x: Tensor, active_adapters: Sequence[str], *args: Any, **kwargs: Any) -> Tensor:
        """Token ids to vectors, or vectors to logits.

        Args:
            x: Token ids of any shape for an embedding; vectors, shape (..., width), for a head.
            active_adapters: Whose rows are read.
            *args: As the layer below takes them.
            **kwargs: As the layer below takes them.
        """
        layer = self.get_base_layer()
        beside = isinstance(layer, nn.Linear) or (isinstance(layer, nn.Embedding) and layer.max_norm is None)
        if self.disable_adapters or self.merged or not active_adapters or not beside:
            whole: Tensor = super().forward_adapters(x, active_adapters, *args, **kwargs)
            return whole
        self._check_overlapping_tokens(list(active_adapters))
        result: Tensor = layer(x, *args, **kwargs)
        for name in active_adapters:
            ids = torch.tensor(self.token_indices[name], device=x.device)
            rows = self.trainable_tokens_delta[name].to(x.device)
            if isinstance(layer, nn.Linear):
                bias = None if layer.bias is None else layer.bias[ids]
                logits = F.linear(x, rows.to(layer.weight.dtype), bias)
                result.index_copy_(-1, ids, logits.to(result.dtype))
            else:
                is_new = x[..., None] == ids  # (..., new tokens)
                vectors = F.embedding(is_new.int().argmax(-1), rows).to(result.dtype)  # gradients add up in float32
                scale = self._get_embed_scale()
                vectors = vectors if scale is None else vectors * scale.to(vectors.dtype)
                result = torch.where(is_new.any(-1, keepdim=True), vectors, result)
        return result


def read_beside(model: nn.Module) -> None:
    """Apply all trainable rows of a model with adapters without copies of their matrices. Changes it in place."""
    for layer in model.modules():
        if type(layer) is TrainableTokensLayer:
            layer.__class__ = NewRows
