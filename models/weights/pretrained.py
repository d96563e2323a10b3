"""Load a model and its processor with transformers: safetensors only, no custom code, sdpa attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForImageTextToText,
    AutoProcessor,
    PreTrainedModel,
    ProcessorMixin,
    Qwen2VLProcessor,
)
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.utils import logging

from reflectune.core.durable import read_json
from reflectune.core.errors import UserError
from reflectune.core.values import short
from reflectune.core.weights import UNLOADABLE, check_names
from reflectune.models.rendering.chat_template import turn_off_thinking
from reflectune.models.rendering.image_fitting import QWEN
from reflectune.models.weights.quantization import Quantization, check_quantized

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_SMALL = 10**8
"""Maximum parameters that are allocated without comparing them with the size of the files."""
_IMAGE_TOKEN_SETTINGS = {
    "patch_size": "vision_config.patch_size",
    "vision_feature_select_strategy": "vision_feature_select_strategy",
    "image_processor.patch_size": "vision_config.patch_size",
    "image_processor.merge_size": "vision_config.spatial_merge_size",
    "image_processor.temporal_patch_size": "vision_config.temporal_patch_size",
}
"""Settings that determine an image's number of tokens: names in a processor, and in its model's config."""


def load_pretrained(
    source: str,
    dtype: torch.dtype,
    quantization: Quantization | None,
    device: torch.device,
    *,
    cast: bool = True,
    may_lack: Sequence[str] = (),
) -> tuple[PreTrainedModel, ProcessorMixin]:
    """Load a model and its processor with transformers.

    Without a cast, weights are memory-mapped and shared by all processes of a machine.

    Args:
        source: A hub id or a folder.
        dtype: Precision of the weights.
        quantization: Quantization of the language model; None for plain weights.
        device: Device of 4-bit weights; plain weights are left on the CPU.
        cast: False keeps the stored dtype, except of the vocabulary's matrices; the config's `dtype` is set for
            `move_and_cast`.
        may_lack: Prefixes of unused weights that may be missing.

    Raises:
        UserError: The model is missing, damaged or stored quantized, or a tensor is missing, unknown or misshaped.
    """
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        if getattr(config, "quantization_config", None) is not None:
            raise UserError(f"{source} is stored quantised; take the plain weights, and train them by `method: qlora`")
        _check_size(source, config)
        stored = None if cast or quantization else dtype_of(config)
        with without_load_report():
            kind: Any = AutoModelForImageTextToText  # with its report it returns a pair, which its types don't say
            network, report = kind.from_pretrained(
                source,
                config=config,
                dtype=stored or dtype,
                attn_implementation="sdpa",
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                **(quantization.arguments(device) if quantization else {}),
            )
        check_names(f"the model {source}", report, may_lack=may_lack, fix="copy or download its files again")
        _check_end_tokens(source, network)
        processor = load_processor(source, config.model_type)
    except UNLOADABLE as error:
        raise UserError(f"cannot load the model {source}: {' '.join(str(error).split())[:400]}") from error
    _match_image_tokens(source, network, processor)
    keep_published_names(network)
    if stored not in (None, dtype):
        _plan_cast(network, dtype)
    return check_quantized(network) if quantization else network, processor


def keep_published_names(network: Any) -> None:
    """Let `save_pretrained` use the weight names of the published checkpoints, which servers expect.

    transformers (5.23) saves with the renamings that matched during loading. None matches for a CLIP tower without
    `vision_model.` in its names, so this prefix would be lost. Can go once transformers saves it in any case.
    """
    network._weight_conversions = get_model_conversion_mapping(network, add_legacy=False)  # type: ignore[assignment]


def move_and_cast(module: PreTrainedModel, device: torch.device, dtype: torch.dtype | None = None) -> None:
    """Move a model's weights to a device, one by one, and cast them there to a dtype, by default the config's.

    The CPU's memory holds at most one weight twice, and none of those that are moved to an accelerator.

    Args:
        module: A model that was loaded without a cast, and not sharded.
    """
    dtype = dtype or as_dtype(module.config.dtype or module.dtype)
    for parameter in module.parameters():
        parameter.data = parameter.data.to(device).to(dtype)
    cast_buffers(module, dtype)
    whole: nn.Module = module
    whole.to(device)


def dequantized(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """Return the model with plain layers in place of 4-bit ones: the weights are dequantized.

    Weights are cast, and buffers as in transformers: the frequencies of rotary positions stay in float32.
    """
    whole = model.dequantize(dtype=dtype)
    move_and_cast(whole, model.device, dtype)
    return whole


def cast_buffers(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast the buffers that are saved with a model, as loading in this dtype does; others keep their dtype."""
    saved = {id(buffer) for buffer in model.state_dict(keep_vars=True).values()}
    for buffer in model.buffers():
        if id(buffer) in saved and buffer.is_floating_point():
            buffer.data = buffer.data.to(dtype)


