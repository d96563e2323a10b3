import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from reflectune.examples.miniature.models.architecture import Family
from reflectune.models.loading import load
from reflectune.models.weights.quantization import Quantization, quantized_layers
from reflectune.train.estimates.activations import Activations
from reflectune.train.estimates.memory import (
    NEW_TOKENS,
    Division,
    WeightCounts,
    count_weights,
    memory,
    nf4_bytes,
    planned_weights,
)
from reflectune.train.runs.launch import division
from reflectune.train.settings.sft import SftConfig
from reflectune.train.weights.loading import prepare_model

BILLION = 10**9
FULL = WeightCounts(7 * BILLION, 0, 4, 0, 2 * 10**8, BILLION)
NOTHING = Activations(0, 0, 0)


def held(weights: WeightCounts, kind: str, processes: int, compute: int = 2, **offload: bool) -> dict[str, int]:
    """Bytes by name, those of one name together."""
    bytes_by_name: dict[str, int] = {}
    for part in memory(weights, NOTHING, Division(kind, processes, **offload), compute, accelerator=False):
        bytes_by_name[part.name] = bytes_by_name.get(part.name, 0) + part.bytes
    return bytes_by_name


def test_one_process_holds_sixteen_bytes_a_weight_and_casts_in_half_precision() -> None:
    assert held(FULL, "", 1, 4) == {"weights": 28 * BILLION, "gradients": 28 * BILLION, "moments": 56 * BILLION}
    assert held(FULL, "", 1, 2)["casts"] == 14 * BILLION
    assert held(FULL, "", 8, 4)["buffers"] == 28 * BILLION  # DDP's


def test_zero_2_and_3_divide_gradients_masters_and_moments_in_float32() -> None:
    """2 and 16 / N bytes a weight; ZeRO-3 divides the 2 too, and copies gradients into one tensor to step."""
    two, three = held(FULL, "zero2", 8), held(FULL, "zero3", 8)

    assert sum(two.values()) - two["buffers"] == (2 + 16 / 8) * 7 * BILLION
    assert two["buffers"] == (2 + 4) * 5 * 10**8
    assert sum(three.values()) - three["buffers"] - three["gathered"] == (18 + 4) / 8 * 7 * BILLION
    assert three["gathered"] == 2 * 1_050_000_000


def test_what_zero_1_and_fsdp_divide() -> None:
    one, fsdp = held(FULL, "zero1", 7, 4), held(FULL, "fsdp", 7, 2)

    assert (one["weights"], one["gradients"], one["moments"]) == (28 * BILLION, 28 * BILLION, 8 * BILLION)
    assert (fsdp["weights"], fsdp["gradients"], fsdp["moments"]) == (4 * BILLION, 4 * BILLION, 8 * BILLION)
    assert fsdp["gathered"] == 2 * (BILLION + 2 * 2 * 10**8)
    assert fsdp["buffers"] == (2 + 4) * BILLION


def test_offloading_leaves_gathered_weights_and_activations() -> None:
    bytes_by_name = held(FULL, "zero3", 8, offloads_optimizer=True, offloads_weights=True)

    assert set(bytes_by_name) == {"gathered", "buffers"}


def test_zero_3_never_holds_more_of_a_small_model_than_the_whole() -> None:
    small = replace(FULL, trained=10**8)

    assert held(small, "zero3", 8)["gathered"] == 2 * 10**8


ZERO_3 = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}
OFFLOADING = {"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "cpu"}
OFFLOADING |= {"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "none"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Division("", 4)),
        (ZERO_3, Division("zero3", 4)),
        (ZERO_3 | OFFLOADING, Division("zero3", 4, offloads_optimizer=True)),
        ({"ACCELERATE_USE_FSDP": "true", "FSDP_OFFLOAD_PARAMS": "true"}, Division("fsdp", 4, True, True)),
    ],
)
def test_the_kind_of_sharding_is_the_launchers(environment: dict[str, str], expected: Division) -> None:
    assert division(environment, 4) == expected


