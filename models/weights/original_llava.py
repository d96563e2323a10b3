"""Read a checkpoint in the layout of LLaVA's own code (`LlavaLlamaForCausalLM`) into transformers' classes.

Such releases, e.g. LLaVA-MORE and ReflectiVA, name the language model's weights as a Llama's, and the projector's
`model.mm_projector`. They hold the vision tower as `model.vision_tower.vision_tower`, or name it alone, and have no
processor.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import (
    AutoTokenizer,
    CLIPVisionModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaForConditionalGeneration,
    LlavaProcessor,
)

from reflectune.core.durable import read_json
from reflectune.core.errors import UserError
from reflectune.core.weights import UNLOADABLE, check_finite, check_shapes
from reflectune.models.rendering.chat_template import LLAVA_SYSTEM
from reflectune.models.rendering.image_config import ImageFit
from reflectune.models.weights.assembly import (
    UNUSED_OF_CLIP,
    Parts,
    add_tokens,
    join,
    load_part,
    make_processor,
    template_of,
)
from reflectune.models.weights.projector import PROJECTOR

TOWER: Final = "model.vision_tower.vision_tower."
"""Beginning of the names of the vision tower's weights."""
_LLAVA_15: Final[Mapping[str, tuple[Any, ...]]] = {
    "mm_projector_type": ("mlp2x_gelu",),
    "mm_vision_select_feature": (None, "patch"),
    "mm_vision_select_layer": (-2,),
    "mm_use_im_start_end": (None, False),
    "mm_patch_merge_type": (None, "flat"),
    "image_aspect_ratio": (None, "pad", "square"),
    "s2": (None, False),
}
"""Values in `config.json` of LLaVA-1.5's architecture, the one that transformers' classes have; None: left out."""


def read_original(
    folder: Path, vision: str, dtype: torch.dtype
) -> tuple[LlavaForConditionalGeneration, LlavaProcessor]:
    """Return the model of a checkpoint in the original layout, in evaluation mode, and a processor.

    The tokenizer's chat template begins with LLaVA's system turn unless a conversation has its own. A tokenizer
    without a template, as Vicuna's, gets LLaVA-1.5's.

    Args:
        folder: The checkpoint's folder, with safetensors.
        vision: Folder or hub id of the CLIP; "" for `mm_vision_tower` of the config. Its weights are replaced by the
            checkpoint's, if it holds any.
        dtype: Precision of the weights.

    Raises:
        UserError: The config asks for another architecture, a part can't be loaded, or weights are missing, unknown, of
            another shape or not finite.
    """
    settings = read_json(folder / "config.json", "the model's config")
    _check_architecture(folder, settings)
    vision = vision or str(settings.get("mm_vision_tower", ""))
    tokenizer = load_part(AutoTokenizer, str(folder), "checkpoint")
    held = _read_tensors(folder, (TOWER, *PROJECTOR))
    projector = {PROJECTOR[name]: value for name, value in held.items() if name in PROJECTOR}
    tower = load_part(CLIPVisionModel, vision, "vision", unused=UNUSED_OF_CLIP, dtype=dtype)
    tuned = {name.removeprefix(TOWER): value for name, value in held.items() if name.startswith(TOWER)}
    if tuned:
        _replace_weights(f"the vision tower of {folder}", tower, tuned)
    language = load_part(
        LlamaForCausalLM,
        str(folder),
        "checkpoint",
        unused=tuple(held),
        config=_language_config(settings),
        use_safetensors=True,
        dtype=dtype,
    )
    _check_projector(folder, projector, (tower.config.hidden_size, language.config.hidden_size))
    ends = _end_tokens(language, tokenizer)
    template = template_of(tokenizer, LLAVA_SYSTEM)
    add_tokens(language, tokenizer)
    model = join(language, tower, projector, tokenizer)
    model.generation_config.eos_token_id = ends
    fit: ImageFit = "pad" if settings.get("image_aspect_ratio") == "pad" else "crop"
    return model, make_processor(Parts(str(folder), vision, None, image_fit=fit), tower, tokenizer, template)


def _check_architecture(folder: Path, settings: Mapping[str, Any]) -> None:
    """Refuse a checkpoint whose architecture isn't LLaVA-1.5's."""
    odd = [f"{key}: {settings.get(key)}" for key, known in _LLAVA_15.items() if settings.get(key) not in known]
    if odd:
        raise UserError(f"`checkpoint`: {folder}/config.json has {', '.join(odd)}, which is not LLaVA-1.5's model")


def _language_config(settings: Mapping[str, Any]) -> LlamaConfig:
    """Return the language model's config: the settings that a Llama's has."""
    known = LlamaConfig().to_dict().keys() - {"architectures", "model_type", "_name_or_path"}
    return LlamaConfig.from_dict(
        {key: value for key, value in settings.items() if key in known or key.startswith("rope_")}
    )


def _read_tensors(folder: Path, beginnings: tuple[str, ...]) -> dict[str, Tensor]:
    """Return the tensors of a folder's safetensors whose names begin so."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"`checkpoint`: {folder} has no safetensors; download it again")
    tensors: dict[str, Tensor] = {}
    for path in files:
        try:
            with safe_open(path, framework="pt") as file:
                tensors |= {name: file.get_tensor(name) for name in file.keys() if name.startswith(beginnings)}  # noqa: SIM118
        except UNLOADABLE as error:
            raise UserError(f"`checkpoint`: cannot read {path}: {' '.join(str(error).split())[:300]}") from error
    return tensors


def _replace_weights(name: str, module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load a vision tower's weights, all of them, into a module of this architecture.

    transformers' own names have had `vision_model.` before them, which the original layout keeps.
    """
    own = module.state_dict()
    if not any(key.startswith("vision_model.") for key in own):
        weights = {key.removeprefix("vision_model."): value for key, value in weights.items()}
    check_shapes(name, weights, own)
    module.load_state_dict({key: weights[key] for key in own})
    check_finite(name, module)


def _check_projector(folder: Path, projector: Mapping[str, Tensor], widths: tuple[int, int]) -> None:
    """Refuse a projector that lacks weights, has other shapes or isn't finite."""
    seen, width = widths
    needed = {"linear_1.weight": (width, seen), "linear_1.bias": (width,)}
    needed |= {"linear_2.weight": (width, width), "linear_2.bias": (width,)}
    for published, name in PROJECTOR.items():
        if name not in projector:
            raise UserError(f"`checkpoint`: {folder} lacks the projector's {published}; download it again")
        if (shape := tuple(projector[name].shape)) != needed[name]:
            raise UserError(
                f"`checkpoint`: {published} of {folder} is {shape}, not {needed[name]}; is `vision` its CLIP?"
            )
        if not projector[name].isfinite().all():
            raise UserError(f"`checkpoint`: {published} of {folder} has NaN or infinite values; download it again")


def _end_tokens(language: Any, tokenizer: Any) -> list[int]:
    """Return the tokens that end a reply: those of the checkpoint's generation config, and the tokenizer's."""
    ends = language.generation_config.eos_token_id
    known = ends if isinstance(ends, list) else [] if ends is None else [ends]
    return sorted({*known, tokenizer.eos_token_id})
