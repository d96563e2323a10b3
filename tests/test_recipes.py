"""The training recipes have the papers' hyperparameters and fit every model that they are for."""

import functools
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn
from transformers import AutoConfig, AutoModelForImageTextToText

from reflectune.train.estimates.from_shapes import forecast_from_shapes
from reflectune.train.estimates.memory import GIB, total
from reflectune.train.runs.preview import max_row_update
from reflectune.train.settings.estimate import EstimateConfig
from reflectune.train.settings.sft import SftConfig
from reflectune.train.weights.parameters import add_adapters, tower_of

ROOT = Path(__file__).parents[1]
MODELS = sorted(path.stem for path in (ROOT / "configs/architectures").glob("*.json"))
"""Models with their shapes and sizes. Both were written from memory: that the shapes add up to the published size,
to the digit, checks them. Qwen3.5's published size counts a head that predicts later tokens, which transformers
leaves out. LLaVA-1.5-13B has no size: the remembered one is 64 rows of both matrices below the sum.
"""
NAMES = ("mr2ag_full", "mr2ag_lora", "mr2ag_qlora", "mmkb_lora")
RECIPES = [f"recipes/{name}" for name in NAMES]
PAGE = (ROOT / "docs/recipes.md").read_text(encoding="utf-8")
TARGETS = SftConfig.model_fields["lora_targets"].default


def architecture(model: str) -> dict[str, Any]:
    return json.loads((ROOT / f"configs/architectures/{model}.json").read_text())


def settings(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / f"configs/{name}.yaml").read_text(encoding="utf-8"))


@functools.cache
def on_meta(model: str) -> nn.Module:
    """Return the model at its true size, without memory."""
    with torch.device("meta"):
        return AutoModelForImageTextToText.from_config(AutoConfig.for_model(**architecture(model)["config"]))


