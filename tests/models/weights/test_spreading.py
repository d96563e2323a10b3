"""Layers on several devices give the results of one: gates, scores, answers, given and drawn."""

import copy
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import dispatch_model

from reflectune.core.errors import UserError
from reflectune.models.loading import Loaded, load, save_checkpoint
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.schemes.mr2ag import SCHEME as MR2AG
from reflectune.models.schemes.passages import PassageScheme
from reflectune.models.weights.quantization import Quantization
from reflectune.models.weights.spreading import input_device, plan_device_map, spread

SHORT = ["When was the tower built?", "Who?", "Who?", "Made of?"]
QUESTIONS = {"short": SHORT, "long": [f"{text} It is a tower of oak that Ada Byron built." * 3 for text in SHORT]}
"""The long ones are beyond the tokens up to which shared ones are copied on a CPU."""


@pytest.fixture(scope="module", params=["llava", "qwen2_vl"])
def loaded(request: pytest.FixtureRequest, make: SimpleNamespace) -> Loaded:
    return make.loaded(request.param)


@pytest.fixture(scope="module")
def expected(loaded: Loaded, make: SimpleNamespace) -> dict[str, list[Any]]:
    return {questions: said(loaded, loaded.model, make, questions) for questions in QUESTIONS}


def said(loaded: Loaded, model: Any, make: SimpleNamespace, questions: str) -> list[Any]:
    """All that the engine says of four questions, two of them about the same image, and of their passages."""
    engine = PrefixEngine(SimpleNamespace(**{**vars(loaded), "model": model}), token_budget=600)
    engine.image_prefixes.keep(2)
    renderer = loaded.renderer
    images = [make.image(seed, size) for seed, size in ((0, (80, 60)), (1, (64, 64)), (1, (64, 64)), (2, (30, 120)))]
    prefixes = engine.read([renderer.prefix(*pair) for pair in zip(QUESTIONS[questions], images, strict=True)])

    def branch(q: int, k: int) -> list[int]:
        passage = make.passage(f"Built in 18{q}{k}." + " Of oak." * 4 * k)
        return PassageScheme.of(renderer).passage_branch(renderer, passage)

    state = engine.branch(prefixes, [[branch(q, k) for k in range(count)] for q, count in enumerate((3, 0, 1, 2))])
    rows = [(0, 1), (3, 0), (0, 2), (2, 0)]
    ids = [renderer.token_id(role) for role in ("retrieve", "no_retrieve", "relevant")]
    return [
        prefixes.probabilities(ids).tolist(),
        [relevance.tolist() for relevance in state.probabilities(ids)],
        engine.generate(state, rows, ids[2:], max_new_tokens=6),
        engine.generate(prefixes, [(1, 0), (2, 0)], max_new_tokens=6),
        engine.score(state, rows, [[5, 6], [7], [8, 9, 10], [5]]),
    ]


def layers_of(model: Any) -> int:
    return len(model.model.language_model.layers)


@pytest.mark.parametrize("questions", QUESTIONS)
def test_behind_accelerates_hooks_all_is_the_same(loaded, make, expected, questions: str) -> None:
    model = dispatch_model(copy.deepcopy(loaded.model), {"": "cpu"}, force_hooks=True)
    assert sum("forward" in vars(module) for module in model.modules()) > layers_of(model)
    assert said(loaded, model, make, questions) == expected[questions]


@pytest.mark.parametrize(("first", "second"), [("cpu", "disk"), ("disk", "cpu"), ("disk", "disk")])
def test_with_layers_on_the_disk_all_is_the_same(
    loaded, make, expected, pretended, tmp_path, first: str, second: str
) -> None:
    model = copy.deepcopy(loaded.model)
    places = pretended.halves(model, first, second)
    model = dispatch_model(model, places, offload_dir=tmp_path, skip_keys=["past_key_values"])
    away = [name for name, parameter in model.named_parameters() if parameter.device.type == "meta"]
    assert len(away) > layers_of(model)  # weights that are there in a forward pass alone
    assert input_device(model) == torch.device("cpu")
    assert said(loaded, model, make, "long") == expected["long"]


def test_two_pretended_devices_refuse_each_others_tensors(pretended: ModuleType) -> None:
    with pretended.PretendDevices():
        here, there = torch.ones(2, device="cpu:1"), torch.ones(2, device="cpu:2")
        assert (here + there.to("cpu:1")).tolist() == [2, 2]
        with pytest.raises(pretended.DeviceMismatch, match=r"add.*cpu:1.*cpu:2"):
            here + there
        with pytest.raises(pretended.DeviceMismatch):
            here + torch.ones(2)


