"""The shapes of a model that decide its memory, and the number of tokens of an image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedConfig

from reflectune.models.attention.recurrence import LINEAR

_MEGAPIXEL = 1000 * 1000
_TILES = {"llava_next": 5, "internvl": 13}
"""Tiles of a large image, the whole one among them, by the published processors."""


@dataclass(frozen=True)
class LinearAttention:
    """The layers of linear attention of a hybrid model, with their heads and the sizes of those."""

    layers: int
    key_heads: int
    value_heads: int
    key_size: int
    value_size: int

    @classmethod
    def of(cls, text: Mapping[str, Any]) -> LinearAttention | None:
        """Read them from a language model's config; None without any."""
        layers = (text.get("layer_types") or ()).count(LINEAR)
        names = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")
        return cls(layers, *(text[name] for name in names)) if layers else None


@dataclass(frozen=True)
class Architecture:
    """The shapes of a model; widths are numbers per token.

    Attributes:
        width: Of the hidden states.
        layers: Decoder layers, those of linear attention among them.
        head_size: Of one attention head.
        query_width: Of all query heads together.
        key_width: Of all key heads together.
        hidden: Of the decoder's feed-forward layers.
        vocabulary: Rows of the output head.
        normed_heads: True if queries and keys are normed head by head (Qwen3).
        vision_width: Of the vision tower.
        vision_layers: Layers of the vision tower.
        vision_hidden: Of the vision tower's feed-forward layers.
        patch_size: Side of a patch in pixels.
        linear: Layers of linear attention; None without any.
    """

    width: int
    layers: int
    head_size: int
    query_width: int
    key_width: int
    hidden: int
    vocabulary: int
    normed_heads: bool
    vision_width: int
    vision_layers: int
    vision_hidden: int
    patch_size: int
    linear: LinearAttention | None = None

    @classmethod
    def of(cls, config: PreTrainedConfig) -> Architecture:
        """Read the shapes from a multimodal model's config."""
        text = config.get_text_config().to_dict()
        vision: dict[str, Any] = config.to_dict()["vision_config"]
        vision_width = vision.get("embed_dim") or vision["hidden_size"]  # Qwen2-VL's `hidden_size` is the decoder's
        heads = text["num_attention_heads"]
        size = text.get("head_dim") or text["hidden_size"] // heads
        return cls(
            width=text["hidden_size"],
            layers=text["num_hidden_layers"],
            head_size=size,
            query_width=heads * size,
            key_width=(text.get("num_key_value_heads") or heads) * size,
            hidden=text["intermediate_size"],
            vocabulary=text["vocab_size"],
            normed_heads=text["model_type"].startswith("qwen3"),
            vision_width=vision_width,
            vision_layers=vision.get("depth") or vision["num_hidden_layers"],
            vision_hidden=vision.get("intermediate_size") or int(vision_width * vision["mlp_ratio"]),
            patch_size=_side(vision["patch_size"]),
            linear=LinearAttention.of(text),
        )


def image_tokens(model: PreTrainedConfig, max_pixels: int = 0) -> int:
    """Return the tokens of a large image; for Qwen, of an image of `max_pixels`, or of a megapixel if that is 0."""
    vision = model.vision_config
    if is_qwen(model):
        side = vision.patch_size * vision.spatial_merge_size  # of the square of a token
        return (max_pixels or _MEGAPIXEL) // side**2
    if model.model_type == "gemma3":
        return int(model.mm_tokens_per_image)
    squares = (_side(vision.image_size) // _side(vision.patch_size)) ** 2 * _TILES.get(model.model_type, 1)
    ratio = getattr(model, "downsample_ratio", 1)  # InternVL's
    return int(squares * ratio**2)


def image_patches(model: PreTrainedConfig, tokens: int) -> int:
    """Return the patches that the vision tower reads of an image that has `tokens` tokens."""
    vision = model.vision_config
    if model.model_type == "gemma3":  # which averages patches to tokens
        return tokens * (vision.image_size // vision.patch_size) ** 2 // int(model.mm_tokens_per_image)
    if ratio := getattr(model, "downsample_ratio", None):
        return int(tokens / ratio**2)
    return tokens * (vision.spatial_merge_size**2 if is_qwen(model) else 1)


def _side(size: int | Sequence[int]) -> int:
    """Return the side of a square; InternVL's config gives both."""
    return size if isinstance(size, int) else size[0]


def is_qwen(model: PreTrainedConfig) -> bool:
    """Return True if a model's images keep their shape, and become tokens by their size."""
    return model.model_type.startswith("qwen")
