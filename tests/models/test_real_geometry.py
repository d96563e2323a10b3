"""Heads and image tokens of LLaVA-1.5-7B and Qwen2-VL-7B, one narrow random layer, through the same code."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForImageTextToText,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    PreTrainedModel,
    Qwen2VLConfig,
)

from reflectune.models.attention.collation import TreeCollator
from reflectune.models.attention.tree import IGNORE, Segment, Tree
from reflectune.models.attention.tree_mask import STRIDE, layout_of
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.rendering.renderer import Rendered

IMAGE, GATE, BRANCH = 3, 7, 20


def llava() -> tuple[PreTrainedModel, Rendered]:
    """As `config.json` of llava-hf/llava-1.5-7b-hf has it, but for depth, widths and vocabulary."""
    shape = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    vision = CLIPVisionConfig(**shape, image_size=336, patch_size=14, projection_dim=768)
    text = LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=32,
        head_dim=128,
        max_position_embeddings=4096,
    )
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_id=IMAGE, vision_feature_layer=-1)
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="sdpa", dtype=torch.bfloat16)
    ids = [1, *[IMAGE] * 576, *range(20, 44)]
    return model.eval(), Rendered(ids, ids, {"pixel_values": torch.rand(1, 3, 336, 336)})


def qwen() -> tuple[PreTrainedModel, Rendered]:
    """As `config.json` of Qwen/Qwen2-VL-7B-Instruct has it, but for depth, widths and vocabulary."""
    text = {"vocab_size": 512, "hidden_size": 3584, "intermediate_size": 64, "num_hidden_layers": 1}
    text |= {"num_attention_heads": 28, "num_key_value_heads": 4, "max_position_embeddings": 32_768}
    rope = {"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 1e6}
    vision = {"depth": 1, "embed_dim": 64, "hidden_size": 3584, "num_heads": 4, "patch_size": 14, "mlp_ratio": 1}
    config = Qwen2VLConfig(
        text_config={**text, "rope_parameters": rope, "bos_token_id": 1, "eos_token_id": 2},
        vision_config={**vision, "spatial_merge_size": 2, "temporal_patch_size": 2},
        image_token_id=IMAGE,
        video_token_id=4,
        vision_start_token_id=5,
        vision_end_token_id=6,
    )
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="sdpa", dtype=torch.bfloat16)
    ids = [1, 5, *[IMAGE] * 576, 6, *range(20, 41)]
    vision_inputs = {"pixel_values": torch.rand(48 * 48, 1176), "image_grid_thw": torch.tensor([[1, 48, 48]])}
    return model.eval(), Rendered(ids, ids, vision_inputs)


@pytest.mark.parametrize(("made", "key_heads", "after_image"), [(llava, 32, 600), (qwen, 4, 2 + 24 + 22)])
def test_caches_positions_and_segments_have_the_true_lengths(made, key_heads, after_image):
    model, prefix = made()
    renderer = SimpleNamespace(end_token_id=2, decode=str)
    loaded: Any = SimpleNamespace(model=model, renderer=renderer, name="narrow", calibration={})
    engine = PrefixEngine(loaded)
    branches = [[30 + k, *range(50, 50 + BRANCH - 1)] for k in range(3)]
    opened = engine.read([prefix])
    state = engine.branch(opened, [branches])
    length = len(prefix.ids)
    assert opened.chunks[0].next_position.tolist() == [after_image if made is qwen else length]
    (chunk,) = state.chunks
    shapes = [tuple(level.cache[0][0].shape) for level in chunk.rows.levels]
    assert shapes == [(1, key_heads, length, 128), (3, key_heads, BRANCH, 128)]
    assert chunk.rows.next_position.tolist() == [opened.chunks[0].next_position.item() + BRANCH] * 3
    gates = state.probabilities([GATE])[0]
    assert gates.shape == (3, 1)
    assert torch.isfinite(gates).all()
    tree = Tree(
        Segment.of(prefix.ids, [IGNORE] * length), tuple(Segment.of(ids, ids) for ids in branches), prefix.vision
    )
    batch = TreeCollator(model)([tree, tree])
    assert batch["input_ids"].shape == (1, 2 * tree.length) == (1, 2 * (length - 1 + 3 * (BRANCH + 1)))
    assert batch["position_ids"].shape == ((3, 1, 2 * tree.length) if made is qwen else (1, 2 * tree.length))
    positions = batch["position_ids"].reshape(-1, 2 * tree.length)[0]
    starts = positions[[length - 1, length + BRANCH, length + 2 * BRANCH + 1]].tolist()
    assert starts == [opened.chunks[0].next_position.item() - 1] * 3  # each branch repeats the prefix's last token
    assert batch["attention_mask"].unique().tolist() == [0, 1, 2, 3, STRIDE, STRIDE + 1, STRIDE + 2, STRIDE + 3]
    layout = layout_of(batch["attention_mask"])
    assert layout.prefixes.shape == (2, length - 1)
    assert sorted((layout.rows < layout.none).sum(1).tolist()) == sorted([length - 1] * 2 + [BRANCH + 1] * 6)
