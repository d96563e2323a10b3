"""Loading and checking of adapters, and trainable rows of new tokens without PEFT's copy of the matrix."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict
from peft.tuners.trainable_tokens import TrainableTokensLayer
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from reflectune.core.devices import on_device
from reflectune.core.errors import UserError
from reflectune.core.weights import UNLOADABLE, check_shapes, first_few

ADAPTER_WEIGHTS = "adapter_model.safetensors"
_FIX = "copy the checkpoint again, or train it again"


def load_adapter(network: Any, folder: Path, *, is_trainable: bool = False) -> PeftModel:
    """Load an adapter onto the model that it was trained on.

    Args:
        network: The base model, with the scheme's tokens. Changed in place.
        folder: Checkpoint of the adapter.
        is_trainable: Continue to train the adapter.

    Raises:
        UserError: Its file is damaged, or a tensor is missing, unknown, not finite or of a different shape.
    """
    state = read_adapter(folder)
    try:
        with warnings.catch_warnings():  # checked below
            warnings.filterwarnings("ignore", message="Found missing adapter keys|Some weights of")
            adapted = PeftModel.from_pretrained(
                network, folder, is_trainable=is_trainable, ignore_mismatched_sizes=True
            )
    except KeyError as error:  # a matrix's new rows
        raise UserError(f"the adapter {folder} lacks {error.args[0]}; {_FIX}") from error
    except UNLOADABLE as error:
        # PEFT uses most values of adapter_config.json without checking them
        raise UserError(f"cannot load the adapter {folder}: {' '.join(str(error).split())[:400]}") from error
    check_adapter(adapted, state, folder)
    use_new_token_rows(adapted)
    return adapted


def read_adapter(folder: Path) -> dict[str, Tensor]:
    """Return an adapter's tensors by name, as its file has them.

    Raises:
        UserError: The file is missing or damaged, or holds NaN or infinite values.
    """
    path = folder / ADAPTER_WEIGHTS
    try:
        state = load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        problem = "is missing" if isinstance(error, FileNotFoundError) else f"is damaged ({error})"
        raise UserError(f"the adapter's {path} {problem}; {_FIX}") from error
    if bad := [name for name, tensor in state.items() if not bool(torch.isfinite(tensor).all())]:
        raise UserError(
            f"{path} has NaN or infinite values in {len(bad)} of its weights, e.g. {first_few(bad)}; {_FIX}"
        )
    return state


def check_adapter(adapted: PeftModel, state: dict[str, Tensor], folder: Path) -> None:
    """Check that an adapter's tensors are exactly those that the model expects.

    Raises:
        UserError: They differ. The message names the first ones and their number.
    """
    expected = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    check_shapes(f"the adapter {folder}", state, expected, fix=_FIX)


class NewTokenRows(TrainableTokensLayer):
    """PEFT's trainable rows of an embedding or a head, applied in place of the matrix's own rows.

    PEFT writes the rows into a copy of the matrix before each product, and the backward pass computes the gradient of
    the whole copy. Both cost as much memory as the matrix, and the latter as much time as the product itself: with
    Qwen2-VL-7B's 152,064 rows, 1.1 GB each in half precision. Here the frozen matrix is used unchanged: the rows
    replace looked-up embeddings, or the logits of a head. Results are equal.
    """

    def forward_adapters(self, x: Tensor, active_adapters: Sequence[str], *args: Any, **kwargs: Any) -> Tensor:
        """Return token ids to vectors, or vectors to logits.

        Args:
            x: Token ids of any shape for an embedding; vectors, shape (..., width), for a head.
            active_adapters: Names of the adapters to apply.
            *args: As the layer below takes them.
            **kwargs: As the layer below takes them.
        """
        layer = self.get_base_layer()
        is_supported = isinstance(layer, nn.Linear) or (isinstance(layer, nn.Embedding) and layer.max_norm is None)
        if self.disable_adapters or self.merged or not active_adapters or not is_supported:
            whole: Tensor = super().forward_adapters(x, active_adapters, *args, **kwargs)
            return whole
        self._check_overlapping_tokens(list(active_adapters))
        result: Tensor = layer(x, *args, **kwargs)
        for name in active_adapters:
            ids = on_device(tuple(self.token_indices[name]), x.device)
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


def use_new_token_rows(model: nn.Module) -> None:
    """Replace PEFT's layers of trainable rows in a model with `NewTokenRows`, in place."""
    for layer in model.modules():
        if type(layer) is TrainableTokensLayer:
            layer.__class__ = NewTokenRows