def matrices_of(model: str) -> int:
    """Return the matrices with adapters: seven a layer, six in one of linear attention (three of Qwen3.5's four)."""
    layers = architecture(model)["config"]["text_config"]["num_hidden_layers"]
    return layers * 7 - (layers * 3 // 4 if model.startswith("qwen3_5") else 0)


def questions_of_a_step(name: str) -> int:
    """Return the questions of an optimiser step, by the recipe and the launch config in its header."""
    text = (ROOT / f"configs/{name}.yaml").read_text(encoding="utf-8")
    launch = re.search(r"--config_file (\S+)", text)
    processes = yaml.safe_load((ROOT / launch[1]).read_text())["num_processes"] if launch else 1
    values = settings(name)
    return values["per_device_train_batch_size"] * values["gradient_accumulation_steps"] * processes


@pytest.mark.parametrize("model", MODELS)
def test_the_shapes_are_the_published_models(model: str) -> None:
    facts = architecture(model)
    published = facts["parameters"]
    total = sum(parameter.numel() for parameter in on_meta(model).parameters())  # a tied matrix once
    assert published is None or total + facts.get("prediction_head", 0) == published


@pytest.mark.parametrize("model", MODELS)
def test_adapters_are_on_the_wide_matrices_of_each_layer_and_nowhere_else(model: str) -> None:
    whole = on_meta(model)
    matched = [module for module, _ in whole.named_modules() if re.fullmatch(TARGETS, module)]
    assert len(matched) == matrices_of(model)
    assert {tower_of(module) for module in matched} == {"language model"}
    assert all(isinstance(whole.get_submodule(module), nn.Linear) for module in matched)


def test_recipes_put_adapters_where_the_default_does() -> None:
    assert not [name for name in RECIPES if "lora_targets" in settings(name)]


OF_EACH_FAMILY = list({architecture(model)["config"]["model_type"]: model for model in MODELS}.values())


@pytest.mark.slow
@pytest.mark.parametrize("model", OF_EACH_FAMILY)
def test_peft_puts_the_adapters_there_and_trains_the_tokens_rows(model: str) -> None:
    whole, matrices = on_meta.__wrapped__(model), matrices_of(model)  # changed here
    with torch.device("meta"):
        adapted = add_adapters(whole, [31_000, 31_001], rank=16, alpha=32, dropout=0.0, targets=TARGETS)
    trained = [name for name, parameter in adapted.named_parameters() if parameter.requires_grad]
    assert sum("lora_A" in name for name in trained) == matrices
    rows = [name for name in trained if "trainable_tokens_delta" in name]
    assert len(rows) == (1 if architecture(model)["config"]["tie_word_embeddings"] else 2)
    assert len(trained) == 2 * matrices + len(rows)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_the_papers_hyperparameters(name: str) -> None:
    """mR²AG: learning rate 2e-5, 128 questions, one epoch. MMKB-RAG: 256 questions of 2 prompts are its 512 rows."""
    values, kind = settings(name), name.split("/")[-1]
    assert values["method"] == kind.split("_")[1]
    assert values["scheme"] == ("mmkb_rag" if kind == "mmkb_lora" else "mr2ag")
    assert questions_of_a_step(name) == (256 if kind == "mmkb_lora" else 128)
    if kind == "mr2ag_full":
        assert (values["learning_rate"], values["train_towers"]) == (2e-5, ["projector", "language_model"])
    if kind != "mmkb_lora":
        assert values["epochs"] == 1


def test_mmkb_rag_has_steps_enough_to_bring_a_new_row_anywhere_in_its_table() -> None:
    """As many as read a tenth of InfoSeek's 934,048 questions twice; a table spreads by 0.02 (`initializer_range`)."""
    values = settings("recipes/mmkb_lora")
    assert values["max_steps"] == -(-2 * settings("papers/mmkb_rag/probe")["limit"] // 256) == -(-2 * 93_405 // 256)
    assert max_row_update(SftConfig(**values), values["max_steps"]) > 1.5 * 0.02


def test_images_are_fitted_alike_in_training_probing_and_evaluation() -> None:
    """LLaVA-1.5's are padded; Qwen's are scaled down to 1,280 tokens of 28 × 28 pixels."""
    read = ["recipes/mmkb_lora", "papers/mmkb_rag/train_plain"]
    read += [f"papers/mmkb_rag/{name}" for name in ("probe", "evaluate", "sweep")]
    assert {settings(name)["max_pixels"] for name in read} == {1280 * 28**2}
    llava = [*RECIPES[:-1], *(f"papers/mr2ag/{name}" for name in ("train", "train_plain"))]
    assert {settings(name)["image_fit"] for name in llava} == {"pad"}
    assert {flags_of(model, "mmkb_lora").get("max_pixels") for model in MODELS} == {0, 1280 * 28**2}


def test_the_papers_mixture_reads_every_part_once() -> None:
    """No visual question is read twice: mR²AG-IT is built without its own, next to LLaVA-Instruct."""
    values, stages = settings("papers/mr2ag/train"), settings("papers/mr2ag/dvc")["stages"]
    built = {
        path
        for stage in stages.values()
        for out in stage.get("outs", ())
        for path in (out if isinstance(out, dict) else [out])
    }
    assert set(values["train_data"].values()) == {1}
    assert {f"{part}/reflection.json" for part in values["train_data"]} <= built
    rows = 625_000 + 100_000 * 6 + 30_000 * 6 + 30_000 * 5  # the paper's batch counts rows: a passage each
    assert 120 <= questions_of_a_step("papers/mr2ag/train") * rows / 785_000 <= 128


def test_stage_1_has_the_published_hyperparameters() -> None:
    """LLaVA-1.5's `pretrain.sh`: the projector alone, 1e-3, 256 captions a step, one epoch, cosine, warm-up 0.03."""
    values = settings("papers/mr2ag/stage1")
    assert (values["train_towers"], values["learning_rate"], values["epochs"]) == (["projector"], 1e-3, 1)
    assert (values["lr_scheduler"], values["warmup"]) == ("cosine", 0.03)
    assert questions_of_a_step("papers/mr2ag/stage1") == 256


def test_no_two_recipes_write_into_one_folder() -> None:
    outputs = [settings(name)["output_dir"] for name in RECIPES]
    assert len(set(outputs)) == len(RECIPES)


def flags_of(model: str, kind: str) -> dict[str, Any]:
    """Return the flags of the recipes' page for a model's family."""
    name = architecture(model)["model"].partition("/")[2]
    family = next(text for start, text in FAMILIES.items() if name.startswith(start))
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| {family}"))
    images, adapters = row.split("|")[2:4]
    pairs = re.findall(r"--(\w+) ([\w.-]+)", images + (adapters if kind == "mr2ag_lora" else ""))
    return {key: yaml.safe_load(value) if key != "learning_rate" else float(value) for key, value in pairs}


FAMILIES = {"llava-1.5": "LLaVA-1.5", "llava-v1.6": "LLaVA-NeXT", "Qwen": "Qwen2-VL", "gemma-3": "Gemma-3"}


def test_a_recipe_has_the_flags_of_its_own_model() -> None:
    for kind, model in zip(NAMES, ("llava15_7b",) * 3 + ("qwen2_vl_7b",), strict=True):
        config = SftConfig.model_construct(**settings(f"recipes/{kind}"))
        assert config.model == architecture(model)["model"]
        assert {key: getattr(config, key) for key in flags_of(model, kind)} == flags_of(model, kind)


def gib_of(model: str, kind: str) -> int:
    """Return the GiB a GPU by the recipe's launch config; for 13 B and LLaVA-NeXT one question a GPU."""
    name = f"recipes/{kind}"
    launch = re.search(r"accelerate/(\w+)\.yaml", (ROOT / f"configs/{name}.yaml").read_text(encoding="utf-8"))
    processes, sharding = (8, launch[1]) if launch else (1, "none")
    values = {**settings(name), **flags_of(model, kind), "model": architecture(model)["model"], "processes": processes}
    values["sharding"] = "none" if sharding == "multi_gpu" else sharding
    if model in ("llava15_13b", "llava_next_7b"):
        values["per_device_train_batch_size"] = 1
    if model == "llava15_13b" and kind == "mr2ag_full":
        values["sharding"] = "zero3"
    config = EstimateConfig(**values)
    return math.ceil(total(forecast_from_shapes(config, ROOT / f"configs/architectures/{model}.json").parts()) / GIB)


@pytest.mark.parametrize("model", MODELS)
def test_the_table_of_sizes_has_the_estimated_memory(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    built = "reflectune.train.estimates.from_shapes.AutoModelForImageTextToText.from_config"
    whole = on_meta(model)
    monkeypatch.setattr(built, lambda config: whole.requires_grad_(True))  # an estimate freezes parts of it
    cells = " | ".join(str(gib_of(model, kind)) for kind in NAMES)
    assert f"| {architecture(model)['model']} | {cells} |" in PAGE
