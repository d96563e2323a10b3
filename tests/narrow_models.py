"""A narrow base model of every recipe's family, with random weights, and the inputs of one plain row."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    Gemma3Processor,
    LlavaNextProcessor,
    LlavaProcessor,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    ProcessorMixin,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from reflectune.examples.miniature.models.architecture import train_tokenizer
from reflectune.models.attention.collation import predicting
from reflectune.models.attention.tree import Tree, independent_rows
from reflectune.models.weights.pretrained import ImageOnlyQwen2VLProcessor

SHAPES = Path(__file__).resolve().parents[1] / "configs/architectures"
RECIPES = {
    "llava": "llava15_7b",
    "llava_next": "llava_next_7b",
    "qwen2_vl": "qwen2_vl_7b",
    "qwen2_5_vl": "qwen25_vl_7b",
    "qwen3_vl": "qwen3_vl_8b",
    "qwen3_5": "qwen3_5_9b",
    "gemma3": "gemma3_4b",
}
"""Shapes of a family's published model."""
LAYERS = 2
_NARROW_TEXT = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
_NARROW_TEXT |= {"vocab_size": 640}
_NARROW_VISION: dict[str, dict[str, Any]] = {
    "llava": {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "image_size": 56},
    "llava_next": {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "image_size": 56},
    "qwen2_vl": {"embed_dim": 64, "hidden_size": 128, "num_heads": 4, "mlp_ratio": 2},
    "qwen2_5_vl": {"hidden_size": 64, "out_hidden_size": 128, "intermediate_size": 128, "num_heads": 4},
    "qwen3_vl": {"hidden_size": 64, "out_hidden_size": 128, "intermediate_size": 128, "num_heads": 4},
    "qwen3_5": {"hidden_size": 64, "out_hidden_size": 128, "intermediate_size": 128, "num_heads": 4},
    "gemma3": {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "image_size": 56},
}
_FEW_VISION_LAYERS: dict[str, dict[str, Any]] = {
    "llava": {"num_hidden_layers": LAYERS + 1},  # the features are those of the last but one
    "llava_next": {"num_hidden_layers": LAYERS + 1},
    "qwen2_vl": {"depth": LAYERS},
    "qwen2_5_vl": {"depth": LAYERS, "fullatt_block_indexes": [LAYERS - 1]},
    "qwen3_vl": {"depth": LAYERS, "deepstack_visual_indexes": [0, LAYERS - 1]},
    "qwen3_5": {"depth": LAYERS},
    "gemma3": {"num_hidden_layers": LAYERS},
}
_GEMMA = (
    "{{ bos_token }}{% set lead = '' %}{% set rest = messages %}"
    "{% if messages[0]['role'] == 'system' %}{% set lead = messages[0]['content'][0]['text'] + '\n\n' %}"
    "{% set rest = messages[1:] %}{% endif %}"
    "{% for message in rest %}"
    "{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' }}"
    "{% if loop.first %}{{ lead }}{% endif %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<start_of_image>' }}{% else %}{{ part['text'] | trim }}{% endif %}"
    "{% endfor %}{{ '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
_WORDS = "USER: ASSISTANT: Which colour is it? When was it founded? It was built of stone in 1872. red green blue"


def write_base(family: str, folder: Path) -> None:
    """Write a family's narrow model, processor and tokenizer into a folder."""
    kind: Any = "llava" if family.startswith("llava") else family if family == "qwen3_5" else "qwen2_vl"
    tokenizer = _gemma_tokenizer() if family == "gemma3" else train_tokenizer([_WORDS], 400, kind)
    config = AutoConfig.for_model(**_facts(family, tokenizer))
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    if family == "gemma3":
        torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight, std=0.1)  # from_config: 0
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    _processor(family, tokenizer, config).save_pretrained(folder)


