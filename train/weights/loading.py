"""Load the model that a training starts from: a base model, or the checkpoint of an earlier stage."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedModel, set_seed

from reflectune.core.durable import read_json
from reflectune.core.errors import UserError
from reflectune.core.hashing import file_fingerprint, fingerprint
from reflectune.models.loading import Loaded, load
from reflectune.models.records import (
    ADAPTER_FILE,
    adapter_folder,
    is_stored_in,
    read_info,
    resolve,
    shapes_file,
)
from reflectune.models.schemes.registry import find_scheme, load_scheme
from reflectune.models.weights.adapters import load_adapter
from reflectune.models.weights.quantization import Quantization
from reflectune.models.weights.reading import check_tokenizer
from reflectune.train.settings.model import AdapterConfig
from reflectune.train.settings.training import TrainingConfig
from reflectune.train.weights.parameters import (
    add_adapters,
    freeze_all_but,
    freeze_unused_vision_layers,
    keep_trained_weights_in_fp32,
    projector_modules,
)


@dataclass(frozen=True)
class Sharding:
    """The division of the weights among the processes of a launch.

    Attributes:
        kind: `zero1`, `zero2`, `zero3`, `fsdp`, or "" for DDP or a lone process.
        from_file: True if each process reads its own shard from the weights' file (see `train/runs/skeleton.py`).
    """

    kind: str = ""
    from_file: bool = False


UNSHARDED = Sharding()


def load_base(config: TrainingConfig, device: torch.device, sharding: Sharding = UNSHARDED) -> Loaded:
    """Load the model to train. Trained weights are kept in fp32, frozen ones in half precision or in 4 bits.

    In a full fine-tuning, frozen weights are saved too, so they keep the precision of their file, or fp32.

    Raises:
        UserError: `method: lora` would put new adapters on an adapter.
    """
    if config.method == "lora" and adapter_folder(config.model) is not None:
        raise UserError(
            f"`model`: {config.model} is an adapter; merge it with train.merge first, and start from the result"
        )
    if config.method == "qlora":
        return load(
            config.model,
            scheme=config.scheme,
            prompts=config.prompts,
            seed=config.seed,
            quantization=Quantization(config.precision),
            device=str(device),
            images=config.image_settings(),
        )
    is_full = config.method == "full"
    keeps_half = bool(config.train_towers) and is_stored_in(config.model, config.precision)
    return load(
        config.model,
        scheme=config.scheme,
        prompts=config.prompts,
        dtype="float32" if is_full and not keeps_half else config.precision,
        device=str(device) if is_full and sharding.kind not in ("zero3", "fsdp") else "cpu",
        seed=config.seed,
        images=config.image_settings(),
        cast=not sharding.from_file,
    )


def model_files(config: TrainingConfig) -> list[Any]:
    """Return the scheme's hash, and names, sizes and times of the model's files, or its commit on the Hub.

    If these are unchanged, so is the fingerprint of the loaded model.
    """
    return [find_scheme(config.scheme, config.prompts).fingerprint, *_source_files(config.model)]


def _source_files(model: str) -> list[Any]:
    source = resolve(model)
    if isinstance(source, str):
        return [source, shapes_file(source).parent.name]  # a snapshot in the cache, named by its commit
    files = [(path.name, path.stat()) for path in sorted(source.iterdir()) if path.is_file()]
    base = _source_files(str(read_info(source)["base_model"])) if adapter_folder(model) else []
    return [*([name, found.st_size, found.st_mtime_ns] for name, found in files), *base]


def load_tuned(
    config: TrainingConfig, device: torch.device, sharding: Sharding = UNSHARDED
) -> tuple[Loaded, PeftModel | None]:
    """Load a fine-tuned checkpoint to train further, and its adapter if training continues it.

    `method: full` trains all weights, with an adapter merged into them. `lora` and `qlora` continue the checkpoint's
    adapter, so the result is an adapter of the same base; on a full checkpoint they add a new adapter.

    Raises:
        UserError: The model is not fine-tuned, has another scheme, or is an adapter of the other method.
    """
    folder = adapter_folder(config.model)
    if config.method == "full" or folder is None:
        loaded = load_base(config, device, sharding)
        if not loaded.is_tuned:
            raise UserError(f"`model`: {config.model} is not fine-tuned; give a checkpoint that train/sft.py wrote")
        return loaded, None
    info = read_info(folder)
    adapter_method = "qlora" if info.get("quantization") else "lora"
    if adapter_method != config.method:
        raise UserError(f"{folder} was trained with `method: {adapter_method}`; use that, or `method: full`")
    scheme = load_scheme(folder)
    if scheme.name != config.scheme:
        raise UserError(f"{folder} was trained with scheme {scheme.name}, and `scheme` is {config.scheme}")
    changes: dict[str, Any] = {"model": str(info["base_model"]), "seed": int(info["seed"])}
    refuse_other_adapter(config, folder)
    base = config.model_copy(update=changes)
    loaded = load_base(base, device, sharding)
    if loaded.scheme is None or loaded.scheme.prompts != scheme.prompts:
        raise UserError(f"{folder} was trained with other prompts than `prompts: {config.prompts or '(none)'}` names")
    check_tokenizer(folder, loaded.processor, scheme)
    adapted = load_adapter(loaded.model, folder, is_trainable=True)
    keep_trained_weights_in_fp32(adapted)
    files = [folder / ADAPTER_FILE, *sorted(folder.glob("*.safetensors"))]
    return replace(loaded, fingerprint=fingerprint([loaded.fingerprint, file_fingerprint(*files)])), adapted.eval()


def refuse_other_adapter(config: TrainingConfig, folder: Path) -> None:
    """Raise a `UserError` if settings contradict the adapter that training continues."""
    has_projector = bool(read_json(folder / ADAPTER_FILE, "the adapter's config").get("modules_to_save"))
    differing = [
        f"`{name}` is {getattr(config, name)!r}, the adapter's {value!r}"
        for name, value in adapter_settings(folder).items()
        if name in config.model_fields_set and getattr(config, name) != value
    ]
    if config.train_towers and ("projector" in config.train_towers) != has_projector:
        found = "a" if has_projector else "no"
        differing.append(f"`train_towers` is {', '.join(config.train_towers)}, the adapter has {found} projector")
    if differing:
        raise UserError(f"{folder} is an adapter, whose settings can't change: {'; '.join(differing)}; leave these out")


def adapter_settings(folder: Path) -> dict[str, Any]:
    """Return the settings that an adapter was made with."""
    record: dict[str, Any] = read_json(folder / ADAPTER_FILE, "the adapter's config")
    names = {"lora_r": "r", "lora_targets": "target_modules"}
    return {key: record[names.get(key, key)] for key in ("lora_r", "lora_alpha", "lora_dropout", "lora_targets")}


def prepare_model(
    loaded: Loaded, adapters: AdapterConfig, *, seed: int = 0, sharding: Sharding = UNSHARDED
) -> PreTrainedModel | PeftModel:
    """Return the model in training mode, with untrained parts frozen, or with new adapters.

    Args:
        loaded: From `load_base`.
        adapters: Which weights train.
        seed: Seed of the adapters' random start.
        sharding: How the launch divides the weights.
    """
    model: PreTrainedModel | PeftModel = loaded.model
    set_seed(seed)
    if adapters.method == "full":
        freeze_all_but(model, adapters.trained_towers)
    else:
        model = add_adapters(
            loaded.model,
            loaded.renderer.token_ids.values(),
            rank=adapters.lora_r,
            alpha=adapters.lora_alpha,
            dropout=adapters.lora_dropout,
            targets=adapters.lora_targets,
            whole=projector_modules(loaded.model) if "projector" in adapters.trained_towers else (),
        )
    if sharding.kind == "fsdp":
        freeze_unused_vision_layers(model)
    if not sharding.from_file:
        keep_trained_weights_in_fp32(model)
    return model.train()