def test_deepspeeds_own_file_says_if_weights_are_offloaded(tmp_path: Path) -> None:
    file = tmp_path / "zero.json"
    file.write_text('{"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}')
    environment = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_CONFIG_FILE": str(file)}

    assert division(environment, 2) == Division("zero3", 2, offloads_weights=True)


@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_weights_counted_from_shapes_are_those_of_the_model_that_trains(
    base_model, family: Family, method: Any
) -> None:
    if method == "qlora" and importlib.util.find_spec("bitsandbytes") is None:
        pytest.skip("needs bitsandbytes")
    config = SftConfig(model=str(base_model(family, size="base")), method=method, train_towers=["language_model"])
    four = Quantization("float32") if method == "qlora" else None
    real = count_weights(prepare_model(load(config.model, scheme="mr2ag", quantization=four), config))

    planned = planned_weights(load(config.model).model, config, config.precision)

    width = load(config.model).model.config.get_text_config().hidden_size
    new_rows = NEW_TOKENS * width * (1 if family == "qwen2_vl" else 2)  # added to the table, which the plan leaves out
    assert real.quantized == planned.quantized
    assert real.trained + real.frozen == planned.trained + planned.frozen + new_rows
    assert real.trained == planned.trained + (new_rows if method == "full" else 0)


@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("towers", [[], ["projector"]])
def test_frozen_weights_of_a_full_training_keep_half_precision_if_stored_in_it(base_model, stored, towers) -> None:
    model = load(str(base_model("llava", size="base"))).model.to(getattr(torch, stored))
    model.config.dtype = getattr(torch, stored)
    config = SftConfig(method="full", train_towers=towers, dtype="bfloat16")
    keeps_half = towers and stored == "bfloat16"
    assert planned_weights(model, config, config.precision).frozen_bytes == (2 if keeps_half else 4)


def test_four_bits_take_what_bitsandbytes_holds(base_model) -> None:
    pytest.importorskip("bitsandbytes")
    layers = quantized_layers(load(str(base_model(size="base")), quantization=Quantization("float32")).model).values()
    states = [layer.weight.quant_state for layer in layers]
    scales = [scale for state in states for scale in (state.absmax, state.state2.absmax)]
    whole = sum(layer.weight.nbytes for layer in layers) + sum(scale.nbytes for scale in scales)

    assert whole == pytest.approx(nf4_bytes(sum(state.shape.numel() for state in states)), rel=0.01)


def test_adapters_leave_gradients_and_states_of_themselves_alone() -> None:
    weights = replace(FULL, trained=10**7, frozen=BILLION, frozen_bytes=2, quantized=6 * BILLION)
    bytes_by_name = held(weights, "", 1)

    assert bytes_by_name["moments"] == 8 * 10**7
    assert bytes_by_name["weights"] == nf4_bytes(6 * BILLION) + 2 * BILLION + 4 * 10**7
    assert nf4_bytes(6 * BILLION) == pytest.approx((0.5 + 0.127 / 8) * 6 * BILLION, rel=1e-3)


@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
@pytest.mark.parametrize(
    "changes",
    [{"train_towers": ["projector"]}, {"method": "lora", "train_towers": ["projector", "language_model"]}],
    ids=["stage 1", "stage 2"],
)
def test_weights_of_named_towers_are_counted_from_shapes_too(
    base_model, family: Family, changes: dict[str, Any]
) -> None:
    config = SftConfig(model=str(base_model(family, size="base")), scheme="plain", **changes)
    real = count_weights(prepare_model(load(config.model, scheme="plain"), config))

    planned = planned_weights(load(config.model).model, config, config.precision)

    rows = planned.trained - real.trained  # planned for four reflection tokens, which plain doesn't have
    width = load(config.model).model.config.get_text_config().hidden_size
    assert rows == (NEW_TOKENS * width * (1 if family == "qwen2_vl" else 2) if config.method == "lora" else 0)
    assert planned.frozen == real.frozen
