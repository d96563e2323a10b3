"""Export a checkpoint for vLLM and SGLang: merged, or as a base model with the new tokens' rows and a plain LoRA."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
from peft import PeftModel
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import GenerationConfig, ProcessorMixin

from reflectune.core.durable import read_json, write_atomically, write_json
from reflectune.core.errors import UserError
from reflectune.core.partials import writing
from reflectune.core.paths import is_occupied
from reflectune.models.attention.positions import Positions
from reflectune.models.loading import load, save_checkpoint
from reflectune.models.records import ADAPTER_FILE, INFO_FILE, SAVED, read_info, stored_dtype, write_info
from reflectune.models.rendering.renderer import Renderer
from reflectune.models.schemes.registry import load_scheme
from reflectune.models.weights.adapters import ADAPTER_WEIGHTS, load_adapter, read_adapter
from reflectune.models.weights.pretrained import (
    as_dtype,
    dequantized,
    load_pretrained,
    load_processor,
    move_and_cast,
    set_config_dtype,
)
from reflectune.models.weights.quantization import Quantization
from reflectune.models.weights.reading import check_tokenizer
from reflectune.train.settings.export import ExportConfig
from reflectune.train.weights.checkpoints import refuse_full_disk
from reflectune.train.weights.merging import copy_calibration, plan_merge
from reflectune.train.weights.parameters import adapters_of
from reflectune.train.weights.serving import ADAPTER, BASE, Served, launch_line, readme

RECORD: Final = "export.json"
_TOLERANCE = 1e-3
"""Largest difference of logits, relative to the largest logit, between a checkpoint and its export."""
_WITH_VIDEO: Final = {
    "qwen2_vl": ("Qwen2VLProcessor", "Qwen2VLVideoProcessor"),
    "qwen2_5_vl": ("Qwen2_5_VLProcessor", "Qwen2VLVideoProcessor"),
    "qwen3_vl": ("Qwen3VLProcessor", "Qwen3VLVideoProcessor"),
    "qwen3_5": ("Qwen3VLProcessor", "Qwen3VLVideoProcessor"),
}
"""Processor and video processor classes of Qwen's published models."""


def export_checkpoint(config: ExportConfig) -> str:
    """Export a checkpoint for a server, load the export, and compare logits.

    Returns:
        Lines about the export, with the command that serves it.

    Raises:
        UserError: The base model or the adapter can't be loaded, the output holds something else, the disk is too
            full, or the export's logits differ.
    """
    folder, output = config.folder, Path(config.output)
    is_adapter = (folder / ADAPTER_FILE).is_file()
    dtype = config.dtype if config.dtype != "auto" else _own_dtype(folder, is_adapter=is_adapter)
    record = {"to": config.to, "adapter": config.adapter, "dtype": dtype, "weights": read_info(folder).get(SAVED)}
    if is_occupied(output):
        if not (output / RECORD).is_file() or read_json(output / RECORD, "the record of the export") != record:
            raise UserError(f"`output`: {output} holds something else; choose a new folder")
        return f"nothing to do: {output} holds this export; its README.md has the command that serves it"
    form = "base model and adapter" if config.adapter else "one model"
    if config.dry_run:
        return f"{folder} would be exported for {config.to} as {form}, in {dtype}: {output}"
    with writing(output) as partial:
        partial.mkdir()
        write = _write_split if config.adapter else _write_merged
        renderer, model_type, rank = write(folder, partial, as_dtype(dtype))
        served = Served(config.to, output.resolve().name, model_type, dtype, rank)
        write_atomically(partial / "README.md", readme(served, renderer))
        write_json(partial / RECORD, record)
    return f"{folder} exported as {form}, in {dtype}; loaded again, its logits are equal\n{launch_line(served, output)}"


def _own_dtype(folder: Path, *, is_adapter: bool) -> str:
    if is_adapter:
        return plan_merge(folder).dtype
    return str(stored_dtype(str(folder)) or "float32").removeprefix("torch.")


def _write_merged(folder: Path, output: Path, dtype: torch.dtype) -> tuple[Renderer, str, int]:
    """Write one model, with the checkpoint's scheme and calibration, and check it."""
    is_adapter = (folder / ADAPTER_FILE).is_file()
    loaded = load(str(folder), dtype=torch.float32 if is_adapter else dtype)  # so that sums are rounded once
    model: Any = _plain_generation(loaded.model)
    set_config_dtype(model, dtype)
    move_and_cast(model, torch.device("cpu"))
    _refuse_full_disk(output, model)
    assert loaded.scheme is not None  # the config was checked
    info = {key: value for key, value in read_info(folder).items() if key not in ("kind", "scheme")}
    save_checkpoint(output, model, loaded.processor, loaded.scheme, info)
    _complete_processor(output, model.config.model_type)
    write_info(output, read_info(output))
    copy_calibration(folder, output, loaded.scheme)
    expected = _logits(model, loaded.renderer)
    del model, loaded  # only one model in memory at a time
    exported = load(str(output), dtype=dtype)
    _compare(folder, _logits(exported.model, exported.renderer), expected)
    return exported.renderer, exported.model.config.model_type, 0


