"""What of a model trains: towers frozen, LoRA with the new tokens' rows, and parameters counted by tower."""

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
from reflectune.models.weights.new_rows import read_beside

_TOWERS = (
    # First match wins: Qwen2-VL's merger lies inside of its vision tower.
    ("new tokens", ("trainable_tokens_delta",)),
    ("projector", ("multi_modal_projector", "merger")),
    ("vision tower", ("vision_tower", "visual", "vision_model")),
    ("language model", ("",)),
)


_NARROW = r".*language_model.*_proj"
"""The matrices of all layers that adapters go on in Llama and Qwen."""


@dataclass(frozen=True)
class ParameterCount:
    """Parameters of one tower."""

    trainable: int
    total: int


def tower_of(name: str) -> str:
    """The tower that a parameter or module belongs to, by its dotted name."""
    parts = name.split(".")
    return next(tower for tower, marks in _TOWERS if any(not mark or mark in part for mark in marks for part in parts))


def freeze_tower(model: nn.Module, tower: str) -> None:
    """Keep the weights of one tower as they are."""
    for name, parameter in model.named_parameters():
        if tower_of(name) == tower:
            parameter.requires_grad_(False)


def freeze_all_but(model: nn.Module, towers: Collection[str]) -> None:
    """Keep the weights of every tower that is not named, as `train_towers` names them."""
    for tower, _ in _TOWERS:
        if tower.replace(" ", "_") not in towers:
            freeze_tower(model, tower)


def projector_modules(model: nn.Module) -> list[str]:
    """The modules that the projector is made of, by name: one, or one a layer that it reads (Qwen3-VL)."""
    modules: list[str] = []
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in modules)
        if tower_of(name) == "projector" and not inside and not isinstance(module, nn.ModuleList):
            modules.append(name)
    return modules


def give_projector_a_rate(optimizer: torch.optim.Optimizer, model: nn.Module, rate: float) -> None:
    """Let an optimiser that has not stepped yet move the projector at a peak learning rate of its own.

    Each of its groups is divided in two, the projector's part behind all others with what else the group is set to.
    """
    projector = {parameter for name, parameter in model.named_parameters() if tower_of(name) == "projector"}
    for group in list(optimizer.param_groups):
        moved = [parameter for parameter in group["params"] if parameter in projector]
        group["params"] = [parameter for parameter in group["params"] if parameter not in projector]
        if moved:
            optimizer.add_param_group({**group, "params": moved, "lr": rate})


def freeze_unread(model: nn.Module) -> None:
    """Keep what LLaVA's language model never reads: the layers of its vision tower after `vision_feature_layer`.

    They get no gradient, so that nothing is trained otherwise. FSDP fails to resume with a weight that has none (torch
    2.13, "Missing optimizer state").
    """
    config: Any = model.config
    wanted = getattr(config, "vision_feature_layer", None)
    if wanted is None:
        return
    for name, module in model.named_modules():
        if tower_of(name) == "vision tower" and name.endswith("encoder.layers"):
            layers: Any = module
            states = [wanted] if isinstance(wanted, int) else wanted  # of the embeddings, then of each layer
            read = max(state if state >= 0 else len(layers) + 1 + state for state in states)
            for layer in layers[read:]:
                layer.requires_grad_(False)
        elif name.endswith("post_layernorm"):
            module.requires_grad_(False)


def count_by_tower(model: nn.Module) -> dict[str, ParameterCount]:
    """Trainable and total parameters of each tower; a tied matrix counts once."""
    trainable: dict[str, int] = {}
    total: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        if ".original_module." in name:  # of a projector that trains beside adapters: its copy is read
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
    """Weights in a parameter: in four bits two of them share a byte; under ZeRO-3 this process holds a part of them."""
    if (state := getattr(parameter, "quant_state", None)) is not None:
        return math.prod(state.shape)
    return getattr(parameter, "ds_numel", parameter.numel())


def keep_trained_weights_in_fp32(model: nn.Module) -> None:
    """Cast every weight that trains to fp32: in bf16 most small updates would be rounded away."""
    for parameter in model.parameters():
        # DeepSpeed keeps masters in fp32 of what it holds in bf16, and weights that are divided can't be cast here.
        if parameter.requires_grad and parameter.dtype != torch.float32 and not hasattr(parameter, "ds_numel"):
            parameter.data = parameter.data.float()


def adapters_of(model: nn.Module) -> list[Any]:
    """The layers of a model that have adapters; none of one that trains with all its weights."""
    return [module for module in model.modules() if isinstance(module, LoraLayer)]


@contextmanager
def under_autocast(layers: Iterable[Any]) -> Iterator[None]:
    """Let layers with adapters read their input as it is, where autocast rounds it for them.

    PEFT casts it to fp32 first, the adapters' own precision, and autocast back to half precision: the same numbers, and
    a quarter of a step's time on a CPU.

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
    """Wrap a model so that only LoRA adapters and the new tokens' rows train, both in fp32, and modules as a whole.

    Reflection tokens are read *and* written, so the rows of the input embedding and of the output head train. A tied
    model has one matrix; its rows stay tied. Peft takes that from the names: the list form of
    `trainable_token_indices` would leave the head of an untied model frozen without a word.

    Args:
        model: The base model, with the tokens added.
        token_ids: The new tokens' rows; none where a scheme has no tokens.
        rank: r of the adapters.
        alpha: The adapters are scaled by alpha / r.
        dropout: Before the adapters.
        targets: Regular expression over whole module names.
        whole: Names of modules that train with all their weights, which are saved with the adapters.

    Raises:
        UserError: `targets` matches no linear module, one outside of the language model, what holds no matrix, or a
            matrix whose rows of new tokens train.
    """
    rows = sorted(token_ids)
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
    read_beside(adapted)
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
            f"`lora_targets` {targets!r} also matches modules that are no matrices, e.g. {_examples(not_matrices)}; "
            f"narrow it, e.g. by `{_NARROW}`"
        )
    if twice := [name for name in matched if name in with_new_rows]:
        raise UserError(
            f"`lora_targets` {targets!r} also matches {' and '.join(twice)}, of which the new tokens' rows train by "
            f"themselves; leave it out, e.g. by `{_NARROW}`"
        )


def _examples(names: Iterable[str], count: int = 3) -> str:
    listed: Sequence[str] = list(names)
    return ", ".join(listed[:count]) or "none"


def _name_of(model: nn.Module, wanted: nn.Module) -> str:
    return next(name for name, module in model.named_modules() if module is wanted)
