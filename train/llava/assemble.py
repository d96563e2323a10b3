"""Joins a language model, a vision tower and a projector into LLaVA-1.5 as it was before instruction tuning."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import AddedToken
from torch import Tensor
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
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from reflectune.core.errors import UserError
from reflectune.models.processing.image_config import ImageSettings
from reflectune.models.processing.image_fitting import fit_images
from reflectune.train.llava.config import NEW, AssembleConfig

IMAGE, PAD = "<image>", "<pad>"
ROWS_MULTIPLE = 64
"""The table's rows are a multiple of this, as in the published checkpoints: 32,064 for Vicuna's 32,000 tokens."""

PROJECTOR: Final[Mapping[str, str]] = {
    "model.mm_projector.0.weight": "linear_1.weight",
    "model.mm_projector.0.bias": "linear_1.bias",
    "model.mm_projector.2.weight": "linear_2.weight",
    "model.mm_projector.2.bias": "linear_2.bias",
}
"""Names in the published file, and in transformers. (1 is the GELU between them.)"""

CHAT_TEMPLATE: Final = (
    "{{ bos_token }}A chat between a curious user and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the user's questions. "
    "{% for message in messages %}{% if message['role'] == 'user' %}{{ 'USER: ' }}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ '<image>\n' }}{% endif %}{% endfor %}"
    "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{{ ' ' }}{% else %}{{ 'ASSISTANT:' }}"
    "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ ' ' + part['text'] }}{% endif %}"
    "{% endfor %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
"""As LLaVA-1.5 was tuned (`conv_vicuna_v1` of its code), the end of a turn included."""


def assemble(config: AssembleConfig) -> str:
    """Write the checkpoint, and return a line about it.

    Raises:
        UserError: A part can't be loaded, or they don't fit together.
    """
    dtype = getattr(torch, config.dtype)
    projector = None if config.projector == NEW else read_projector(Path(config.projector))
    tokenizer = _load(AutoTokenizer, config.tokenizer or config.language, "tokenizer")
    _check_fit(projector, config)
    language = _load(AutoModelForCausalLM, config.language, "language", dtype=dtype)
    vision = _load(CLIPVisionModel, config.vision, "vision", dtype=dtype)
    _add_tokens(language, tokenizer)
    sizes = vision.config.hidden_size, language.config.hidden_size
    model = join(language, vision, projector or new_projector(*sizes, seed=config.seed), tokenizer)
    processor = _processor(config, vision, tokenizer)
    partial = Path(config.output).with_name(f".{Path(config.output).name}.{os.getpid()}.partial")
    try:
        model.save_pretrained(partial)
        processor.save_pretrained(partial)
        os.replace(partial, config.output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    count = sum(parameter.numel() for parameter in model.parameters())
    return f"written to {config.output}: {count:,} parameters, {len(tokenizer):,} tokens in {_rows(language):,} rows"


def read_projector(path: Path) -> dict[str, Tensor]:
    """The projector's weights under transformers' names. Nothing but tensors is unpickled.

    Raises:
        UserError: The file holds something else, or another projector.
    """
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{path} is no file of weights alone, and nothing else is unpickled: {reason}; download it again"
        ) from error
    found = sorted(map(str, held)) if isinstance(held, dict) else [type(held).__name__]
    if set(found) != set(PROJECTOR):
        raise UserError(f"{path} should hold {', '.join(PROJECTOR)} (mlp2x_gelu); found {', '.join(found)}")
    odd = [name for name, value in held.items() if not isinstance(value, Tensor) or not value.isfinite().all()]
    if odd:
        raise UserError(
            f"{path}: {', '.join(odd)} should be tensors of finite numbers; download mm_projector.bin again"
        )
    return {PROJECTOR[name]: value for name, value in held.items()}


def new_projector(seen: int, width: int, *, seed: int) -> dict[str, Tensor]:
    """A projector as LLaVA's stage 1 begins with it: two linear layers as torch initialises them, in fp32.

    Args:
        seen: Width of the vision tower.
        width: Of the language model.
        seed: Of the weights.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = {"linear_1": torch.nn.Linear(seen, width), "linear_2": torch.nn.Linear(width, width)}
    return {f"{name}.{part}": p.detach() for name, layer in layers.items() for part, p in layer.named_parameters()}


def join(
    language: Any,
    vision: PreTrainedModel,
    projector: Mapping[str, Tensor],
    tokenizer: PreTrainedTokenizerBase,
) -> LlavaForConditionalGeneration:
    """One model of the three parts; their weights are taken, not copied."""
    image_token: Any = tokenizer.convert_tokens_to_ids(IMAGE)
    config = LlavaConfig(
        text_config=language.config,
        vision_config=vision.config,
        image_token_index=image_token,
        projector_hidden_act="gelu",
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        image_seq_length=(vision.config.image_size // vision.config.patch_size) ** 2,
        tie_word_embeddings=False,
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
    return model.eval()


def _load(kind: Any, source: str, name: str, **settings: Any) -> Any:
    try:
        return kind.from_pretrained(source, trust_remote_code=False, **settings)
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        hint = ""
        if kind is AutoTokenizer:
            hint = "; a `tokenizer.model` alone needs `pip install sentencepiece protobuf`, or give `tokenizer`"
        raise UserError(f"`{name}`: cannot load {source}: {' '.join(str(error).split())[:300]}{hint}") from error


def _check_fit(projector: Mapping[str, Tensor] | None, config: AssembleConfig) -> None:
    """Compare widths before anything large is loaded."""
    text, whole = (_load(AutoConfig, getattr(config, name), name) for name in ("language", "vision"))
    if text.model_type != "llama" or "clip" not in whole.model_type:
        raise UserError(
            "LLaVA-1.5 joins a Llama (Vicuna) and a CLIP; "
            f"`language` is a {text.model_type}, `vision` a {whole.model_type}"
        )
    seen, width = getattr(whole, "vision_config", whole).hidden_size, text.hidden_size
    expected = {"linear_1.weight": (width, seen), "linear_2.weight": (width, width)}
    if projector is None:
        return
    for name, shape in expected.items():
        if tuple(projector[name].shape) != shape:
            raise UserError(
                f"{config.projector} maps {tuple(projector[name].shape)} in {name}, but {config.vision} and "
                f"{config.language} need {shape}; take the projector that was pre-trained for these two"
            )


def _add_tokens(language: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Give the tokenizer <image> and <pad>, and the language model rows for them that begin as the mean row."""
    known = _rows(language)
    tokenizer.add_tokens([AddedToken(IMAGE, special=True, normalized=False)], special_tokens=True)
    tokenizer.add_special_tokens({"pad_token": AddedToken(PAD, special=True, normalized=False)})
    language.resize_token_embeddings(max(len(tokenizer), known), pad_to_multiple_of=ROWS_MULTIPLE, mean_resizing=False)
    with torch.no_grad():
        for layer in (language.get_input_embeddings(), language.get_output_embeddings()):
            matrix = layer.weight
            matrix[known:] = matrix[:known].float().mean(0).to(matrix.dtype)


def _rows(language: Any) -> int:
    return int(language.get_input_embeddings().weight.shape[0])


def _processor(config: AssembleConfig, vision: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> LlavaProcessor:
    processor = LlavaProcessor(
        _load(CLIPImageProcessorPil, config.vision, "vision"),
        tokenizer,
        patch_size=vision.config.patch_size,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,  # CLIP's class token
        chat_template=CHAT_TEMPLATE,
    )
    fit_images(processor, "llava", ImageSettings(config.image_fit))
    return processor
