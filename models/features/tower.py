"""Vision towers: compute the features of an image, and let a model read them in place of pixels.

LLaVA-1.5's features are the projector's input: hidden states of `vision_feature_layer` after the select strategy. Those
of Qwen2-VL, Qwen2.5-VL and Qwen3.5 are the output of the merger, a projector inside the tower.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling

from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.models.attention.images import FEATURES
from reflectune.models.attention.positions import inner_model

_BEFORE_PROJECTOR: Final = ("llava",)
_AFTER_PROJECTOR: Final = ("qwen2_vl", "qwen2_5_vl", "qwen3_5")
_IRRELEVANT: Final = ("dtype", "transformers_version", "architectures")


def refuse_features(model: nn.Module, trained_towers: Collection[str]) -> None:
    """Raise a `UserError` if this model's features can't be cached while these towers are trained."""
    kind = inner_model(model).config.model_type
    if kind not in (*_BEFORE_PROJECTOR, *_AFTER_PROJECTOR):
        raise UserError(
            f"`cache_features` is for {', '.join((*_BEFORE_PROJECTOR, *_AFTER_PROJECTOR))}, and this is a {kind}, "
            "whose features are laid out differently; leave it out"
        )
    if kind in _AFTER_PROJECTOR and "projector" in trained_towers:
        raise UserError(
            f"`cache_features`: the projector of {kind} is part of its vision tower, so its output would be cached, "
            "but it trains; leave out `cache_features`, or set `train_towers: [language_model]`"
        )
    if any(hasattr(parameter, "ds_numel") for parameter in model.parameters()):
        raise UserError(
            "`cache_features` under zero3 is not supported: the vision tower is sharded. Launch with "
            "configs/accelerate/multi_gpu.yaml or zero2.yaml"
        )


def tower_of(model: nn.Module) -> nn.Module:
    """Return the module that reads pixels; Qwen's includes its merger."""
    inner = inner_model(model).model
    tower: nn.Module = inner.vision_tower if hasattr(inner, "vision_tower") else inner.visual
    return tower


def tower_fingerprint(model: nn.Module) -> str:
    """Return a hash of the tower's weights and of the settings that determine its output."""
    config: Any = inner_model(model).config
    vision = {name: value for name, value in config.vision_config.to_dict().items() if name not in _IRRELEVANT}
    names = ("vision_feature_layer", "vision_feature_select_strategy")
    selection = [getattr(config, name, None) for name in names]
    digest = hashlib.blake2b(fingerprint([config.model_type, vision, selection]).encode(), digest_size=16)
    for name, tensor in tower_of(model).state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def move_tower(model: nn.Module, device: torch.device) -> None:
    """Move the tower and the projector to the device where `read_image` should run."""
    tower_of(model).to(device)
    if projector := getattr(inner_model(model).model, "multi_modal_projector", None):
        projector.to(device)


@torch.no_grad()
def read_image(model: nn.Module, vision: Mapping[str, Tensor]) -> Tensor:
    """Return the features of one image: (1, tokens, width) for LLaVA, (tokens, width) for Qwen.

    Args:
        model: The model; see `move_tower`.
        vision: The processor's output.
    """
    inner = inner_model(model).model
    device = next(tower_of(model).parameters()).device
    inputs = {name: value.to(device) for name, value in vision.items()}
    if inner.config.model_type in _AFTER_PROJECTOR:
        return torch.cat(list(inner.get_image_features(**inputs).pooler_output))
    projector_inputs: list[Tensor] = []
    hook = inner.multi_modal_projector.register_forward_pre_hook(lambda _, args: projector_inputs.append(args[0]))
    try:
        inner.get_image_features(**inputs)
    finally:
        hook.remove()
    return projector_inputs[0]


def read_features(model: nn.Module) -> None:
    """Let a model accept concatenated `tower_features`, as `read_image` returns them, in place of `pixel_values`.

    Without them the model is unchanged.
    """
    inner: Any = inner_model(model).model
    if _give_features not in inner._forward_pre_hooks.values():
        inner.register_forward_pre_hook(_give_features, with_kwargs=True)


def _give_features(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    if FEATURES not in kwargs:
        return args, kwargs
    features = kwargs.pop(FEATURES)
    if hasattr(module, "multi_modal_projector"):
        projector = module.multi_modal_projector
        images = list(projector(features.to(next(projector.parameters()).dtype)))  # each (tokens, size)
    else:
        merge = module.config.vision_config.spatial_merge_size
        images = list(features.split((kwargs["image_grid_thw"].prod(-1) // merge**2).tolist()))
    output = BaseModelOutputWithPooling(pooler_output=images)  # type: ignore[arg-type]  # a list of tensors
    return args, {**kwargs, "mm_encoder_outputs": {"image": output}}
