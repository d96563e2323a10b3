"""Joins a language model, a vision tower and a projector into a LLaVA of transformers' own classes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import AddedToken
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    CLIPVisionModel,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.image_utils import SizeDict
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from reflectune.core.errors import UserError
from reflectune.core.weights import UNLOADABLE, check_finite, check_names
from reflectune.models.rendering.chat_template import LLAVA_15, begin_with_system, extend_to_lists
from reflectune.models.rendering.image_config import ImageFit, ImageSettings
from reflectune.models.rendering.image_fitting import fit_images
from reflectune.models.weights.pretrained import keep_published_names, try_image_processor, without_load_report
from reflectune.models.weights.projector import read_projector, untrained_projector

IMAGE, PAD = "<image>", "<pad>"
ROWS_MULTIPLE: Final = 64
"""The table's rows are a multiple of this, as in the published checkpoints: 32,064 for Vicuna's 32,000 tokens."""
UNUSED_OF_CLIP: Final = ("text_model.", "text_projection", "visual_projection", "logit_scale")
"""Beginnings of a whole CLIP's weights that a LLaVA has no use for."""


@dataclass(frozen=True)
class Parts:
    """Parts of a LLaVA.

    Attributes:
        language: Folder or hub id of a causal language model of Llama's kind.
        vision: Folder or hub id of a CLIP, or of its image tower.
        projector: File of the projector, `mm_projector.bin` or safetensors; None starts an untrained one, scaled.
        image_fit: `pad` images to a square, or `crop` their middle.
        image_size: Side of the images in pixels; fewer give fewer image tokens. 0: the tower's own.
        dtype: Precision of the weights.
    """

    language: str
    vision: str
    projector: Path | None
    image_fit: ImageFit = "pad"
    image_size: int = 0
    dtype: torch.dtype = torch.float32


def assemble(parts: Parts) -> tuple[LlavaForConditionalGeneration, LlavaProcessor]:
    """Return the model of the parts, in evaluation mode, and its processor.

    Raises:
        UserError: A part can't be loaded or lacks weights, they don't fit, or the chat template can't take images.
    """
    projector = read_projector(parts.projector) if parts.projector is not None else None
    tokenizer = load_part(AutoTokenizer, parts.language, "language")
    _check_fit(projector, parts)
    template = template_of(tokenizer)
    language = load_part(AutoModelForCausalLM, parts.language, "language", dtype=parts.dtype)
    vision = load_part(CLIPVisionModel, parts.vision, "vision", unused=UNUSED_OF_CLIP, dtype=parts.dtype)
    if parts.image_size:
        shrink_images(vision, parts.image_size)
    known = _rows(language)
    if projector is None:
        projector = untrained_projector(vision, language.get_input_embeddings().weight[:known])
    add_tokens(language, tokenizer)
    model = join(language, vision, projector, tokenizer)
    return model, make_processor(parts, vision, tokenizer, template)


def shrink_images(vision: PreTrainedModel, image_size: int) -> None:
    """Set a CLIP tower to a different image size: its position embeddings are interpolated to the new grid.

    Bicubic, the class token's is kept, as in `interpolate_pos_encoding` of transformers; 224 pixels in patches of 16
    are 196 image tokens, 112 are 49.

    Args:
        vision: The tower. Changed in place, its config too.
        image_size: Side of the images in pixels, a multiple of the patch size.

    Raises:
        UserError: It is not a multiple.
    """
    patch, old = vision.config.patch_size, vision.config.image_size
    if image_size < patch or image_size % patch:
        raise UserError(f"`image_size`, {image_size}, must be a multiple of the vision tower's patches, {patch} pixels")
    if image_size == old:
        return
    embeddings: Any = getattr(vision, "vision_model", vision).embeddings
    weight = embeddings.position_embedding.weight.detach()  # (1 + old grid squared, width)
    before, grid = old // patch, image_size // patch
    square = weight[1:].float().T.reshape(1, -1, before, before)  # (1, width, old grid, old grid)
    square = nn.functional.interpolate(square, size=(grid, grid), mode="bicubic", align_corners=False)
    positions = torch.cat([weight[:1], square.flatten(2)[0].T.to(weight.dtype)])  # (1 + grid squared, width)
    embeddings.position_embedding = nn.Embedding.from_pretrained(positions, freeze=False)
    embeddings.image_size, embeddings.num_patches, embeddings.num_positions = image_size, grid**2, grid**2 + 1
    embeddings.position_ids = torch.arange(grid**2 + 1).expand((1, -1))
    for module in vision.modules():
        settings: Any = getattr(module, "config", None)
        if hasattr(settings, "image_size"):
            settings.image_size = image_size


