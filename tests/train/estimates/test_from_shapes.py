import json
import re
import sys
from pathlib import Path

import pytest
from PIL import Image
from transformers import AutoConfig, InternVLConfig
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

from reflectune.core.errors import UserError
from reflectune.train import estimate
from reflectune.train.estimates.architecture import Architecture, image_patches, image_tokens
from reflectune.train.estimates.from_shapes import forecast_from_shapes, long_batch
from reflectune.train.settings.estimate import EstimateConfig

ROOT = Path(__file__).parents[3]
RECIPE = ROOT / "configs/recipes/mr2ag_full.yaml"
SHAPES = ROOT / "configs/architectures"


def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", ["estimate", "--config", str(RECIPE), *arguments])
    estimate.estimate.main()
    return capsys.readouterr().out


def test_a_recipe_is_estimated_without_its_weights(capsys, monkeypatch) -> None:
    divided = printed(capsys, monkeypatch, "--processes", "8", "--sharding", "zero3", "--device_gib", "80")
    alone = printed(capsys, monkeypatch, "--device_gib", "80")

    assert "6,759,919,616 of 7,063,427,072 weights train" in divided
    assert re.search(r"moments +6\.3 GiB .* one part of 8", divided)
    assert "fits into 80.0 GiB" in divided
    assert "does not fit into 80.0 GiB" in alone


def test_a_folders_own_config_decides_the_shapes(base_model, capsys, monkeypatch) -> None:
    model = base_model("qwen2_vl")

    assert f"{model}, full: " in printed(
        capsys, monkeypatch, "--model", str(model), "--image_fit", "processor", "--image_tokens", "16"
    )


def test_a_model_without_shapes_is_refused(base_model, capsys, monkeypatch, tmp_path) -> None:
    for model, message in (
        ("nobody/has-this-model", "error: nobody/has-this-model is neither a folder nor a model on the Hub"),
        ("checkpoints/another", "error: checkpoints/another is neither a folder nor a model on the Hub"),
        (str(tmp_path / "none"), f"  `model` {tmp_path / 'none'} does not exist, and its folder does"),
        ("miniature/none", "  `model` no model miniature/none; "),
        ("pocket/none", "  `model` no model pocket/none; "),
    ):
        monkeypatch.setattr(sys, "argv", ["estimate", "--config", str(RECIPE), "--model", model])
        with pytest.raises(SystemExit):
            estimate.estimate.main()
        captured = capsys.readouterr()
        lines = captured.err.removeprefix("error: the config has problems:\n").splitlines()
        assert len(lines) == 1
        assert lines[0].startswith(message)
        assert not captured.out


def test_a_shipped_model_and_an_adapters_base_are_estimated_by_their_own_shapes(capsys, monkeypatch, tmp_path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "reflectune.json").write_text('{"base_model": "miniature/llava", "seed": 0}')
    miniature = printed(capsys, monkeypatch, "--model", "miniature/llava").split(", full: ")[1]
    adapter = printed(capsys, monkeypatch, "--model", str(tmp_path)).split(", full: ")[1]
    assert miniature == adapter
    assert "7,063,427,072" not in miniature


def test_a_large_image_of_each_family() -> None:
    tokens = {}
    for folder in ("llava15_7b", "llava_next_7b", "qwen2_vl_7b", "qwen3_vl_4b", "gemma3_4b"):
        path = SHAPES / f"{folder}.json"
        recipe = EstimateConfig(per_device_train_batch_size=1, branches=1, branch_tokens=100)
        batch = forecast_from_shapes(recipe, path).batch
        tokens[folder] = batch.tokens - 160

    assert batch.patches == 64**2  # Gemma-3's tower averages 16 of them to a token
    of_qwen = {"qwen2_vl_7b": 1275, "qwen3_vl_4b": 976}
    assert tokens == {"llava15_7b": 576, "llava_next_7b": 2880, **of_qwen, "gemma3_4b": 256}


