"""Fewer image tokens by interpolated positions, and a projector to start from."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import CLIPVisionConfig, CLIPVisionModel

from reflectune.core.errors import UserError
from reflectune.models.weights.assembly import load_part, shrink_images
from reflectune.models.weights.projector import PROJECTOR, read_projector, untrained_projector

SIDE, PATCH, SEEN, WIDTH = 64, 8, 32, 48


def make_tower(side: int = SIDE) -> CLIPVisionModel:
    torch.manual_seed(0)
    shape = {"hidden_size": SEEN, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    return CLIPVisionModel(CLIPVisionConfig(**shape, image_size=side, patch_size=PATCH)).eval()


@pytest.mark.parametrize("side", [32, 40, 96])
def test_interpolated_positions_compute_what_transformers_interpolates_at_every_call(side: int) -> None:
    whole, shrunk = make_tower(), make_tower()
    shrink_images(shrunk, side)
    pixels = torch.randn(2, 3, side, side)
    with torch.no_grad():
        expected = whole(pixels, interpolate_pos_encoding=True).last_hidden_state
        made = shrunk(pixels).last_hidden_state
    assert made.shape[1] == (side // PATCH) ** 2 + 1
    torch.testing.assert_close(made, expected)


def test_interpolated_positions_are_saved_and_the_class_tokens_position_is_kept(tmp_path: Path) -> None:
    whole, shrunk = make_tower(), make_tower()
    shrink_images(shrunk, 32)
    shrunk.save_pretrained(tmp_path)
    again = load_part(CLIPVisionModel, str(tmp_path), "vision")
    weights = {name: value for name, value in again.state_dict().items() if "position_embedding" in name}
    (kept,) = weights.values()
    assert kept.shape == (17, SEEN)
    (before,) = (value for name, value in whole.state_dict().items() if "position_embedding" in name)
    assert torch.equal(kept[0], before[0])
    assert again.config.image_size == 32


def test_the_towers_own_size_changes_nothing_and_half_a_patch_is_refused() -> None:
    tower = make_tower()
    before = {name: value.clone() for name, value in tower.state_dict().items()}
    shrink_images(tower, SIDE)
    assert all(torch.equal(value, before[name]) for name, value in tower.state_dict().items())
    for side in (36, 0, -8):
        with pytest.raises(UserError, match="multiple of the vision tower's patches, 8 pixels"):
            shrink_images(tower, side)


@pytest.mark.parametrize(
    ("change", "message"), [("drop", "lacks .*encoder.layers.1.mlp.fc1.bias"), ("add", "odd.weight")]
)
def test_weights_that_are_missing_or_more_are_named(change: str, message: str, tmp_path: Path) -> None:
    tower = make_tower()
    tower.save_pretrained(tmp_path)
    weights = tower.state_dict()
    if change == "drop":
        del weights[next(name for name in weights if name.endswith("encoder.layers.1.mlp.fc1.bias"))]
    else:
        weights["odd.weight"] = torch.ones(2)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=message):
        load_part(CLIPVisionModel, str(tmp_path), "vision")


@torch.no_grad()
def test_an_untrained_projectors_tokens_have_the_embeddings_scale_though_some_features_are_huge() -> None:
    tower = make_tower()
    for name, value in tower.named_parameters():
        if name.endswith("layers.1.mlp.fc2.weight"):
            value[3] *= 3000  # one feature of CLIP's kind of outliers, where the last but one layer ends
            value[4] *= 100
    embeddings = torch.randn(500, WIDTH) * 0.05 + 0.02
    weights = untrained_projector(tower, embeddings)
    pixels = torch.rand(6, 3, SIDE, SIDE) * 3 - 1.5
    seen = tower(pixels, output_hidden_states=True).hidden_states[-2][:, 1:].flatten(0, 1)
    assert seen.std(0).max() > 100 * seen.std(0).median()

    linear = torch.nn.functional.linear
    hidden = linear(seen, weights["linear_1.weight"], weights["linear_1.bias"])
    tokens = linear(torch.nn.functional.gelu(hidden), weights["linear_2.weight"], weights["linear_2.bias"])

    assert tokens.square().mean().sqrt() == pytest.approx(float(embeddings.square().mean().sqrt()), rel=0.5)
    without = seen.clone()
    without[:, 3] = seen[:, 3].mean()  # what varies in the other features is seen in the tokens too
    flat = linear(without, weights["linear_1.weight"], weights["linear_1.bias"])
    assert flat.std(0).mean() > 0.5 * hidden.std(0).mean()


def test_a_projector_is_read_from_safetensors_of_either_names(tmp_path: Path) -> None:
    weights = untrained_projector(make_tower(), torch.randn(50, WIDTH))
    save_file(weights, tmp_path / "ours.safetensors")
    save_file({name: weights[PROJECTOR[name]] for name in PROJECTOR}, tmp_path / "theirs.safetensors")
    for name in ("ours", "theirs"):
        held = read_projector(tmp_path / f"{name}.safetensors")
        assert all(torch.equal(held[key], weights[key]) for key in PROJECTOR.values())
    (tmp_path / "half.safetensors").write_bytes((tmp_path / "ours.safetensors").read_bytes()[:1000])
    with pytest.raises(UserError, match="not a file of weights only"):
        read_projector(tmp_path / "half.safetensors")
