"""Towers that train: LLaVA's stage 1 (the projector alone) and stage 2 (the projector and adapters)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText

from reflectune.examples.miniature.models.architecture import FAMILIES, Family
from reflectune.models.loading import load
from reflectune.train.runs.checkpointed_trainer import load_weights
from reflectune.train.runs.supervised import fine_tune
from reflectune.train.settings.sft import SftConfig
from reflectune.train.weights.loading import load_base, prepare_model
from reflectune.train.weights.merging import merge_adapter, plan_merge
from reflectune.train.weights.parameters import count_by_tower, projector_modules, set_projector_learning_rate, tower_of

STAGE_1: dict[str, Any] = {"scheme": "plain", "train_towers": ["projector"]}
STAGE_2: dict[str, Any] = {"scheme": "plain", "method": "lora", "train_towers": ["projector", "language_model"]}


@pytest.fixture
def captions(config, plain_folder: Path) -> Callable[..., SftConfig]:
    """Makes the settings of a short run on plain data."""
    return lambda out="out", family="llava", **changes: config(out, family, train_data=str(plain_folder), **changes)


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    """The towers of the weights that differ in a bit."""
    assert before.keys() == after.keys()
    return {tower_of(name) for name in before if not torch.equal(before[name], after[name])}


@pytest.mark.parametrize(
    ("family", "tower"),
    [*((family, "projector") for family in FAMILIES), ("qwen2_vl", "vision_tower"), ("llava", "language_model")],
)
def test_a_named_tower_moves_and_every_other_weight_stays_bit_by_bit(captions, family: Family, tower: str) -> None:
    """The projector's checkpoint is loaded by plain transformers, too."""
    run = captions(family=family, scheme="plain", train_towers=[tower], max_steps=2)
    fine_tune(run)

    before, after = (load(folder) for folder in (run.model, run.output_dir))
    assert moved(before.model.state_dict(), after.model.state_dict()) == {tower.replace("_", " ")}
    assert after.is_tuned
    if tower == "projector":
        plain = AutoModelForImageTextToText.from_pretrained(run.output_dir)
        assert moved(after.model.state_dict(), plain.state_dict()) == set()


def test_an_interrupted_run_ends_with_the_straight_runs_weights(captions, assert_equal_weights, interrupted) -> None:
    settings = {**STAGE_2, "projector_learning_rate": 1e-3, "max_steps": 3, "save_steps": 1}
    fine_tune(captions("straight", **settings))

    interrupted(captions("resumed", **settings), 2)
    fine_tune(captions("resumed", **settings))

    assert_equal_weights(captions("straight").output_dir, captions("resumed").output_dir)


@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
def test_in_stage_2_the_projector_and_adapters_train_and_are_merged(captions, family: Family, tmp_path) -> None:
    run = captions(family=family, max_steps=2, **STAGE_2)
    base = load(run.model, scheme="plain")
    before = count_by_tower(base.model)["projector"].total
    counts = count_by_tower(prepare_model(base, run))
    assert counts["projector"].total == counts["projector"].trainable == before  # once
    assert counts["vision tower"].trainable == 0

    fine_tune(run)
    loaded = load(run.output_dir).model.state_dict()
    merge_adapter(run.output_dir, tmp_path / "whole", plan_merge(run.output_dir))

    assert moved(load(run.model).model.state_dict(), loaded) == {"projector", "language model"}
    assert moved(loaded, load(str(tmp_path / "whole")).model.state_dict()) == set()


def test_a_base_that_is_stored_in_half_precision_is_held_and_written_in_it(captions, tmp_path) -> None:
    run = captions(dtype="bfloat16", max_steps=2, **STAGE_1)
    whole = load(run.model)
    whole.model.to(torch.bfloat16).save_pretrained(tmp_path / "half")
    whole.processor.save_pretrained(tmp_path / "half")
    run = run.model_copy(update={"model": str(tmp_path / "half")})

    model = prepare_model(load_base(run, torch.device("cpu")), run)
    held = {tower: p.dtype for name, p in model.named_parameters() for tower in [tower_of(name)]}
    fine_tune(run)
    before, after = (load(folder, dtype="bfloat16").model.state_dict() for folder in (run.model, run.output_dir))
    written = model.state_dict()
    load_weights(model, run.output_dir)

    assert held == {"vision tower": torch.bfloat16, "projector": torch.float32, "language model": torch.bfloat16}
    assert moved(before, after) == {"projector"}
    fresh = load(run.output_dir).model.state_dict()
    held_again = {name: tensor.float().sum() for name, tensor in model.state_dict().items() if "projector" in name}
    assert held_again == {name: fresh[name].sum() for name in written if "projector" in name}