def test_internvls_squares_have_two_sides_and_its_patches_are_joined() -> None:
    config = InternVLConfig()
    assert Architecture.of(config).patch_size == 14
    assert image_patches(config, config.image_seq_length) == (448 // 14) ** 2


def test_a_large_image_of_internvl_has_the_tiles_of_its_processor() -> None:
    tiles = GotOcr2ImageProcessorPil(size={"height": 448, "width": 448})
    wide = tiles([Image.new("RGB", (1600, 1200))], crop_to_patches=True, return_tensors="pt")
    config = InternVLConfig()
    assert image_tokens(config) == config.image_seq_length * len(wide["pixel_values"]) == 3328


def test_only_what_a_launch_offloads_is_left_out() -> None:
    (problem,) = EstimateConfig(offload=True).problems()
    assert "`offload` needs `sharding`" in problem
    (problem,) = EstimateConfig(method="lora", sharding="zero3").problems()
    assert "`method: lora` under zero3 is not supported" in problem
    path = SHAPES / "llava15_7b.json"
    parts = {
        (kind, offload): forecast_from_shapes(EstimateConfig(sharding=kind, processes=8, offload=offload), path).parts()
        for kind in ("zero2", "zero3")
        for offload in (False, True)
    }
    assert parts["zero2", True][0] == parts["zero2", False][0]  # weights, which zero2 can't offload
    assert parts["zero3", True][0] != parts["zero3", False][0]


def test_a_bound_of_pixels_bounds_the_tokens_that_are_estimated() -> None:
    tokens = {}
    for folder, pixels in (("qwen2_vl_7b", 256 * 28 * 28), ("qwen2_vl_7b", 0), ("qwen3_vl_4b", 256 * 32 * 32)):
        path = SHAPES / f"{folder}.json"
        recipe = EstimateConfig(per_device_train_batch_size=1, branches=1, branch_tokens=100, max_pixels=pixels)
        batch = forecast_from_shapes(recipe, path).batch
        tokens[folder, pixels] = batch.tokens - 160
        assert batch.patches == 4 * tokens[folder, pixels]

    assert tokens == {("qwen2_vl_7b", 200_704): 256, ("qwen2_vl_7b", 0): 1275, ("qwen3_vl_4b", 262_144): 256}
    with pytest.raises(UserError, match="this is a llava"):
        forecast_from_shapes(EstimateConfig(max_pixels=200_704), SHAPES / "llava15_7b.json")


def test_a_batch_grows_with_its_questions_and_their_branches() -> None:
    facts = json.loads((SHAPES / "llava15_7b.json").read_text())["config"]
    model = AutoConfig.for_model(**facts)
    one = long_batch(EstimateConfig(per_device_train_batch_size=1), model)
    four = long_batch(EstimateConfig(per_device_train_batch_size=4), model)

    assert (four.tokens, four.longest, four.trees) == (4 * one.tokens, one.longest, 4)
    assert one.tokens == 576 + 60 + 6 * 250
    rows = long_batch(EstimateConfig(per_device_train_batch_size=1, tree=False), model)
    assert (rows.tokens, rows.longest, rows.patches) == (6 * (576 + 60 + 250), 576 + 60 + 250, 6 * one.patches)
    assert Architecture.of(model).head_size == 128


def test_cached_features_are_counted_and_refused_where_they_can_not_be(capsys, monkeypatch) -> None:
    qwen = SHAPES / "qwen2_vl_7b.json"
    frozen = EstimateConfig(train_towers=["language_model"], max_pixels=200_704, cache_features="anywhere")

    assert forecast_from_shapes(frozen, qwen).feature_bytes == 256 * 3584 * 2  # bfloat16, as on a GPU
    with pytest.raises(UserError, match="the projector of qwen2_vl is part of its vision tower"):
        forecast_from_shapes(frozen.model_copy(update={"train_towers": ["projector"]}), qwen)
    with pytest.raises(UserError, match="this is a qwen3_vl"):
        forecast_from_shapes(frozen, SHAPES / "qwen3_vl_4b.json")
    assert "features: 2.2 MiB an image on the disk" in printed(capsys, monkeypatch, "--cache_features", "anywhere")
