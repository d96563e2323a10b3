"""Trained parameters: freezing towers, LoRA with the new tokens' rows, and counts by tower."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from torch import nn
from transformers import PreTrainedModel

from reflectune.core.errors import UserError
from reflectune.models.attention.positions import inner_model
from reflectune.models.weights.adapters import use_new_token_rows

_TOWERS = (
    # First match wins: Qwen2-VL's merger lies inside of its vision tower.
    ("new tokens", ("trainable_tokens_delta",)),
    ("projector", ("multi_modal_projector", "merger")),
    ("vision tower", ("vision_tower", "visual", "vision_model")),
    ("language model", ("",)),
)


_NARROW = r".*language_model.*_proj"
"""Regular expression of `lora_targets` for the linear layers of Llama and Qwen."""


@dataclass(frozen=True)
class ParameterCount:
    """Parameters of one tower."""

    trainable: int
    total: int


def tower_of(name: str) -> str:
    """Return the tower of a parameter or module by its dotted name."""
    parts = name.split(".")
    return next(tower for tower, marks in _TOWERS if any(not mark or mark in part for mark in marks for part in parts))


def freeze_tower(model: nn.Module, tower: str) -> None:
    """Freeze the weights of one tower."""
    for name, parameter in model.named_parameters():
        if tower_of(name) == tower:
            parameter.requires_grad_(False)


def freeze_all_but(model: nn.Module, towers: Collection[str]) -> None:
    """Freeze all towers except these, named as in `train_towers`."""
    for tower, _ in _TOWERS:
        if tower.replace(" ", "_") not in towers:
            freeze_tower(model, tower)


def projector_modules(model: nn.Module) -> list[str]:
    """Return the names of the projector's modules: one, or one per vision layer that it reads (Qwen3-VL)."""
    modules: list[str] = []
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in modules)
        if tower_of(name) == "projector" and not inside and not isinstance(module, nn.ModuleList):
            modules.append(name)
    return modules


def set_projector_learning_rate(optimizer: torch.optim.Optimizer, model: nn.Module, rate: float) -> None:
    """Set the projector's peak learning rate, in an optimiser that has not stepped yet.

    Each parameter group is split in two. The projector's part is appended and keeps the group's other settings.
    """
    projector = {parameter for name, parameter in model.named_parameters() if tower_of(name) == "projector"}
    for group in list(optimizer.param_groups):
        moved = [parameter for parameter in group["params"] if parameter in projector]
        group["params"] = [parameter for parameter in group["params"] if parameter not in projector]
        if moved:
            optimizer.add_param_group({**group, "params": moved, "lr": rate})


def freeze_unused_vision_layers(model: nn.Module) -> None:
    """Freeze the layers of LLaVA's vision tower after `vision_feature_layer`, which are unused.

    They get no gradient anyway, and FSDP can't resume a trained weight without one ("Missing optimizer state", torch
    2.13).
    """
    config: Any = model.config
    feature_layer = getattr(config, "vision_feature_layer", None)
    if feature_layer is None:
        return
    for name, module in model.named_modules():
        if tower_of(name) == "vision tower" and name.endswith("encoder.layers"):
            layers: Any = module
            states = [feature_layer] if isinstance(feature_layer, int) else feature_layer  # embeddings, then layers
            read = max(state if state >= 0 else len(layers) + 1 + state for state in states)
            for layer in layers[read:]:
                layer.requires_grad_(False)
        elif name.endswith("post_layernorm"):
            module.requires_grad_(False)


def count_by_tower(model: nn.Module) -> dict[str, ParameterCount]:
    """Count trainable and total parameters of each tower; a tied matrix counts once."""
    trainable: dict[str, int] = {}
    total: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        if ".original_module." in name:  # PEFT's unused original of a trained projector
            continue
        tower = tower_of(name)
        count = parameter_count(parameter)
        total[tower] = total.get(tower, 0) + count
        trainable[tower] = trainable.get(tower, 0) + (count if parameter.requires_grad else 0)
    return {tower: ParameterCount(trainable[tower], total[tower]) for tower, _ in _TOWERS if tower in total}


def parameter_table(model: nn.Module) -> str:
    """Format the trainable parameters, in all and by tower."""
    counts = count_by_tower(model)
    trainable, total = (sum(getattr(c, kind) for c in counts.values()) for kind in ("trainable", "total"))
    lines = [f"  {tower}: {count.trainable:,} of {count.total:,}" for tower, count in counts.items()]
    return "\n".join([f"trainable parameters: {trainable:,} of {total:,}", *lines])


def parameter_count(parameter: nn.Parameter) -> int:
    """Count the weights of a parameter, also if it is stored in 4 bits or sharded by ZeRO-3."""
    if (state := getattr(parameter, "quant_state", None)) is not None:
        return math.prod(state.shape)
    return getattr(parameter, "ds_numel", parameter.numel())


def keep_trained_weights_in_fp32(model: nn.Module) -> None:
    """Cast trained weights to fp32: in bf16 most small updates would be rounded away.

    Under ZeRO-3 nothing is cast: DeepSpeed keeps fp32 master weights, and needs one dtype, also for a resized matrix
    that is not sharded yet.
    """
    parameters = list(model.parameters())
    if any(hasattr(parameter, "ds_numel") for parameter in parameters):
        return
    for parameter in parameters:
        if parameter.requires_grad and parameter.dtype != torch.float32:
            parameter.data = parameter.data.float()


