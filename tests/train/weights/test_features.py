"""Training from cached features of a frozen vision tower equals training with the tower, which then isn't run."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn
from transformers import TrainingArguments
from transformers.models.clip.modeling_clip import CLIPVisionModel
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5VisionModel

from reflectune.core.errors import UserError
from reflectune.examples.miniature.models.architecture import FAMILIES, Family
from reflectune.models.attention.collation import loss_terms
from reflectune.models.loading import Loaded, load
from reflectune.train.data.examples import Collator, TrainingData, load_training_data
from reflectune.train.runs.arguments import common_arguments
from reflectune.train.runs.supervised import encoded_examples, fine_tune
from reflectune.train.settings.sft import SftConfig
from reflectune.train.weights.features import cache_features
from reflectune.train.weights.loading import prepare_model

TOWERS: dict[Family, Any] = {
    "llava": CLIPVisionModel,
    "qwen2_vl": Qwen2VisionTransformerPretrainedModel,
    "qwen3_5": Qwen3_5VisionModel,
}
FROZEN: dict[Family, list[str]] = {
    "llava": ["projector"],
    "qwen2_vl": ["language_model"],
    "qwen3_5": ["language_model"],
}


@pytest.fixture
def captions(config, plain_folder: Path, tmp_path: Path) -> Callable[..., SftConfig]:
    """Makes the settings of a short run on plain data with a frozen vision tower, from cached features."""

    def build(out: str = "out", family: Family = "llava", **changes: Any) -> SftConfig:
        values = {"scheme": "plain", "train_data": str(plain_folder), "train_towers": FROZEN[family]}
        return config(out, family, **{**values, "cache_features": str(tmp_path / "features"), **changes})

    return build


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The images that vision towers read, one number a pass."""
    read: list[int] = []

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(self: nn.Module, pixels: Any = None, *args: Any, **kwargs: Any) -> Any:
            pixels = kwargs.pop("pixel_values", kwargs.pop("hidden_states", pixels))
            read.append(len(kwargs.get("grid_thw", pixels)))
            return original(self, pixels, *args, **kwargs)

        return forward

    for tower in TOWERS.values():
        monkeypatch.setattr(tower, "forward", counted(tower.forward))
    return read


def files(run: SftConfig) -> dict[str, int]:
    """The files of the cache, and when they were written."""
    return {str(path): path.stat().st_mtime_ns for path in Path(run.cache_features).rglob("*") if path.is_file()}


def fill_cache(run: SftConfig, loaded: Loaded, data: TrainingData) -> None:
    """Cache the features of the data, as a run does before it trains."""
    args = TrainingArguments(**common_arguments(run))
    images = [(data.examples, data.image_roots)]
    cache_features(run.cache_features, loaded, images, args, trained_towers=run.trained_towers, autocast=run.precision)


def first_step(run: SftConfig, examples: int = 8) -> tuple[torch.Tensor, dict[str, torch.Tensor], dict[str, Any]]:
    """Loss and gradients of a batch, and the batch."""
    loaded = load(run.model, scheme=run.scheme)
    data = load_training_data(run.sources(), run.scheme)
    if run.cache_features:
        fill_cache(run, loaded, data)
    model = prepare_model(loaded, run)
    dataset = encoded_examples(data.examples, data.image_roots, loaded, run)
    batch = Collator(loaded.model)([dataset[index] for index in range(examples)])
    tensors = {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}
    loss, weight = loss_terms(model, tensors)
    (loss / weight).backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return loss.detach() / weight, gradients, batch


STAGE_2 = {"method": "lora", "train_towers": ["projector", "language_model"]}


