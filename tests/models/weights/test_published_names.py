"""Names of saved weights: those of the published checkpoints, which servers load, wherever the model came from."""

from pathlib import Path

import pytest
from safetensors import safe_open

from reflectune.models.loading import load, save_checkpoint

_LLAVA = {"vision_tower.vision_model", "multi_modal_projector", "language_model.model", "language_model.lm_head"}
_QWEN_2 = {"visual", "model.embed_tokens", "model.layers", "model.norm", "lm_head"}
PUBLISHED = {
    "llava": _LLAVA,
    "llava_next": _LLAVA | {"image_newline"},
    "qwen2_vl": _QWEN_2,
    "qwen2_5_vl": _QWEN_2,
    "qwen3_vl": {"model.visual", "model.language_model", "lm_head"},
    "qwen3_5": {"model.visual", "model.language_model", "lm_head"},
    "gemma3": _LLAVA - {"language_model.lm_head"},  # a tied one
}
"""Beginnings of the names in the repositories llava-hf/…, Qwen/… and google/…."""


@pytest.mark.parametrize("family", PUBLISHED)
def test_weights_are_saved_under_published_names(family: str, write_base, tmp_path: Path) -> None:
    write_base(family, tmp_path / "base")  # built from a config: its tower's names lack a prefix
    loaded = load(str(tmp_path / "base"), scheme="mr2ag")
    assert loaded.scheme is not None
    save_checkpoint(tmp_path / "saved", loaded.model, loaded.processor, loaded.scheme, {})

    with safe_open(tmp_path / "saved/model.safetensors", framework="numpy") as weights:
        names = set(weights.keys())
    beginnings = {
        name: [one for one in PUBLISHED[family] if name.startswith(f"{one}.") or name == one] for name in names
    }
    assert [name for name, found in beginnings.items() if len(found) != 1] == []
    assert {found[0] for found in beginnings.values()} == PUBLISHED[family]