def join(
    language: Any, vision: PreTrainedModel, projector: Mapping[str, Tensor], tokenizer: PreTrainedTokenizerBase
) -> LlavaForConditionalGeneration:
    """Return one model of the three parts; it shares their weights."""
    image_token: Any = tokenizer.convert_tokens_to_ids(IMAGE)
    for config in (language.config, vision.config):
        config._name_or_path = ""  # where a part lay, which would be saved
    language.config.pad_token_id = tokenizer.pad_token_id  # the row of the table that has no gradient
    config = LlavaConfig(
        text_config=language.config,
        vision_config=vision.config,
        image_token_index=image_token,
        projector_hidden_act="gelu",
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        image_seq_length=(vision.config.image_size // vision.config.patch_size) ** 2,
        tie_word_embeddings=language.config.tie_word_embeddings,
        dtype=language.dtype,
    )
    with torch.device("meta"):
        model = LlavaForConditionalGeneration(config)
    model.model.vision_tower = vision
    model.model.language_model = language.get_decoder()
    model.lm_head = language.get_output_embeddings()
    weights = {name: value.to(language.dtype) for name, value in projector.items()}
    model.model.multi_modal_projector.load_state_dict(weights, assign=True)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.bos_token_id = tokenizer.bos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    keep_published_names(model)
    return model.eval()


def load_part(kind: Any, source: str, name: str, unused: Collection[str] = (), **settings: Any) -> Any:
    """Load a part by one of transformers' auto classes or its own.

    Args:
        kind: The class.
        source: Folder or hub id.
        name: Of the setting that says so, for errors.
        unused: Beginnings of the weights that may be there and are not taken.
        settings: For `from_pretrained`.

    Raises:
        UserError: It can't be loaded, or weights are missing, of another shape or not finite, or there are others.
    """
    is_model = (isinstance(kind, type) and issubclass(kind, PreTrainedModel)) or kind is AutoModelForCausalLM
    if is_model:
        settings.update(output_loading_info=True, ignore_mismatched_sizes=True)
    try:
        with without_load_report():
            loaded = kind.from_pretrained(source, trust_remote_code=False, **settings)
    except Exception as error:  # tokenizers raises no narrower class for a damaged file
        hint = ""
        if kind is AutoTokenizer:
            hint = "; a `tokenizer.model` alone needs `pip install sentencepiece protobuf`"
        raise UserError(f"`{name}`: cannot load {source}: {' '.join(str(error).split())[:300]}{hint}") from error
    if not is_model:
        return loaded
    model, report = loaded
    check_names(f"`{name}`: {source}", report, may_have=lambda key: key.startswith(tuple(unused)))
    check_finite(f"`{name}`: {source}", model)
    return model


def _check_fit(projector: Mapping[str, Tensor] | None, parts: Parts) -> None:
    """Compare widths before anything large is loaded."""
    text, whole = (load_part(AutoConfig, getattr(parts, name), name) for name in ("language", "vision"))
    if text.model_type != "llama" or "clip" not in whole.model_type:
        raise UserError(
            "LLaVA-1.5 joins a Llama (Vicuna) and a CLIP; "
            f"`language` is a {text.model_type}, `vision` a {whole.model_type}"
        )
    if projector is None:
        return
    seen, width = getattr(whole, "vision_config", whole).hidden_size, text.hidden_size
    expected: dict[str, tuple[int, ...]] = {"linear_1.weight": (width, seen), "linear_2.weight": (width, width)}
    expected |= {"linear_1.bias": (width,), "linear_2.bias": (width,)}
    for name, shape in expected.items():
        if tuple(projector[name].shape) != shape:
            raise UserError(
                f"{parts.projector} maps {tuple(projector[name].shape)} in {name}, but {parts.vision} and "
                f"{parts.language} need {shape}; take the projector that was pre-trained for these two"
            )


def template_of(tokenizer: PreTrainedTokenizerBase, system: str = "") -> str:
    """Return the tokenizer's chat template for lists of contents; LLaVA-1.5's if it has none, as Vicuna's hasn't.

    Args:
        system: System turn of conversations without one of their own, in the tokenizer's template; "" for none.
    """
    if not isinstance(tokenizer.chat_template, str):
        return LLAVA_15
    tokens = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    template = begin_with_system(tokenizer.chat_template, system) if system else tokenizer.chat_template
    return extend_to_lists(template, tokens)


def add_tokens(language: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Give the tokenizer <image> and <pad>, and the language model rows for them that begin as the mean row.

    A tokenizer that pads with the token that ends a turn gets a <pad> of its own too.
    """
    known = _rows(language)
    tokenizer.add_tokens([AddedToken(IMAGE, special=True, normalized=False)], special_tokens=True)
    tokenizer.add_special_tokens({"pad_token": AddedToken(PAD, special=True, normalized=False)})
    language.resize_token_embeddings(max(len(tokenizer), known), pad_to_multiple_of=ROWS_MULTIPLE, mean_resizing=False)
    tables = [language.get_input_embeddings().weight]
    if not language.config.tie_word_embeddings:
        tables.append(language.get_output_embeddings().weight)
    with torch.no_grad():
        for matrix in tables:
            matrix[known:] = matrix[:known].float().mean(0).to(matrix.dtype)


def _rows(language: Any) -> int:
    return int(language.get_input_embeddings().weight.shape[0])


def make_processor(
    parts: Parts, vision: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, template: str
) -> LlavaProcessor:
    """Return the processor of a LLaVA of these parts.

    Raises:
        UserError: The image processor can't be loaded or used.
    """
    images = load_part(CLIPImageProcessorPil, parts.vision, "vision")
    if parts.image_size:
        images.size = SizeDict(shortest_edge=parts.image_size)
        images.crop_size = SizeDict(height=parts.image_size, width=parts.image_size)
    tokenizer.chat_template = None  # the processor's is the one
    processor = LlavaProcessor(
        images,
        tokenizer,
        patch_size=vision.config.patch_size,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,  # CLIP's class token
        chat_template=template,
    )
    fit_images(processor, "llava", ImageSettings(parts.image_fit))
    try:
        try_image_processor(processor.image_processor)
    except UNLOADABLE as error:
        raise UserError(
            f"cannot use the image processor of {parts.vision}: {' '.join(str(error).split())[:400]}"
        ) from error
    return processor