def plain_inputs(model: PreTrainedModel, ids: Sequence[int], vision: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of one whole row to transformers itself: no cache, no tree, no position ids of ours."""
    row = torch.tensor([ids])
    inputs = {"input_ids": row, "attention_mask": torch.ones_like(row), **vision}
    if hasattr(model.model, "get_rope_index"):
        model.model.rope_deltas = None
        inputs["mm_token_type_ids"] = (row == model.config.image_token_id).int()
    if model.config.model_type == "gemma3":
        inputs["token_type_ids"] = (row == model.config.image_token_id).int()
    return inputs


def plain_rows(model: PreTrainedModel, trees: Iterable[Tree]) -> Iterator[dict[str, Any]]:
    """A batch for each independent row of trees, read by transformers without a mask or positions of ours."""
    for row in (row for tree in trees for row in independent_rows(tree)):
        labels, weights = torch.tensor([row.prefix.labels]), torch.tensor([row.prefix.weights])
        targets = {"labels": labels, "weights": weights, "predicts": predicting(labels)}
        yield plain_inputs(model, row.prefix.ids, row.vision) | targets


def _facts(family: str, tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Return the published model's config with few, narrow layers, and the special tokens of a small tokenizer."""
    facts = json.loads((SHAPES / f"{RECIPES[family]}.json").read_text())["config"]
    text, vision = facts["text_config"], facts["vision_config"]
    text["num_hidden_layers"] = LAYERS
    vision.update(_FEW_VISION_LAYERS[family])
    text.update(_NARROW_TEXT)
    if family == "qwen3_5":
        text |= {"layer_types": ["linear_attention", "full_attention"], "linear_key_head_dim": 16}
        text |= {"linear_value_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
    vision.update(_NARROW_VISION[family])
    text.pop("head_dim", None)
    text |= {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    text |= {"pad_token_id": tokenizer.pad_token_id, "max_position_embeddings": 32_768}

    def number(token: str) -> Any:
        return tokenizer.convert_tokens_to_ids(token)

    if family == "gemma3":
        facts["mm_tokens_per_image"], text["head_dim"] = 4, 32
        facts["image_token_index"] = number(tokenizer.image_token)
        facts["boi_token_index"], facts["eoi_token_index"] = number(tokenizer.boi_token), number(tokenizer.eoi_token)
        return facts
    if family.startswith("llava"):
        side = vision["image_size"]
        facts["image_token_index"] = number("<image>")
        if family == "llava_next":
            facts["image_grid_pinpoints"] = _pinpoints(side)
        return facts
    if "head_dim" not in text:
        text["head_dim"] = text["hidden_size"] // text["num_attention_heads"]
    half = text["head_dim"] // 2
    text["rope_parameters"] = {
        "rope_type": "default",
        "rope_theta": 1e6,
        "mrope_section": [half - 2 * (half * 3 // 8), half * 3 // 8, half * 3 // 8],
        **({"mrope_interleaved": True} if family.startswith("qwen3") else {}),
        **({"partial_rotary_factor": 1.0} if family == "qwen3_5" else {}),
    }
    facts["image_token_id"], facts["video_token_id"] = number("<|image_pad|>"), number("<|video_pad|>")
    facts["vision_start_token_id"] = number("<|vision_start|>")
    facts["vision_end_token_id"] = number("<|vision_end|>")
    return facts


def _processor(family: str, tokenizer: PreTrainedTokenizerFast, config: Any) -> ProcessorMixin:
    vision, template = config.vision_config, tokenizer.chat_template
    if family.startswith("qwen"):
        images = Qwen2VLImageProcessorPil(patch_size=vision.patch_size, merge_size=vision.spatial_merge_size)
        return ImageOnlyQwen2VLProcessor(images, tokenizer, chat_template=template)
    side = vision.image_size
    if family == "gemma3":
        images = Gemma3ImageProcessorPil(size={"height": side, "width": side})
        return Gemma3Processor(images, tokenizer, chat_template=template, image_seq_length=config.mm_tokens_per_image)
    square: dict[str, Any] = {"size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side}}
    features: dict[str, Any] = {
        "patch_size": vision.patch_size,
        "vision_feature_select_strategy": "default",
        "num_additional_image_tokens": 1,
        "chat_template": template,
    }
    if family == "llava":
        return LlavaProcessor(CLIPImageProcessorPil(**square), tokenizer, **features)
    tiles = LlavaNextImageProcessorPil(**square, image_grid_pinpoints=_pinpoints(side))
    return LlavaNextProcessor(tiles, tokenizer, **features)


def _gemma_tokenizer() -> PreTrainedTokenizerFast:
    """Train a tokenizer with Gemma-3's special tokens, its tokens of several line breaks, and its chat template."""
    trained = train_tokenizer([_WORDS], 400, "llava")
    backend = trained.backend_tokenizer
    backend.add_special_tokens(["<start_of_turn>", "<end_of_turn>"])
    backend.add_tokens([AddedToken("\n" * count, normalized=False) for count in (2, 3, 4)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        extra_special_tokens={
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
            "image_token": "<image_soft_token>",
        },
        chat_template=_GEMMA,
        **{role: getattr(trained, role) for role in ("bos_token", "eos_token", "pad_token")},
    )


def _pinpoints(side: int) -> list[list[int]]:
    """Return LLaVA-NeXT's grid pinpoints for its tiles."""
    return [[side * rows, side * columns] for rows, columns in ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3))]
