"""Models of a given size with random weights, and questions of a given shape, for the benchmarks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PreTrainedModel,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from reflectune.models.names import shipped_folder
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.rendering.renderer import Rendered
from reflectune.models.weights.pretrained import load_processor

IMAGE_TOKEN = 3
GATE, ANSWERED = 7, 8
"""Two token ids that stand for reflection tokens."""


@dataclass(frozen=True)
class Size:
    """What decides a model's cost."""

    vocabulary: int = 8000
    width: int = 768
    layers: int = 10
    heads: int = 12
    key_heads: int = 4
    """Of Qwen2-VL; LLaVA has as many as heads, as Llama 2."""
    hidden: int = 2048
    vision_width: int = 384
    vision_layers: int = 8
    vision_heads: int = 6


SIZES = {
    "small": Size(),
    "7b": Size(32_064, 4096, 32, 32, 4, 11_008, 1024, 24, 16),
    "tiny": Size(1000, 64, 2, 4, 2, 128, 64, 2, 2),
}


def build(family: str, size: Size, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> PreTrainedModel:
    """A model with random weights, wide enough that its decisions differ; it reads 336-pixel pictures: 576 tokens."""
    torch.manual_seed(0)
    with torch.device(device):
        model: Any = (_llava if family == "llava" else _qwen)(size)
        model = model.to(dtype)
    model.generation_config.eos_token_id = None  # every answer is equally long
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.04 * (768 / size.width) ** 0.5)
    return model.eval()


def _llava(size: Size) -> PreTrainedModel:
    vision = CLIPVisionConfig(
        hidden_size=size.vision_width,
        intermediate_size=4 * size.vision_width,
        num_hidden_layers=size.vision_layers,
        num_attention_heads=size.vision_heads,
        image_size=336,
        patch_size=14,
    )
    text = LlamaConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.width,
        intermediate_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        max_position_embeddings=16_384,
    )
    config = LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=IMAGE_TOKEN, tie_word_embeddings=False
    )
    return LlavaForConditionalGeneration._from_config(config, attn_implementation="sdpa")


def _qwen(size: Size) -> PreTrainedModel:
    vision = {
        "depth": max(1, size.vision_layers * 3 // 4),
        "embed_dim": size.vision_width,
        "hidden_size": size.width,
        "num_heads": size.vision_heads,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    head = size.width // size.heads
    text = {
        "vocab_size": size.vocabulary,
        "hidden_size": size.width,
        "intermediate_size": size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.key_heads,
        "max_position_embeddings": 16_384,
        "rope_parameters": {
            "rope_type": "default",
            "mrope_section": [head // 8, 3 * head // 16, head // 2 - head // 8 - 3 * head // 16],
            "rope_theta": 1e4,
        },
    }
    config = Qwen2VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=IMAGE_TOKEN,
        video_token_id=4,
        vision_start_token_id=5,
        vision_end_token_id=6,
        tie_word_embeddings=False,
    )
    return Qwen2VLForConditionalGeneration._from_config(config, attn_implementation="sdpa")


def question(model: PreTrainedModel, words: int = 24, *, seed: int = 1) -> Rendered:
    """A prefix of 576 image tokens and a question of `words` tokens."""
    generator = torch.Generator().manual_seed(seed)
    high = model.config.get_text_config().vocab_size
    text = torch.randint(10, high, (words,), generator=generator).tolist()
    if model.config.model_type == "llava":
        ids = [1, *[IMAGE_TOKEN] * 576, *text[1:]]
        return Rendered(ids, [], {"pixel_values": torch.randn(1, 3, 336, 336, generator=generator)})
    ids = [1, 5, *[IMAGE_TOKEN] * 576, 6, *text[3:]]
    pixels = torch.randn(48 * 48, 3 * 2 * 14 * 14, generator=generator)
    return Rendered(ids, [], {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, 48, 48]])})


def passages(model: PreTrainedModel, count: int, tokens: int, *, seed: int = 2) -> list[list[int]]:
    """Branches of random tokens."""
    generator = torch.Generator().manual_seed(seed)
    high = model.config.get_text_config().vocab_size
    return torch.randint(10, high, (count, tokens), generator=generator).tolist()


def engine_of(model: PreTrainedModel, token_budget: int | None = None) -> PrefixEngine:
    """The toolkit's engine on a model that has no processor."""
    renderer = SimpleNamespace(end_token_id=-1, decode=lambda ids: " ".join(map(str, ids)))
    loaded: Any = SimpleNamespace(model=model, renderer=renderer, name="benchmark")
    return PrefixEngine(loaded, token_budget)


def plain_inputs(model: PreTrainedModel, prefix: Rendered, branch: list[int]) -> dict[str, Any]:
    """What transformers itself is given for one whole row."""
    ids = torch.tensor([[*prefix.ids, *branch]], device=model.device)
    vision = {
        name: value.to(model.device, model.dtype) if value.is_floating_point() else value.to(model.device)
        for name, value in prefix.vision.items()
    }
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **vision}
    if model.config.model_type == "qwen2_vl":
        model.model.rope_deltas = None
        inputs["mm_token_type_ids"] = (ids == IMAGE_TOKEN).int()
    return inputs


def save_as_base(family: str, size: Size, folder: Path, dtype: torch.dtype = torch.float32) -> int:
    """Write a model of random weights as a base model that `reflectune.models.loading.load` and transformers load.

    It has the miniature's tokenizer, and an image processor for pictures of 576 tokens.

    Args:
        family: `llava` or `qwen2_vl`.
        size: Its widths and depths.
        folder: Where to.
        dtype: That its weights are stored in.

    Returns:
        How many parameters it has.
    """
    model = build(family, size, dtype=dtype)
    processor: Any = load_processor(str(shipped_folder(f"miniature/{family}")), family)
    if family == "llava":
        side = {"height": 336, "width": 336}
        processor.image_processor = CLIPImageProcessorPil(size={"shortest_edge": 336}, crop_size=side)
        processor.patch_size = model.config.vision_config.patch_size
    else:
        edges = {"shortest_edge": 672 * 672, "longest_edge": 672 * 672}
        processor.image_processor = Qwen2VLImageProcessorPil(size=edges, patch_size=14, merge_size=2)
        ids = processor.tokenizer.convert_tokens_to_ids
        model.config.video_token_id = ids("<|video_pad|>")
        model.config.vision_start_token_id, model.config.vision_end_token_id = map(
            ids, ("<|vision_start|>", "<|vision_end|>")
        )
    model.config.image_token_id = processor.tokenizer.convert_tokens_to_ids(processor.image_token)
    model.generation_config.pad_token_id = processor.tokenizer.pad_token_id
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return model.num_parameters()