def test_a_base_that_is_stored_in_float32_is_not_rounded_by_half_precision(captions) -> None:
    run = captions(dtype="bfloat16", max_steps=2, **STAGE_1)
    fine_tune(run)

    assert moved(load(run.model).model.state_dict(), load(run.output_dir).model.state_dict()) == {"projector"}


@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
def test_the_projector_gets_a_rate_of_its_own_and_all_else_keeps_its_group(captions, family: Family) -> None:
    run = captions(family=family, **STAGE_2)
    model = prepare_model(load(run.model, scheme="plain"), run)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decay = {id(p): 0.1 if number % 2 == 0 else 0.0 for number, p in enumerate(trained)}
    groups = [{"params": trained[::2], "weight_decay": 0.1}, {"params": trained[1::2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=2e-4, betas=(0.9, 0.95))

    set_projector_learning_rate(optimizer, model, 2e-5)

    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            is_projector = tower_of(names[id(parameter)]) == "projector"
            assert group["lr"] == (2e-5 if is_projector else 2e-4)
            assert (group["betas"], group["weight_decay"]) == ((0.9, 0.95), decay[id(parameter)])
    after = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(after) == sorted(map(id, trained))


def test_the_rate_reaches_the_steps_of_a_run(captions) -> None:
    """At a vanishing rate the projector all but stays, while the adapters move as they did."""
    at = {}
    for rate in (None, 1e-12):
        run = captions(f"out_{rate}", max_steps=2, projector_learning_rate=rate, **STAGE_2)
        fine_tune(run)
        at[rate] = load(run.output_dir).model.state_dict()
    before = load(captions().model).model.state_dict()

    def travel(rate: float | None, tower: str) -> float:
        return max(float((at[rate][n] - before[n]).abs().max()) for n in before if tower_of(n) == tower)

    assert travel(1e-12, "projector") < 1e-7 < 1e-4 < travel(None, "projector")
    assert travel(1e-12, "language model") == pytest.approx(travel(None, "language model"), rel=0.1)


def test_the_projectors_modules_are_named_whole(base_model) -> None:
    llava, qwen2_vl, qwen3_5 = (load(str(base_model(family))).model for family in FAMILIES)

    assert projector_modules(llava) == ["model.multi_modal_projector"]
    assert projector_modules(qwen2_vl) == projector_modules(qwen3_5) == ["model.visual.merger"]


@pytest.mark.parametrize(
    ("changes", "printed"),
    [
        ({"train_towers": ["merger"]}, "`train_towers` may name vision_tower, projector, language_model; found merger"),
        ({"train_towers": ["projector", "projector"]}, "should name each part once"),
        ({"train_towers": ["projector"], "method": "lora"}, "`method: lora` trains adapters of the language model"),
        ({"train_towers": ["vision_tower", "language_model"], "method": "lora"}, "keeps the vision tower as it is"),
        ({"train_towers": ["projector"], "scheme": "mr2ag"}, "rows of the tokens of `scheme: mr2ag` would stay"),
        ({"projector_learning_rate": 1e-3, "method": "lora"}, "the projector doesn't train; name it"),
        ({"projector_learning_rate": 1e-3, "train_towers": ["projector"]}, "set `learning_rate`"),
    ],
)
def test_a_choice_of_towers_that_can_not_be_is_reported_once(captions, changes: dict[str, Any], printed: str) -> None:
    (issue,) = [issue for issue in captions(**{"scheme": "plain", **changes}).problems() if printed in issue]

    assert issue