def recompute_layers(model: nn.Module, every: int = 1) -> None:
    """Keep only the inputs of every n-th layer, and recompute these layers in the backward pass.

    transformers (5.23) then lets embeddings and patches require gradients, which puts a frozen vision tower into the
    graph. Non-reentrant checkpointing doesn't need that, so it is disabled, also when TRL calls it.

    Args:
        model: The model, possibly with adapters.
        every: n.
    """
    network: Any = inner_model(model)
    network.enable_input_require_grads = _leave_inputs
    network.activation_checkpointing_enable({"use_reentrant": False}, every_n_layers=every)


def _leave_inputs() -> None:
    """Do nothing, in place of `enable_input_require_grads`. Pickle refers to this function by its name."""


def are_finite(model: nn.Module) -> bool:
    """Return True if all trained weights that this process holds are finite."""
    for parameter in model.parameters():
        shard: Any = getattr(parameter, "ds_tensor", parameter)  # of ZeRO-3
        shard = shard.to_local() if hasattr(shard, "to_local") else shard  # of FSDP
        if parameter.requires_grad and not torch.isfinite(shard).all():
            return False
    return True


def adapters_of(model: nn.Module) -> list[Any]:
    """Return the layers of a model that have adapters."""
    return [module for module in model.modules() if isinstance(module, LoraLayer)]


@contextmanager
def without_input_cast(layers: Iterable[Any]) -> Iterator[None]:
    """Disable PEFT's cast of inputs to the adapters' fp32 inside this block, under autocast.

    Autocast would cast them back: the results are equal, but a CPU is a quarter slower.

    Args:
        layers: From `adapters_of`.
    """
    layers = list(layers)
    before = [layer.cast_input_dtype_enabled for layer in layers]
    for layer in layers:
        layer.cast_input_dtype_enabled = False
    try:
        yield
    finally:
        for layer, enabled in zip(layers, before, strict=True):
            layer.cast_input_dtype_enabled = enabled


def add_adapters(
    model: PreTrainedModel,
    token_ids: Iterable[int],
    *,
    rank: int,
    alpha: int,
    dropout: float,
    targets: str,
    whole: Sequence[str] = (),
) -> PeftModel:
    """Wrap a model so that LoRA adapters, the new tokens' rows and the modules `whole` train.

    Reflection tokens are read *and* generated, so their rows train in both the embedding and the output head. Tied
    matrices stay tied.

    Args:
        model: The base model, with the tokens added.
        token_ids: Rows of the new tokens; none for a scheme without tokens.
        rank: r of the adapters.
        alpha: Adapters are scaled by alpha / r.
        dropout: Dropout before the adapters.
        targets: Regular expression over whole module names.
        whole: Modules that train with all their weights; they are saved with the adapters.

    Raises:
        UserError: `targets` matches no linear module, a module outside of the language model or without a matrix, or
            a matrix whose rows of new tokens train.
    """
    rows = sorted(token_ids)
    # by name: the list form of `trainable_token_indices` would leave the head of an untied model frozen
    names = [_name_of(model, model.get_input_embeddings()), _name_of(model, model.get_output_embeddings())]
    _check_targets(model, targets, names if rows else ())
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=targets,
        trainable_token_indices=dict.fromkeys(names, rows) if rows else None,
        modules_to_save=list(whole) or None,
        task_type="CAUSAL_LM",
    )
    adapted = get_peft_model(model, config)
    use_new_token_rows(adapted)
    return adapted


def _check_targets(model: nn.Module, targets: str, with_new_rows: Collection[str]) -> None:
    matched = [name for name, module in model.named_modules() if re.fullmatch(targets, name)]
    linear = [name for name in matched if isinstance(model.get_submodule(name), nn.Linear)]
    if not linear:
        candidates = _examples(name for name, module in model.named_modules() if isinstance(module, nn.Linear))
        raise UserError(f"`lora_targets` {targets!r} matches no linear module; there are e.g. {candidates}")
    outside = [name for name in matched if tower_of(name) != "language model"]
    if outside:
        raise UserError(
            f"`lora_targets` {targets!r} also matches modules outside of the language model, e.g. "
            f"{_examples(outside)}; narrow it, e.g. by `{_NARROW}`"
        )
    if not_matrices := [n for n in matched if not isinstance(model.get_submodule(n), (nn.Linear, nn.Embedding))]:
        raise UserError(
            f"`lora_targets` {targets!r} also matches modules without a matrix, e.g. {_examples(not_matrices)}; "
            f"narrow it, e.g. by `{_NARROW}`"
        )
    if twice := [name for name in matched if name in with_new_rows]:
        raise UserError(
            f"`lora_targets` {targets!r} also matches {' and '.join(twice)}, whose rows of new tokens train by "
            f"themselves; leave it out, e.g. by `{_NARROW}`"
        )


def _examples(names: Iterable[str]) -> str:
    return ", ".join(list(names)[:3]) or "none"


def _name_of(model: nn.Module, target: nn.Module) -> str:
    return next(name for name, module in model.named_modules() if module is target)
