"""LLaVA's projector: reads a published one, or makes one whose tokens begin at the scale of the language model's."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from reflectune.core.errors import UserError, one_line

PROJECTOR: Final[Mapping[str, str]] = {
    "model.mm_projector.0.weight": "linear_1.weight",
    "model.mm_projector.0.bias": "linear_1.bias",
    "model.mm_projector.2.weight": "linear_2.weight",
    "model.mm_projector.2.bias": "linear_2.bias",
}
"""Names in LLaVA's published file, and in transformers and in ours. (1 is the GELU between them.)"""
_SEED: Final = 0
"""Seed of an untrained projector's random directions."""


def read_projector(path: Path) -> dict[str, Tensor]:
    """Return the projector's weights under transformers' names. Nothing but tensors is unpickled.

    Args:
        path: LLaVA's `mm_projector.bin`, or safetensors of either names.

    Raises:
        UserError: The file holds something else, or another projector.
    """
    held = _read(path)
    names = set(held) if isinstance(held, dict) else {type(held).__name__}
    if path.suffix == ".safetensors" and names == set(PROJECTOR.values()):
        held = {name: held[PROJECTOR[name]] for name in PROJECTOR}
    elif names != set(PROJECTOR):
        raise UserError(
            f"{path} should hold {', '.join(PROJECTOR)} (mlp2x_gelu); found {', '.join(sorted(map(str, names)))}"
        )
    odd = [name for name, value in held.items() if not isinstance(value, Tensor) or not value.isfinite().all()]
    if odd:
        raise UserError(
            f"{path}: {', '.join(odd)} should be tensors of finite numbers; download mm_projector.bin again"
        )
    return {PROJECTOR[name]: value for name, value in held.items()}


def _read(path: Path) -> Any:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, SafetensorError) as error:
        reason = one_line(error, 200)
        raise UserError(
            f"{path} is not a file of weights only, and nothing else is unpickled: {reason}; download it again"
        ) from error


@torch.no_grad()
def untrained_projector(vision: PreTrainedModel, embeddings: Tensor) -> dict[str, Tensor]:
    """Return a projector to start stage 1 from, scaled by the tower's features of a few images.

    CLIP's features have a few dimensions that are many times larger than the others, and a small language model's
    embeddings are small. The first layer standardizes each dimension of the features (folded into its weights); the
    second is scaled so that projected tokens have the mean and root mean square of the token embeddings.

    Args:
        vision: The tower; its last but one layer is read, without the class token.
        embeddings: Token embeddings of the language model, shape (tokens, width).
    """
    features = _features(vision)  # (patches, seen)
    embeddings = embeddings.detach().float()
    generator = torch.Generator().manual_seed(_SEED)
    seen, width = features.shape[1], embeddings.shape[1]
    first = torch.randn(width, seen, generator=generator) / seen**0.5
    second = torch.randn(width, width, generator=generator) / width**0.5
    mean, std = features.mean(0), features.std(0)
    std = std.clamp(min=float(std.median()) / 10)
    weights = {"linear_1.weight": first / std, "linear_1.bias": -(first / std) @ mean}
    hidden = torch.nn.functional.gelu(torch.nn.functional.linear(features, *weights.values()))
    projected = torch.nn.functional.linear(hidden, second)
    centre = embeddings.mean(0)
    scale = (embeddings - centre).square().mean().sqrt() / (projected - projected.mean(0)).square().mean().sqrt()
    weights["linear_2.weight"] = second * scale
    weights["linear_2.bias"] = centre - projected.mean(0) * scale
    return weights


def _features(vision: PreTrainedModel) -> Tensor:
    """Return a tower's features of eight images of coloured noise, coarse to fine: shape (patches, width)."""
    side = int(vision.config.image_size)
    random = np.random.default_rng(_SEED)
    images = []
    for cells in (2, 3, 4, 6, 8, 12, 16, 28):
        noise = Image.fromarray(random.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
        images.append(np.asarray(noise.resize((side, side), Image.Resampling.BICUBIC)))
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 127.5 - 1  # (8, 3, side, side)
    pixels = pixels.to(next(vision.parameters()).dtype)
    hidden = vision(pixel_values=pixels * 1.9, output_hidden_states=True).hidden_states[-2]  # CLIP's pixels: -1.8 … 2.1
    return hidden[:, 1:].float().flatten(0, 1)
