import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from reflectune.models.loading import load
from reflectune.train.data.examples import load_examples
from reflectune.train.estimates.forecast import largest_batch, least_recomputation, patches, recomputation_line
from reflectune.train.estimates.from_shapes import forecast_from_shapes, report
from reflectune.train.estimates.memory import total
from reflectune.train.runs.preview import seconds_of_batch
from reflectune.train.runs.supervised import encoded_examples, fine_tune
from reflectune.train.settings.estimate import EstimateConfig
from reflectune.train.settings.sft import SftConfig
from reflectune.train.weights.loading import prepare_model

ROOT = Path(__file__).parents[3]


@pytest.fixture
def prepared(data_folder: Path, base_model) -> Callable[..., Any]:
    """A config, its model, and a sample of its examples."""

    def build(**changes: Any) -> Any:
        config = SftConfig(model=str(base_model("llava")), train_data=str(data_folder), output_dir="out", **changes)
        loaded = load(config.model, scheme="mr2ag")
        dataset = encoded_examples(*load_examples(config.sources()[0], config.scheme), loaded, config)
        return config, prepare_model(loaded, config), [dataset[i] for i in range(len(dataset))]

    return build


@pytest.mark.parametrize("in_half", [False, True])
def test_a_timed_batch_leaves_no_gradient(prepared, in_half: bool) -> None:
    config, model, sample = prepared(dtype="bfloat16")

    seconds = seconds_of_batch(config, model, sample, 4, torch.device("cpu"), recomputed=2, in_half=in_half)

    assert seconds is not None
    assert 0 < seconds < 60
    assert all(parameter.grad is None for parameter in model.parameters())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16 if in_half else torch.float32}


def test_packed_rows_are_timed_after_a_pass_that_compiles(prepared, differentiable_flex, monkeypatch) -> None:
    config, model, sample = prepared()
    passes: list[bool] = []
    forward = type(model).forward
    monkeypatch.setattr(
        type(model),
        "forward",
        lambda *args, **inputs: passes.append("packed_mask" in inputs) or forward(*args, **inputs),
    )

    assert seconds_of_batch(config, model, sample, 4, torch.device("cpu"), packs=True) is not None
    assert passes == [True] * 3


def test_what_does_not_fit_is_not_timed(prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    config, model, sample = prepared()

    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(type(model), "forward", full)
    assert seconds_of_batch(config, model, sample, 4, torch.device("cpu")) is None


def test_the_largest_batch_has_the_longest_questions_and_grows_where_the_sample_is_small(prepared) -> None:
    _, _, sample = prepared()
    lengths = sorted(sum(tree.length for tree in example.trees) for example in sample)

    two = largest_batch(sample, 2, patch_size=16)
    many = largest_batch(sample, 48, patch_size=16)

    assert (two.tokens, two.longest, two.trees) == (sum(lengths[-2:]), lengths[-1], 2)
    assert two.patches == 16  # both are about one image
    assert (many.tokens, many.trees) == (2 * sum(lengths), 48)


def test_patches_of_images_of_each_layout() -> None:
    assert patches({"pixel_values": torch.empty(2, 3, 28, 42)}, 14) == 2 * 6
    assert patches({"pixel_values": torch.empty(2, 5, 3, 28, 28)}, 14) == 2 * 5 * 4
    assert patches({"pixel_values": torch.empty(96, 1176)}, 14) == 96


def test_as_few_layers_are_recomputed_as_memory_asks_for(config, monkeypatch, capsys) -> None:
    run = config(gradient_checkpointing="auto", max_steps=1)
    same: dict[str, Any] = {"dtype": "bfloat16", "method": "lora", "per_device_train_batch_size": 2}
    shapes = EstimateConfig(**same)
    predicted = forecast_from_shapes(shapes, ROOT / "configs/architectures/llava15_7b.json")
    assert predicted.forward.attention == "packed"
    needs = {
        every: total(replace(predicted, forward=replace(predicted.forward, recomputed=every)).parts())
        for every in (0, 4, 3, 2, 1)
    }
    assert [*needs.values()] == sorted(needs.values(), reverse=True)
    for every, needed in needs.items():
        assert least_recomputation(replace(predicted, available=int(needed / 0.9) + 10)) == every
    assert least_recomputation(replace(predicted, available=needs[1] // 2)) == 1
    assert least_recomputation(predicted) == 1  # on a CPU
    asked = EstimateConfig(**same, gradient_checkpointing="auto", device_gib=40)
    estimated = forecast_from_shapes(asked, ROOT / "configs/architectures/llava15_7b.json")
    assert estimated.forward.recomputed == least_recomputation(replace(predicted, available=40 * 2**30)) != 1
    assert recomputation_line(estimated) in report(asked, estimated)

    monkeypatch.setattr("reflectune.train.runs.preview.device_memory", lambda device: 2**40)
    fine_tune(run)
    assert re.search(r"no layer is recomputed: the forecast is [\d.]+ MiB, of 1,024.0 GiB", capsys.readouterr().out)
