"""Loads a model by name, with its processor, tokens and scheme; saves a checkpoint that can be loaded again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, ProcessorMixin

from reflectune.core.devices import find_device
from reflectune.core.errors import UserError
from reflectune.core.hashing import file_fingerprint, fingerprint
from reflectune.core.weights import FiniteFiles, checking_finite
from reflectune.models.records import (
    ADAPTER_FILE,
    ADAPTER_KEYS,
    INFO_FILE,
    check_saved,
    read_info,
    resolve,
    saved_files,
    write_info,
)
from reflectune.models.rendering.image_config import AS_IN_PROCESSOR, ImageSettings
from reflectune.models.rendering.image_fitting import fit_images, images_fingerprint, images_in_words
from reflectune.models.rendering.renderer import Renderer
from reflectune.models.schemes.base import SCHEME_FILE, Scheme
from reflectune.models.schemes.calibration import GateScaling
from reflectune.models.schemes.decision import write_decision
from reflectune.models.schemes.registry import find_scheme, load_scheme
from reflectune.models.weights.pretrained import (
    as_dtype,
    dequantized,
    load_pretrained,
    load_processor,
    move_and_cast,
)
from reflectune.models.weights.quantization import Quantization, require_bitsandbytes
from reflectune.models.weights.reading import READ_WITH, check_tokenizer, tokenizer_record
from reflectune.models.weights.spreading import DeviceMap, spread
from reflectune.models.weights.tokens import add_reflection_tokens, known_tokens


@dataclass(frozen=True)
class Loaded:
    """A model that is ready to train or to answer, with everything it needs.

    Attributes:
        model: The model in evaluation mode, with sdpa attention; an adapter is merged into it.
        processor: The processor; its tokenizer has the scheme's tokens.
        scheme: The scheme; None for a plain model.
        renderer: Renders conversations for the model.
        name: The `model` argument of `load`.
        fingerprint: Hash of weights, tokens, chat template, scheme and image settings.
        is_tuned: True for a checkpoint that was fine-tuned with its scheme.
        quantization: Quantization of the language model; None without.
        calibration: Calibration of the gates, by their names.
    """

    model: PreTrainedModel
    processor: ProcessorMixin
    scheme: Scheme | None
    renderer: Renderer
    name: str
    fingerprint: str
    is_tuned: bool
    quantization: Quantization | None = None
    calibration: Mapping[str, GateScaling] = field(default_factory=dict)


def load(
    model: str,
    *,
    scheme: str | None = None,
    prompts: str = "",
    dtype: str | torch.dtype = "float32",
    device: str = "cpu",
    seed: int = 0,
    quantization: Quantization | None = None,
    images: ImageSettings = AS_IN_PROCESSOR,
    cast: bool = True,
    device_map: str | DeviceMap | None = None,
    may_lack: Sequence[str] = (),
) -> Loaded:
    """Load a base model or a checkpoint.

    Args:
        model: A shipped model, e.g. `miniature/llava`, a hub id, or a folder (a full checkpoint or an adapter).
        scheme: Name of a scheme. A base model gets its tokens, untrained; a checkpoint must have been trained with it.
            A third party's checkpoint with its tokens (`Scheme.is_released`) counts as fine-tuned. A full checkpoint of
            a scheme without tokens is a base model for every other scheme. None adds no tokens to a base model, and
            keeps a checkpoint's scheme.
        prompts: Variant of the scheme's prompts for a base model (`Scheme.variants`); a checkpoint has its own.
        dtype: `float32`, `bfloat16`, `float16`, or a torch dtype.
        device: `cpu`, `cuda`, …; `auto` uses an accelerator if there is one.
        seed: Seed of the new tokens' rows.
        quantization: 4-bit quantization of the language model, to train adapters on it; `quantization.dtype` replaces
            `dtype`. None loads plain weights; an adapter of a 4-bit model is merged into the dequantized weights.
        images: Image settings. A checkpoint keeps those of its training; others are an error.
        cast: False keeps plain weights on the CPU, memory-mapped, in the dtype of their file. Only the vocabulary's
            matrices are cast to `dtype`; sharding casts the other parts.
        device_map: Spread the layers over this machine's GPUs, for inference (see `spread`); `device` is ignored.
        may_lack: Prefixes of a base model's unused weights that may be missing.

    Raises:
        UserError: The model is missing; a tensor is missing, unknown, not finite or of a different shape; a
            checkpoint has no scheme, or was trained with a different scheme, tokenizer, chat template or image
            settings; a setting is unknown; or bitsandbytes is needed and not installed.
    """
    if quantization is not None:
        if device_map:
            raise UserError("4-bit layers can't be spread over several GPUs: leave out `device_map` or quantization")
        require_bitsandbytes()
    dtype = as_dtype(quantization.dtype if quantization else dtype)
    target = torch.device("cpu") if device_map else find_device(device)  # `spread` moves the layers at the end
    requested = find_scheme(scheme, prompts) if scheme else None
    source = resolve(model)
    tuned_scheme = checkpoint_scheme(source, requested) if isinstance(source, Path) else None
    if prompts and requested and tuned_scheme and tuned_scheme.prompts != requested.prompts:
        raise UserError(f"{model} was trained without `prompts: {prompts}`; leave it out, or start from the base model")
    is_uncast = False
    with ExitStack() as stack:  # weights are checked in a thread while the rest is prepared
        if isinstance(source, Path) and (source / ADAPTER_FILE).is_file():
            if quantization is not None:
                raise UserError(
                    f"{source} is an adapter, and only a base model can be quantized; merge it with train.merge first"
                )
            network, processor, base = _load_adapter(source, tuned_scheme, dtype, target)
        else:
            # float16 weights are checked for overflow below
            leaves_cpu = bool(device_map) or target.type != "cpu"
            is_uncast = not cast or (leaves_cpu and dtype != torch.float16)
            network, processor = load_pretrained(
                str(source), dtype, quantization, target, cast=not is_uncast, may_lack=may_lack
            )
            stack.enter_context(_checking_finite(source, network))
            base = ""
            if tuned_scheme is None and requested is not None:
                tuned_scheme = _released_or_extended(network, processor, requested, source, seed)
        set_image_fit(processor, network, images, model, is_tuned=tuned_scheme is not None)
        used = tuned_scheme or requested
        renderer = Renderer(used, processor)
        if isinstance(source, Path) and tuned_scheme is not None and (source / SCHEME_FILE).is_file():
            check_tokenizer(source, processor, tuned_scheme)
        parts: list[Any] = [base, _weights_fingerprint(source, network), renderer.fingerprint, str(dtype)]
        parts += [images_fingerprint(processor)]
        parts += [str(seed)] if used is not None and tuned_scheme is None else []
        parts += [asdict(quantization)] if quantization else []
    if quantization is None:
        network = _placed(network, target, device_map, dtype, cast=cast, is_uncast=is_uncast)
    return Loaded(
        network.eval(), processor, used, renderer, model, fingerprint(parts), tuned_scheme is not None, quantization
    )


def _released_or_extended(
    network: PreTrainedModel, processor: ProcessorMixin, requested: Scheme, source: Path | str, seed: int
) -> Scheme | None:
    """Return the scheme of a third party's checkpoint; for a base model, add its tokens and return None."""
    if is_released(network, processor, requested):
        return requested
    _refuse_orphan(network, processor, requested, source)
    add_reflection_tokens(network, processor, requested, seed=seed)
    return None