def _write_split(folder: Path, output: Path, dtype: torch.dtype) -> tuple[Renderer, str, int]:
    """Write a base model with the new tokens' rows, and a LoRA without them, and check both together."""
    adapted, processor = _load_adapted(folder, dtype)
    renderer = Renderer(load_scheme(folder), processor)
    expected = _logits(adapted, renderer)
    rank = _write_lora(folder, output / ADAPTER)
    with torch.no_grad():
        for layer in adapters_of(adapted):
            for factor in layer.lora_B.values():
                factor.weight.zero_()  # so that merging applies only the rows and whole modules
    base: Any = _plain_generation(adapted.merge_and_unload())
    set_config_dtype(base, dtype)
    _refuse_full_disk(output, base)
    base.save_pretrained(output / BASE)
    processor.save_pretrained(output / BASE)
    _complete_processor(output / BASE, base.config.model_type)
    del adapted, base
    network, exported_processor = load_pretrained(str(output / BASE), dtype, None, torch.device("cpu"))
    exported = load_adapter(network, output / ADAPTER)
    _compare(folder, _logits(exported, Renderer(renderer.scheme, exported_processor)), expected)
    return renderer, network.config.model_type, rank


def _write_lora(folder: Path, output: Path) -> int:
    """Write only an adapter's low-rank matrices, and return the rank: vLLM refuses token rows and whole modules."""
    state = {name: tensor for name, tensor in read_adapter(folder).items() if ".lora_" in name}
    config = read_json(folder / ADAPTER_FILE, "the adapter's config")
    # full names: the vision tower has modules of the same last names, and SGLang takes no regular expression
    targets = sorted({name.removeprefix("base_model.model.").partition(".lora_")[0] for name in state})
    without = {"trainable_token_indices": None, "modules_to_save": None, "base_model_name_or_path": None}
    output.mkdir()
    write_json(output / ADAPTER_FILE, {**config, **without, "target_modules": targets})
    save_file(state, output / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    return int(config["r"])


def _load_adapted(folder: Path, dtype: torch.dtype) -> tuple[PeftModel, ProcessorMixin]:
    """Load an adapter onto its base model with the scheme's tokens, without merging it."""
    info, scheme = read_info(folder), load_scheme(folder)
    quantization = Quantization.recorded(info, folder / INFO_FILE)
    base = load(
        str(info["base_model"]), scheme=scheme.name, seed=int(info["seed"]), dtype=dtype, quantization=quantization
    )
    network = dequantized(base.model, dtype) if quantization else base.model
    processor = load_processor(folder, network.config.model_type)
    check_tokenizer(folder, processor, scheme)
    return load_adapter(network, folder), processor


def _plain_generation(model: Any) -> Any:
    """Reduce `generation_config.json` to its special tokens: servers would apply its penalties and temperatures."""
    config = model.generation_config
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    model.generation_config = GenerationConfig(**{name: getattr(config, name) for name in names})
    return model


def _complete_processor(folder: Path, model_type: str) -> None:
    """Add the published processor classes to the config of a Qwen that was saved without a video processor.

    Servers load these classes, which need torchvision; it may be missing here.
    """
    path = folder / "processor_config.json"
    config = read_json(path, "the processor's config")
    if model_type not in _WITH_VIDEO or "video_processor" in config:
        return
    name, video = _WITH_VIDEO[model_type]
    images = {key: value for key, value in config["image_processor"].items() if key != "image_processor_type"}
    write_json(path, {**config, "processor_class": name, "video_processor": {**images, "video_processor_type": video}})
    tokenizer = read_json(folder / "tokenizer_config.json", "the tokenizer's config")
    write_json(folder / "tokenizer_config.json", {**tokenizer, "processor_class": name})


def _refuse_full_disk(folder: Path, model: nn.Module) -> None:
    refuse_full_disk(folder, sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()))


@torch.no_grad()
def _logits(model: Any, renderer: Renderer) -> Tensor:
    """Compute a model's logits for an image, a question and the scheme's tokens, without our engine."""
    rendered = renderer.prefix("What is shown here?", Image.radial_gradient("L").convert("RGB"))
    ids = torch.tensor([[*rendered.ids, *renderer.token_ids.values()]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **rendered.vision}
    logits: Tensor = model.eval()(**inputs, **Positions(model).types(ids)).logits.float()  # (1, tokens, vocabulary)
    return logits


def _compare(folder: Path, actual: Tensor, expected: Tensor) -> None:
    """Raise a `UserError` if the export's logits are not the checkpoint's."""
    difference, largest = float((actual - expected).abs().max()), float(expected.abs().max())
    if not difference <= _TOLERANCE * largest:
        raise UserError(
            f"the export of {folder} differs from the checkpoint: logits by up to {difference:.3g} of {largest:.3g}; "
            "please report it with the versions of transformers and peft, and use the checkpoint itself"
        )