@pytest.mark.parametrize(
    ("family", "changes"), [*((family, {}) for family in FAMILIES), ("llava", {"tree": False}), ("llava", STAGE_2)]
)
def test_loss_and_gradients_are_those_of_the_uncached_run(captions, family: Family, changes: dict[str, Any]) -> None:
    run = captions(family=family, **changes)
    loss, gradients, batch = first_step(run.model_copy(update={"cache_features": ""}))
    cached_loss, cached_gradients, cached_batch = first_step(run)

    assert "pixel_values" in batch
    assert "pixel_values" not in cached_batch
    torch.testing.assert_close(cached_loss, loss, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(cached_gradients, gradients, rtol=1e-5, atol=1e-6)
    assert any("multi_modal_projector" in name for name in gradients) == (family == "llava")


@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
def test_each_image_is_read_once_and_none_while_training(captions, family: Family, passes) -> None:
    fine_tune(captions("one", family, max_steps=1))
    assert passes == [1, 1, 1]  # three colours, of 24 questions

    written = files(captions())
    fine_tune(captions("two", family, max_steps=1))
    assert passes == [1, 1, 1]
    assert files(captions()) == written
    assert len(written) == 3


def test_validation_of_gates_and_answers_reads_from_the_cache_too(captions, plain_folder, passes, history) -> None:
    run = captions(eval_data=str(plain_folder / "train.parquet"), max_steps=2, eval_steps=1, eval_answers=4)
    fine_tune(run)

    assert passes == [1, 1, 1]
    assert all("eval_answer_exact_match" in row for row in history(run.output_dir) if "eval_loss" in row)


def test_a_run_may_resume_without_its_cache(captions, interrupted, losses) -> None:
    few = functools.partial(captions, max_steps=3, save_steps=1)
    fine_tune(few("straight"))

    interrupted(few("resumed"), 2)
    fine_tune(few("resumed", cache_features=""))

    straight, resumed = (losses(captions(out).output_dir) for out in ("straight", "resumed"))
    assert resumed == pytest.approx(straight, abs=1e-4)


def test_the_projector_of_a_finished_stage_shares_the_cache_and_another_tower_does_not(
    captions, passes, tmp_path
) -> None:
    first = captions("first", max_steps=1)
    fine_tune(first)
    fine_tune(captions("second", model=first.output_dir, max_steps=1))
    assert len(passes) == 3

    other = load(first.model)
    with torch.no_grad():
        next(other.model.model.vision_tower.parameters()).add_(1e-3)
    other.model.save_pretrained(tmp_path / "other")
    other.processor.save_pretrained(tmp_path / "other")
    fine_tune(captions("third", model=str(tmp_path / "other"), max_steps=1))
    assert len(passes) == 6


def test_a_changed_image_is_read_again(captions, passes, data_folder) -> None:
    fine_tune(captions("one", max_steps=1))
    Image.new("RGB", (70, 64), (1, 2, 3)).save(data_folder / "images" / "red.png")

    fine_tune(captions("two", max_steps=1))

    assert len(passes) == 4


@pytest.mark.slow
def test_two_processes_share_the_reading_and_train_as_one(captions, finish, weights) -> None:
    one, two = captions("one"), captions("two", per_device_train_batch_size=2)
    finish(two, processes=2)
    written = files(one)
    fine_tune(one)

    assert files(one) == written
    assert len(written) == 3
    torch.testing.assert_close(weights(two.output_dir), weights(one.output_dir), rtol=0, atol=1e-4)


def test_a_tower_that_trains_is_refused(captions) -> None:
    printed = "`cache_features` needs a vision tower that stays as it is, and it trains"
    assert any(printed in issue for issue in captions(train_towers=[]).problems())
    assert captions(train_towers=["projector", "language_model"]).problems() == []


def test_a_projector_inside_of_its_tower_can_not_train_from_cached_features(captions) -> None:
    with pytest.raises(UserError, match="the projector of qwen2_vl is part of its vision tower"):
        fine_tune(captions(family="qwen2_vl", train_towers=["projector"]))


def test_a_deleted_or_damaged_file_names_the_example_and_what_to_do(captions) -> None:
    run = captions()
    loaded: Loaded = load(run.model, scheme=run.scheme)
    data = load_training_data(run.sources(), run.scheme)
    fill_cache(run, loaded, data)
    dataset = encoded_examples(data.examples, data.image_roots, loaded, run)
    paths = [Path(path) for path in files(run)]

    for path in paths:
        path.write_bytes(b"half")
    with pytest.raises(UserError, match=r"training example k0 .*safetensors is damaged .*; delete it"):
        dataset[0]
    for path in paths:
        path.unlink()
    with pytest.raises(UserError, match=r"training example k0 .* the image's features are not in"):
        dataset[0]


def test_a_dry_run_fills_nothing(captions, capsys: pytest.CaptureFixture[str]) -> None:
    run = captions(dry_run=True)
    fine_tune(run)

    assert "features: those of 3 images would be cached in" in capsys.readouterr().out
    assert not Path(run.cache_features).exists()