def test_what_is_loaded_with_a_device_map_is_the_same_bit_by_bit(make, pretended, tmp_path) -> None:
    """With the tokens' new rows, and where this machine has no GPU, by its own places too: in float32 by all maps."""
    base = make.saved(tmp_path, "qwen2_vl")
    halves = pretended.halves(make.model("qwen2_vl"), "cpu", "cpu")
    maps = [halves, *([] if torch.cuda.is_available() else ["auto", "sequential"])]
    for dtype, tried in (("float32", maps), ("bfloat16", maps[:1]), ("float16", maps[-1:])):
        wanted = load(base, scheme="mr2ag", dtype=dtype)
        for device_map in tried:
            actual = load(base, scheme="mr2ag", dtype=dtype, device="none", device_map=device_map)
            assert actual.fingerprint == wanted.fingerprint
            tensors = zip(actual.model.state_dict().items(), wanted.model.state_dict().items(), strict=True)
            for (name, one), (other_name, other) in tensors:
                assert (name, one.dtype) == (other_name, other.dtype)
                assert torch.equal(one, other)


def test_an_adapter_is_merged_and_then_spread(make: SimpleNamespace, pretended: ModuleType, tmp_path: Path) -> None:
    base, folder = make.saved(tmp_path / "base", "llava"), tmp_path / "adapter"
    start = load(base, scheme="mr2ag", seed=5)
    save_checkpoint(folder, make.adapted(start), start.processor, MR2AG, {"base_model": base, "seed": 5})
    merged, without = load(str(folder)), load(base, scheme="mr2ag", seed=5)
    expected = said(merged, merged.model, make, "long")
    assert expected != said(without, without.model, make, "long")
    with pretended.PretendDevices() as devices, torch.no_grad():
        actual = load(str(folder), device_map=pretended.halves(merged.model, "cpu:1", "cpu:2"))
        assert actual.fingerprint == merged.fingerprint
        assert said(actual, actual.model, make, "long") == expected
    assert {torch.device("cpu:1"), torch.device("cpu:2")} <= devices.seen


def test_four_bits_are_not_spread(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="leave out `device_map` or quantization"):
        load("miniature/llava", device_map="auto", quantization=Quantization())


def test_a_model_that_no_memory_holds_is_one_error(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reflectune.models.weights.spreading.get_max_memory", lambda: {"cpu": 1000})
    with pytest.raises(UserError, match=r"GiB of weights don't fit.*more GPUs"):
        spread(copy.deepcopy(loaded.model), "auto", torch.float32)


def test_layers_find_room_on_the_gpus_first(loaded: Loaded) -> None:
    model, dtype = loaded.model, torch.float32
    size = sum(parameter.nbytes for parameter in model.parameters())
    large = {0: 10 * size, 1: 10 * size, "cpu": 10 * size}
    assert set(plan_device_map(model, "auto", dtype, large).values()) == {0, 1}
    assert set(plan_device_map(model, "sequential", dtype, large).values()) == {0}
    first = [bytes_on(0, model, plan_device_map(model, name, dtype, large)) for name in ("balanced_low_0", "auto")]
    assert first[0] < first[1]
    few = {0: size // 2, 1: size // 2, "cpu": 10 * size}
    assert len(set(plan_device_map(model, "auto", dtype, few).values()) - {"disk"}) > 1
    assert "cpu" in plan_device_map(model, "auto", dtype, few).values()
    assert "disk" in plan_device_map(model, "auto", dtype, {0: size // 4, "cpu": size // 4}).values()


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_layers_find_room_by_the_size_that_they_will_have(loaded: Loaded, stored: torch.dtype) -> None:
    model = copy.deepcopy(loaded.model).to(stored)
    half = sum(2 * parameter.numel() for parameter in model.parameters())
    free = {0: int(2.4 * half), "cpu": 10 * half}  # of which weights may take 1.92
    assert set(plan_device_map(model, "sequential", torch.bfloat16, free).values()) == {0}
    assert "cpu" in plan_device_map(model, "sequential", torch.float32, free).values()


def test_a_layer_is_never_divided_and_a_tied_head_stays_with_the_embeddings(make: SimpleNamespace) -> None:
    model = make.model("qwen2_vl")
    size = sum(parameter.nbytes for parameter in model.parameters())
    places = plan_device_map(model, "auto", torch.float32, {0: 10 * size, 1: 10 * size, "cpu": size})
    for number in range(layers_of(model)):
        layer = f"model.language_model.layers.{number}."
        assert len({place_of(f"{layer}{name}", places) for name in ("mlp.up_proj", "self_attn.q_proj")}) == 1
    assert place_of("lm_head", places) == place_of("model.language_model.embed_tokens", places)


def place_of(module: str, places: Mapping[str, Any]) -> Any:
    return next((place for name, place in places.items() if not name or f"{module}.".startswith(f"{name}.")), None)


def bytes_on(place: int, model: Any, places: Mapping[str, Any]) -> int:
    return sum(parameter.nbytes for name, parameter in model.named_parameters() if place_of(name, places) == place)