def load_processor(source: str | Path, model_type: str) -> ProcessorMixin:
    """Return the processor of a model, which resizes images with Pillow on every machine.

    Qwen's has no video processor if torchvision is missing, or was missing when it was saved.

    Raises:
        UserError: A file of it is missing or damaged.
    """
    image_only = model_type in QWEN and (find_spec("torchvision") is None or _is_image_only(Path(source)))
    try:
        if image_only:
            processor = ImageOnlyQwen2VLProcessor.from_pretrained(source)
        else:
            processor = AutoProcessor.from_pretrained(source, trust_remote_code=False)
        if not hasattr(processor, "image_processor"):  # AutoProcessor's fallback for an unknown class
            raise ValueError(f"it is {type(processor).__name__}, which takes no images")
        # the default is torchvision where it is installed, which resizes a little differently
        processor.image_processor = AutoImageProcessor.from_pretrained(source, backend="pil", trust_remote_code=False)
        try_image_processor(processor.image_processor)
    except Exception as error:  # tokenizers raises no narrower class for a damaged file
        raise UserError(f"cannot load the processor of {source}: {' '.join(str(error).split())[:400]}") from error
    if model_type == "qwen3_5":
        turn_off_thinking(processor)
    return processor


def try_image_processor(image_processor: Any) -> None:
    """Process an image, to find errors in the config that loading doesn't check."""
    image_processor(images=[Image.new("RGB", (64, 64))], return_tensors="pt")


def dtype_of(config: Any) -> torch.dtype | None:
    """Return the dtype of a model's weights by its config, or by its text config.

    Published Qwen3-VL has it only there.
    """
    dtype: torch.dtype | None = config.dtype or config.get_text_config().dtype
    return dtype


def set_config_dtype(network: Any, dtype: torch.dtype) -> None:
    """Set the dtype of a model's config and its sub-configs."""
    for config in (network.config, *(getattr(network.config, name) for name in network.config.sub_configs)):
        config.dtype = dtype


def _plan_cast(network: PreTrainedModel, dtype: torch.dtype) -> None:
    """Set the target dtype in a model's configs, and cast the vocabulary's matrices, which get new rows."""
    set_config_dtype(network, dtype)
    layers: list[Any] = [network.get_input_embeddings(), network.get_output_embeddings()]
    for layer in layers:
        layer.weight.data = layer.weight.data.to(dtype)
        if (scale := getattr(layer, "scalar_embed_scale", None)) is not None:  # Gemma-3's; rounded to the stored dtype
            layer.embed_scale.data = torch.full_like(layer.embed_scale, scale, dtype=dtype)


