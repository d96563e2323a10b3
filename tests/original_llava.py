"""A narrow random LLaVA in the layout of LLaVA's own code."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from reflectune.examples.miniature.models.architecture import build_clip, build_clip_processor, train_tokenizer
from reflectune.models.weights.original_llava import TOWER
from reflectune.models.weights.projector import PROJECTOR

SEEN, WIDTH = 32, 48
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] + ': ' + m['content'] | trim + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def write_original(
    folder: Path, clip: Path, *, tower: bool = True, template: str | None = TEMPLATE, **more: Any
) -> None:
    """Write a random checkpoint as LLaVA's own code saves one, and a CLIP.

    Args:
        folder: The checkpoint's.
        clip: The CLIP's.
        tower: True to hold a vision tower that was tuned.
        template: Chat template of the tokenizer.
        more: Settings of `config.json`.
    """
    torch.manual_seed(0)
    words = train_tokenizer(["user: When? assistant: in 1872"], 300, "clip")
    words.chat_template, words.pad_token = template, None
    shape = {"hidden_size": WIDTH, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    llama = LlamaForCausalLM(LlamaConfig(vocab_size=len(words), **shape, num_key_value_heads=2, rope_theta=500.0))
    words.save_pretrained(folder)
    tokenizer = train_tokenizer(["a gold tower"], 280, "clip")
    build_clip(tokenizer, size="test").save_pretrained(clip)
    build_clip_processor(tokenizer).image_processor.save_pretrained(clip)
    config: dict[str, Any] = {"architectures": ["LlavaLlamaForCausalLM"], "model_type": "llava_llama", **shape}
    config |= {"vocab_size": len(words), "num_key_value_heads": 2, "rope_theta": 500.0, "torch_dtype": "float32"}
    config |= {"mm_projector_type": "mlp2x_gelu", "mm_vision_select_layer": -2, "mm_vision_select_feature": "patch"}
    config |= {"mm_use_im_start_end": False, "mm_vision_tower": str(clip), "mm_hidden_size": SEEN}
    config |= {"image_aspect_ratio": "pad", "tokenizer_model_max_length": 2048, "eos_token_id": [5, 7], **more}
    (folder / "config.json").write_text(json.dumps(config))
    weights = dict(llama.state_dict())
    layers = nn.Sequential(nn.Linear(SEEN, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
    weights |= {f"model.mm_projector.{name}": value for name, value in layers.state_dict().items()}
    if tower:
        tuned = build_clip(tokenizer, size="test").vision_model.state_dict()
        weights |= {f"{TOWER}vision_model.{key}": value + 0.01 for key, value in tuned.items() if "ids" not in key}
    assert set(PROJECTOR) < weights.keys()
    places = {}
    for number in (1, 2):
        half = dict(list(weights.items())[number - 1 :: 2])
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({name: value.contiguous() for name, value in half.items()}, folder / file, {"format": "pt"})
        places |= dict.fromkeys(half, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
