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
    """Model that is ready to train or to answer.

    Attributes:
        model: In evaluation mode, with sdpa attention; an adapter is merged into it.
        processor: Its processor; the tokenizer has the scheme's tokens.
        scheme: Its scheme, or None for a plain model.
        renderer: Renders conversations for it.
        name: The `model` argument of `load`.
        fingerprint: Hash of its weights, tokens, template, scheme and image settings.
        is_tuned: True for a checkpoint that was fine-tuned with its scheme.
        quantization: Quantization of its language model; None without.
        calibration: Scalings by which its gates are read, by their names.
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
            A checkpoint that others released with its tokens (`Scheme.is_released`) counts as fine-tuned. A full
            checkpoint of a scheme without tokens is a base model for every other scheme. None adds no tokens to a base
            model, and keeps a checkpoint's own scheme.
        prompts: Variant of the scheme's prompts for a base model (`Scheme.variants`); a checkpoint has its own.
        dtype: `float32`, `bfloat16`, `float16`, or a torch dtype.
        device: `cpu`, `cuda`, …; `auto` uses an accelerator if there is one.
        seed: Seed of the rows of new tokens.
        quantization: 4-bit quantization of the language model, to train adapters on it; `quantization.dtype` replaces
            `dtype`. None loads plain weights; an adapter of a 4-bit model is merged into the dequantized weights.
        images: Fitting of images. A checkpoint has the settings of its training, and accepts no others.
        cast: False keeps plain weights on the CPU, memory-mapped, in the dtype of their file. Only the vocabulary's
            matrices are cast to `dtype`; sharding casts the other parts.
        device_map: Spread its layers over this machine's GPUs, to answer (see `spread`); `device` is ignored.
        may_lack: Prefixes of a base model's unused weights that may be missing.

    Raises:
        UserError: The model is missing; a tensor is missing, unknown, not finite or of a different shape; a
            checkpoint has no scheme, or was trained with a different scheme, tokenizer, chat template or image
            settings; a setting is unknown; or bitsandbytes is needed and not installed.
    """
    if quantization is not None:
        if device_map:
            raise UserError("layers in 4 bits are not spread over several GPUs: leave out `device_map` or quantization")
        require_bitsandbytes()
    dtype = as_dtype(quantization.dtype if quantization else dtype)
    target = torch.device("cpu") if device_map else find_device(device)  # spread at the end
    wanted = find_scheme(scheme, prompts) if scheme else None
    source = resolve(model)
    tuned_scheme = checkpoint_scheme(source, wanted) if isinstance(source, Path) else None
    if prompts and wanted and tuned_scheme and tuned_scheme.prompts != wanted.prompts:
        raise UserError(f"{model} was trained without `prompts: {prompts}`; leave it out, or start from the base model")
    is_uncast = False
    with ExitStack() as stack:  # weights are read in a thread while the rest is made ready
        if isinstance(source, Path) and (source / ADAPTER_FILE).is_file():
            if quantization is not None:
                raise UserError(
                    f"{source} is an adapter, and 4 bits are for a base model; merge it with train.merge first"
                )
            network, processor, base = _load_adapter(source, tuned_scheme, dtype, target)
        else:
            # float16 weights are checked for overflow below
            elsewhere = bool(device_map) or target.type != "cpu"
            is_uncast = not cast or (elsewhere and dtype != torch.float16)
            network, processor = load_pretrained(
                str(source), dtype, quantization, target, cast=not is_uncast, may_lack=may_lack
            )
            stack.enter_context(_checking_finite(source, network))
            base = ""
            if tuned_scheme is None and wanted is not None:
                tuned_scheme = _released_or_extended(network, processor, wanted, source, seed)
        set_image_fit(processor, network, images, model, is_tuned=tuned_scheme is not None)
        used = tuned_scheme or wanted
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
    network: PreTrainedModel, processor: ProcessorMixin, wanted: Scheme, source: Path | str, seed: int
) -> Scheme | None:
    """Return the scheme of a checkpoint that others trained with it; else add its tokens to a base model."""
    if is_released(network, processor, wanted):
        return wanted
    _refuse_orphan(network, processor, wanted, source)
    add_reflection_tokens(network, processor, wanted, seed=seed)
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
    """Return plain weights on their devices in their dtype, except those that sharding casts and moves."""
    whole: nn.Module = network.requires_grad_(True)
    if device_map:
        return spread(network, device_map, dtype)
    if is_uncast and cast:
        move_and_cast(network, target)
    elif cast and not any(hasattr(parameter, "ds_id") for parameter in network.parameters()):
        whole.to(target)  # ZeRO-3 made the model on its device, and would leave buffers where this moves them
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
        info: Further facts to record, e.g. the data's fingerprint. An adapter needs `base_model` and `seed`.
        state_dict: Weights of a full checkpoint, if the model holds a part of them.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    is_adapter = hasattr(model, "get_base_model")
    missing = [name for name in ADAPTER_KEYS if name not in info]
    if is_adapter and missing:
        raise UserError(f"an adapter's checkpoint needs {', '.join(missing)} in its info, to be loaded again")
    if is_adapter:
        # The new rows are in the adapter; saving the whole matrices as well would be what `auto` guesses.
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