def _placed(
    network: PreTrainedModel,
    target: torch.device,
    device_map: str | DeviceMap | None,
    dtype: torch.dtype,
    *,
    cast: bool,
    is_uncast: bool,
) -> PreTrainedModel:
    """Move and cast plain weights, unless sharding will do it."""
    module: nn.Module = network.requires_grad_(True)
    if device_map:
        return spread(network, device_map, dtype)
    if is_uncast and cast:
        move_and_cast(network, target)
    elif cast and not any(hasattr(parameter, "ds_id") for parameter in network.parameters()):
        module.to(target)  # not under ZeRO-3, which has put the weights on their device
    return network


def save_checkpoint(
    folder: str | Path,
    model: Any,
    processor: ProcessorMixin,
    scheme: Scheme,
    info: Mapping[str, Any],
    *,
    state_dict: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a checkpoint: weights or adapter, processor and tokenizer, `scheme.json`, and last `reflectune.json`.

    Args:
        model: A transformers model, or a PEFT model; only its adapter is written.
        processor: The processor with the scheme's tokens.
        scheme: The scheme that it was trained with.
        info: Entries of `reflectune.json`, e.g. the data's fingerprint. An adapter needs `base_model` and `seed`.
        state_dict: Gathered weights of a full checkpoint, if the model is sharded.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    is_adapter = hasattr(model, "get_base_model")
    missing = [name for name in ADAPTER_KEYS if name not in info]
    if is_adapter and missing:
        raise UserError(f"an adapter's checkpoint needs {', '.join(missing)} in its info, to be loaded again")
    if is_adapter:
        # The new rows are in the adapter. PEFT's default, "auto", would also save the whole embedding matrices.
        model.save_pretrained(folder, save_embedding_layers=False)
    else:
        if state_dict is not None:  # FSDP gathers a tied matrix under both of its names
            state_dict = {name: value for name, value in state_dict.items() if name not in model.all_tied_weights_keys}
        model.save_pretrained(folder, state_dict=state_dict)
    processor.save_pretrained(folder)
    scheme.save(folder, {READ_WITH: tokenizer_record(processor, scheme)})
    if scheme.gates and not is_adapter:
        write_decision(folder, Renderer(scheme, processor))
    write_info(folder, {"kind": "adapter" if is_adapter else "full", "scheme": scheme.name, **info})


def checkpoint_scheme(folder: Path, requested: Scheme | None) -> Scheme | None:
    """Return a checkpoint's scheme, which must be the requested one; None for a base model."""
    if not (folder / SCHEME_FILE).is_file():
        if (folder / INFO_FILE).is_file() or (folder / ADAPTER_FILE).is_file():
            raise UserError(f"{folder} is a fine-tuned checkpoint without its {SCHEME_FILE}; copy that file next to it")
        return None
    scheme = load_scheme(folder)
    if requested is None or scheme.name == requested.name:
        return scheme
    if scheme.tokens:
        raise UserError(
            f"{folder} was trained with scheme {scheme.name}, and {requested.name} is needed; choose a checkpoint of "
            f"{requested.name}; sft also starts from a base model"
        )
    if (folder / ADAPTER_FILE).is_file():
        raise UserError(
            f"{folder} is an adapter of scheme {scheme.name}, and {requested.name} is needed: merge it first with "
            "train.merge, and start from the result"
        )
    return None


def is_released(network: PreTrainedModel, processor: ProcessorMixin, requested: Scheme) -> bool:
    """Return True for a third party's checkpoint: it has all of the scheme's tokens, but none of our records."""
    is_ours = getattr(network.config, "reflection_scheme", None) is not None
    has_tokens = known_tokens(processor.tokenizer, requested) == set(requested.tokens.values())
    return requested.is_released and has_tokens and not is_ours


def _refuse_orphan(network: PreTrainedModel, processor: ProcessorMixin, requested: Scheme, source: Path | str) -> None:
    """Refuse a checkpoint that has lost its scheme and its record, but still has reflection tokens."""
    if getattr(network.config, "reflection_scheme", None) is not None or known_tokens(processor.tokenizer, requested):
        raise UserError(
            f"{source} already has reflection tokens, but no {SCHEME_FILE}, which records how they were trained; "
            "restore that file, or start from the base model"
        )


def set_image_fit(
    processor: ProcessorMixin, network: PreTrainedModel, images: ImageSettings, model: str, *, is_tuned: bool
) -> None:
    """Apply image settings; refuse a checkpoint that was trained with different ones."""
    trained_fit, trained_words = images_fingerprint(processor), images_in_words(processor)
    fit_images(processor, network.config.model_type, images)
    if is_tuned and images_fingerprint(processor) != trained_fit:
        raise UserError(
            f"{model} was trained on images that were fitted with {trained_words}, but the config says "
            f"{images_in_words(processor)}; leave out these keys, or train with them"
        )


def _load_adapter(
    folder: Path, scheme: Scheme | None, dtype: torch.dtype, device: torch.device
) -> tuple[PreTrainedModel, ProcessorMixin, str]:
    """Return the base model with the scheme's tokens and the merged adapter, and the base weights' fingerprint."""
    from reflectune.models.weights.adapters import load_adapter  # slow to import

    assert scheme is not None  # an adapter without a scheme is refused before
    info = read_info(folder)
    base = resolve(str(info["base_model"]))
    quantization = Quantization.recorded(info, folder / INFO_FILE)
    if quantization:
        require_bitsandbytes()
    network, _ = load_pretrained(
        str(base), as_dtype(quantization.dtype) if quantization else dtype, quantization, device
    )
    with _checking_finite(base, network):
        processor = load_processor(folder, network.config.model_type)
        add_reflection_tokens(network, processor, scheme, seed=int(info["seed"]))
        if quantization:
            network = dequantized(network, dtype)
        merged = load_adapter(network, folder).merge_and_unload()
        return merged, processor, _weights_fingerprint(base, network)


def _checking_finite(source: Path | str, network: PreTrainedModel) -> AbstractContextManager[None]:
    """Check the weights for NaN in a thread while this block runs, unless `_weights_fingerprint` checks them.

    That function only reads files of local folders. In float16, weights may overflow that are finite in the file.
    """
    if isinstance(source, Path) and network.dtype != torch.float16:
        return nullcontext()
    return checking_finite(f"the model {source}", network)


def _weights_fingerprint(source: Path | str, network: PreTrainedModel) -> str:
    """Return a hash of a folder's weights and configs, after checking them, or of a hub id and its commit."""
    if isinstance(source, str):
        return fingerprint([source, getattr(network.config, "_commit_hash", None)])
    weights = FiniteFiles(f"the model {source}", set(source.glob("model*.safetensors")))
    hashed = file_fingerprint(*saved_files(source), read=weights.read)
    weights.check()
    check_saved(source, hashed)
    return hashed
