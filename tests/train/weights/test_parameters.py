from typing import Any

import pytest
import torch

from reflectune.examples.miniature.models.architecture import FAMILIES, Family, build_model, train_tokenizer
from reflectune.train.weights.parameters import (
    count_by_tower,
    freeze_tower,
    freeze_unused_vision_layers,
    keep_trained_weights_in_fp32,
    tower_of,
)


def tiny(family: Family) -> torch.nn.Module:
    return build_model(family, train_tokenizer(["a gold tower"], 300, family), size="test")


@pytest.mark.parametrize(
    ("name", "tower"),
    [
        ("model.vision_tower.encoder.layers.0.mlp.fc1.weight", "vision tower"),
        ("model.visual.blocks.0.attn.qkv.weight", "vision tower"),
        ("model.visual.merger.mlp.0.weight", "projector"),
        ("model.multi_modal_projector.linear_1.weight", "projector"),
        ("model.language_model.layers.0.mlp.up_proj.weight", "language model"),
        ("base_model.model.model.language_model.layers.0.mlp.up_proj.lora_A.default.weight", "language model"),
        ("lm_head.weight", "language model"),
        ("base_model.model.lm_head.token_adapter.trainable_tokens_delta.default", "new tokens"),
    ],
)
def test_a_parameter_belongs_to_a_tower_by_its_name(name: str, tower: str) -> None:
    assert tower_of(name) == tower


@pytest.mark.parametrize("family", FAMILIES)
def test_counts_add_up_to_the_model_and_a_frozen_vision_tower_leaves_the_projector_training(family: Family) -> None:
    model = tiny(family)
    before = count_by_tower(model)
    freeze_tower(model, "vision tower")
    counts = count_by_tower(model)

    assert set(before) == {"vision tower", "projector", "language model"}
    assert sum(count.total for count in before.values()) == sum(p.numel() for p in model.parameters())
    assert all(count.trainable == count.total for count in before.values())
    assert counts["vision tower"].trainable == 0
    assert counts["projector"].trainable == counts["projector"].total
    assert counts["language model"].trainable == counts["language model"].total


@pytest.mark.parametrize(("feature_layer", "frozen"), [(-1, 0), (-2, 1), (1, 1)])
def test_layers_that_are_never_read_get_no_gradient(feature_layer: int, frozen: int) -> None:
    model = tiny("llava")
    config: Any = model.config
    config.vision_feature_layer = feature_layer
    ids = torch.tensor([[20, *[config.image_token_id] * 16, 21, 22]])
    model(input_ids=ids, pixel_values=torch.randn(1, 3, 64, 64), labels=ids).loss.backward()

    freeze_unused_vision_layers(model)

    still = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert still == {name for name, parameter in model.named_parameters() if parameter.grad is None}
    assert len({name.split(".")[4] for name in still if "encoder.layers" in name}) == frozen


def test_weights_that_train_are_kept_in_fp32() -> None:
    model = tiny("llava").bfloat16()
    freeze_tower(model, "vision tower")
    keep_trained_weights_in_fp32(model)

    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    assert {p.dtype for p in model.parameters() if not p.requires_grad} == {torch.bfloat16}