def checkpoint_scheme(folder: Path, wanted: Scheme | None) -> Scheme | None:
    """Return a checkpoint's scheme, which must be the wanted one; None for a base model."""
    if not (folder / SCHEME_FILE).is_file():
        if (folder / INFO_FILE).is_file() or (folder / ADAPTER_FILE).is_file():
            raise UserError(f"{folder} is a fine-tuned checkpoint without its {SCHEME_FILE}; copy that file next to it")
        return None
    scheme = load_scheme(folder)
    if wanted is None or scheme.name == wanted.name:
        return scheme
    if scheme.tokens:
        raise UserError(
            f"{folder} was trained with scheme {scheme.name}, and {wanted.name} is needed; choose a checkpoint of "
            f"{wanted.name}; sft also starts from a base model"
        )
    if (folder / ADAPTER_FILE).is_file():
        raise UserError(
            f"{folder} is an adapter of scheme {scheme.name}, and {wanted.name} is needed: merge it first with "
            "train.merge, and start from the result"
        )
    return None


def is_released(network: PreTrainedModel, processor: ProcessorMixin, wanted: Scheme) -> bool:
    """Return True for a checkpoint that others trained: it has all of the scheme's tokens, and no record of ours."""
    ours = getattr(network.config, "reflection_scheme", None) is not None
    every = known_tokens(processor.tokenizer, wanted) == set(wanted.tokens.values())
    return wanted.is_released and every and not ours


def _refuse_orphan(network: PreTrainedModel, processor: ProcessorMixin, wanted: Scheme, source: Path | str) -> None:
    """Refuse a checkpoint that has lost its scheme and its record, but still has reflection tokens."""
    if getattr(network.config, "reflection_scheme", None) is not None or known_tokens(processor.tokenizer, wanted):
        raise UserError(
            f"{source} has reflection tokens already but no {SCHEME_FILE} that says how they were trained; restore "
            "that file, or start from the base model"
        )


def set_image_fit(
    processor: ProcessorMixin, network: PreTrainedModel, images: ImageSettings, model: str, *, is_tuned: bool
) -> None:
    """Apply image settings; refuse a checkpoint that was trained with others."""
    trained_on, in_words = images_fingerprint(processor), images_in_words(processor)
    fit_images(processor, network.config.model_type, images)
    if is_tuned and images_fingerprint(processor) != trained_on:
        raise UserError(
            f"{model} was trained on images that were fitted with {in_words}, but the config says "
            f"{images_in_words(processor)}; leave these keys out, or train on such images"
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
    """Look for NaN in a thread while the block runs, where `_weights_fingerprint` doesn't look.

    That one reads the files of folders, not of the Hub; and float16 may overflow where the file's values are finite.
    """
    if isinstance(source, Path) and network.dtype != torch.float16:
        return nullcontext()
    return checking_finite(f"the model {source}", network)


def _weights_fingerprint(source: Path | str, network: PreTrainedModel) -> str:
    """Return a hash of a folder's finite weights and configs as they were saved, or the hub's commit and the name."""
    if isinstance(source, str):
        return fingerprint([source, getattr(network.config, "_commit_hash", None)])
    weights = FiniteFiles(f"the model {source}", set(source.glob("model*.safetensors")))
    hashed = file_fingerprint(*saved_files(source), read=weights.read)
    weights.check()
    check_saved(source, hashed)
    return hashed
