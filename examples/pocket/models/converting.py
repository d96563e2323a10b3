"""Convert the files of a part from the Hub or from packages into float32 safetensors that transformers loads."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from tokenizers import pre_tokenizers
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, CLIPVisionConfig, CLIPVisionModelWithProjection
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from reflectune.core.errors import UserError
from reflectune.models.weights.pretrained import without_load_report

CLIP_VIT_B16: Final[Mapping[str, Any]] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "patch_size": 16,
    "image_size": 224,
    "projection_dim": 512,
    "hidden_act": "quick_gelu",
}


def smollm_from_gguf(files: Iterable[Path], folder: Path) -> None:
    """Dequantise a SmolLM2 of a GGUF file, with its tokenizer and chat template.

    transformers refuses to save a model that it loaded from a GGUF file: a new model takes its weights.
    """
    import gguf  # noqa: F401 - an extra; without it transformers' error names no module

    path = _one(files, ".gguf")
    source: dict[str, Any] = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    # transformers (5.23) leaves out that SmolLM's tokenizer cuts numbers into digits before all else
    digits = pre_tokenizers.Digits(individual_digits=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    with without_load_report():
        read = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config = read.config
    for name in ("quantization_config", "_pre_quantization_dtype"):
        if hasattr(config, name):
            delattr(config, name)
    config.dtype, config._name_or_path = torch.float32, ""
    with torch.device("meta"):
        model = type(read)(config)
    model.load_state_dict(read.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = read.generation_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def vision_from_onnx(files: Iterable[Path], folder: Path) -> None:
    """Dequantise CLIP ViT-B/16's image tower, with its projection, of an ONNX file with int8 matrices.

    Raises:
        UserError: The file holds a different tower.
    """
    import onnx  # an extra

    path = _one(files, ".onnx")
    weights = _dequantised(onnx.load(path).graph)
    model = CLIPVisionModelWithProjection(CLIPVisionConfig(**CLIP_VIT_B16))
    expected = set(model.state_dict())
    if not expected & set(weights):  # the exporter's names have the tower's own prefix or not, as transformers' version
        weights = {_renamed(name, expected): value for name, value in weights.items()}
    if odd := sorted(expected ^ set(weights)):
        raise UserError(
            f"{path.name} is not a CLIP ViT-B/16 tower: {len(odd)} weights are missing or unknown, e.g. {odd[0]}"
        )
    model.load_state_dict(weights)
    model.eval().save_pretrained(folder)
    CLIPImageProcessorPil().save_pretrained(folder)


def vision_from_clip(files: Iterable[Path], folder: Path) -> None:
    """Extract the image tower with its projection, and the image processor, from a whole CLIP's folder."""
    source = _one(files, "config.json").parent
    model = CLIPVisionModelWithProjection.from_pretrained(
        source, dtype=torch.float32, weights_only=True, trust_remote_code=False
    )
    model.save_pretrained(folder)
    CLIPImageProcessorPil.from_pretrained(source).save_pretrained(folder)


def copied(files: Iterable[Path], folder: Path) -> None:
    """Copy the files of a model as they are, below the folder that has its `config.json`."""
    files = list(files)
    source = min((path.parent for path in files if path.name == "config.json"), key=lambda path: len(path.parts))
    for path in files:
        if path.is_relative_to(source):
            target = folder / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def _dequantised(graph: Any) -> dict[str, Tensor]:
    """Return the float32 weights of a graph by name; int8 matrices are named by the bias after them."""
    from onnx import numpy_helper

    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    users: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in node.input:
            users.setdefault(name, []).append(node)
    weights = {
        name: torch.from_numpy(array.copy())
        for name, array in arrays.items()
        if array.dtype == np.float32 and name.startswith(("vision_model.", "visual_projection"))
    }
    for node in graph.node:
        if node.op_type == "MatMulInteger":
            base = node.input[1].removesuffix("_quantized")
            zero = arrays[node.input[3] if len(node.input) > 3 else f"{base}_zero_point"].astype(np.float32)
            matrix = (arrays[node.input[1]].astype(np.float32) - zero) * arrays[f"{base}_scale"]
            weights[f"{_layer(node, users, arrays)}.weight"] = torch.from_numpy(np.ascontiguousarray(matrix.T))
    return weights


def _layer(node: Any, users: Mapping[str, list[Any]], arrays: Mapping[str, Any]) -> str:
    """Return the layer of a matrix product, from the bias that is added to it; the projection alone has none."""
    output = node.output[0]
    for _ in range(4):  # a cast, the scales, the sum
        if not (following := users.get(output, [])):
            break
        bias = [name for name in following[0].input if name in arrays and name.endswith(".bias")]
        if following[0].op_type == "Add" and bias:
            return str(bias[0]).removesuffix(".bias")
        output = following[0].output[0]
    return "visual_projection"


def _renamed(name: str, expected: set[str]) -> str:
    return next((other for other in (name, name.removeprefix("vision_model.")) if other in expected), name)


def _one(files: Iterable[Path], ending: str) -> Path:
    matching = sorted((path for path in files if path.name.endswith(ending)), key=lambda path: len(path.parts))
    if not matching:
        raise UserError(f"no {ending} among the files of a part; delete its folder in the cache and fetch it again")
    return matching[0]