def _check_size(source: str, config: Any) -> None:
    """Refuse a config with far more parameters than the files: transformers would allocate them before failing.

    An empty text config describes a 7B model. The count is a lower bound.
    """
    stored = sum(path.stat().st_size for path in Path(source).glob("*.safetensors"))
    text = config.get_text_config()
    sizes: list[Any] = [
        getattr(text, name, None) for name in ("hidden_size", "vocab_size", "num_hidden_layers", "intermediate_size")
    ]
    if not stored or not all(isinstance(size, int) for size in sizes):
        return
    width, tokens, layers, inner = sizes
    if (least := width * (tokens + 2 * layers * inner)) > max(stored, _SMALL):
        raise UserError(
            f"the model {source}: config.json describes more than {least / 1e6:,.0f} M parameters, and its weights "
            f"have {stored / 1e6:,.1f} MB: one of them is another model's; copy or download it again"
        )


def _check_end_tokens(source: str, network: Any) -> None:
    """Refuse end tokens that aren't ids: transformers accepts any value."""
    ends, size = network.generation_config.eos_token_id, network.config.get_text_config().vocab_size
    for end in ends if isinstance(ends, list) else [] if ends is None else [ends]:
        if isinstance(end, bool) or not isinstance(end, int) or not 0 <= end < size:
            raise UserError(
                f"generation_config.json of {source}: `eos_token_id` must be one of the {size:,} tokens' ids or a list "
                f"of them, found {short(end)}; copy or download it again"
            )


def is_image_only(processor: ProcessorMixin) -> bool:
    """Return True for Qwen's processor without its video half, which plain transformers saves and can't load."""
    return isinstance(processor, ImageOnlyQwen2VLProcessor)


def _is_image_only(folder: Path) -> bool:
    """Return True if a folder's processor was saved without its video half; AutoProcessor returns a bare tokenizer."""
    path = folder / "processor_config.json"
    if not path.is_file():
        return False
    return read_json(path, "the processor's config").get("processor_class") == ImageOnlyQwen2VLProcessor.__name__


def as_dtype(name: str | torch.dtype) -> torch.dtype:
    """Return a torch dtype by its name.

    Raises:
        UserError: There is none of this name, or it is not one for weights.
    """
    if isinstance(name, torch.dtype):
        return name
    if name not in _DTYPES:
        raise UserError(f"unknown dtype `{name}`; choose one of {', '.join(_DTYPES)}")
    return _DTYPES[name]


@contextmanager
def without_load_report() -> Iterator[None]:
    """Silence transformers' report of missing weights; serious ones raise errors elsewhere."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _match_image_tokens(source: str, network: PreTrainedModel, processor: Any) -> None:
    """Check that model and processor agree on the number of image tokens.

    Values that an old LLaVA processor config lacks are taken from the model.

    Raises:
        UserError: The processor contradicts the model.
    """
    wanted = {name: _at(network.config, path) for name, path in _IMAGE_TOKEN_SETTINGS.items()}
    if network.config.model_type == "aya_vision":
        wanted["patch_size"] *= network.config.downsample_factor  # the processor's is that of a token
    if network.config.model_type == "llava":
        if network.config.vision_config.model_type == "clip_vision_model":
            wanted["num_additional_image_tokens"] = 1  # the class token
        is_old = processor.patch_size is None  # then its number of additional tokens is only a default
        for name in ("patch_size", "vision_feature_select_strategy", "num_additional_image_tokens"):
            if is_old or getattr(processor, name, None) is None:
                setattr(processor, name, wanted.get(name, 0))
    for name, value in wanted.items():
        found = _at(processor, name)
        if found is not None and value is not None and found != value:
            raise UserError(
                f"the processor of {source} has {name} = {short(found)}, and its model needs {short(value)}: images "
                "would get a wrong number of tokens; copy or download its files again"
            )


def _at(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


class ImageOnlyQwen2VLProcessor(Qwen2VLProcessor):
    """Qwen2-VL's processor without its video half, which is what needs torchvision."""

    @classmethod
    def get_attributes(cls) -> list[str]:
        """Return the parts that are saved and loaded: no video processor."""
        return ["image_processor", "tokenizer"]
