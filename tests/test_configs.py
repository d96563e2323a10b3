"""Every YAML in `configs/` is right by the config class of its entry script, and the recipes fit their models."""

from __future__ import annotations

import importlib
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

from reflectune import cli
from reflectune.core.config import parse_config
from reflectune.core.errors import UserError
from reflectune.data_builders.mr2ag.config import BuildConfig
from reflectune.models.processing.image_config import ImageKeys
from reflectune.train.estimates.architecture import image_tokens
from reflectune.train.estimates.from_shapes import QUESTION_TOKENS, forecast_from_shapes
from reflectune.train.estimates.memory import GIB, total
from reflectune.train.model.parameters import add_adapters, tower_of
from reflectune.train.runs.preview import longest_travel
from reflectune.train.settings.estimate import EstimateConfig
from reflectune.train.settings.sft import SftConfig

ROOT = Path(__file__).parents[1]
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))
LAUNCHES = [path for path in CONFIGS if path.parent.name == "accelerate"]
ELSEWHERE = ("dvc.yaml", "params.yaml")
RUNS = [path for path in CONFIGS if path.parent.name not in ("accelerate", "lmms_eval") and path.name not in ELSEWHERE]
"""Configs of our commands; those of lmms-eval's runner are read in `tests/inference/lmms`, those of DVC in
`tests/test_papers.py`."""
BY_FOLDER = {"data": "data_builders/convert.py", "mr2ag": "data_builders/build_mr2ag.py"}
"""The entry scripts of configs whose header doesn't name one."""

MODULES = {module.partition(".")[2]: module for modules in cli.GROUPS.values() for module in modules}

NOT_THERE_YET = re.compile(
    r"does not exist"  # data that a download or an earlier step makes
    r"|has no [\w.]+\.json"
    r"|there is no reflection\.json"
    r"|is not a folder"
    r"|must be an existing (file|folder), found runs/"
    r"|not found: "
    r"|pip install"  # an extra that this machine lacks
)
"""Problems that a config has because of where the test runs, not because of what it says."""


def header(path: Path) -> str:
    """The comment at the head of a config, a command that is cut by `\\` or by the comment's width in one piece."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    return " ".join(line.lstrip("# ").removesuffix("\\") for line in lines)


def command(path: Path) -> re.Match[str] | None:
    name = re.escape(path.relative_to(ROOT).as_posix())
    return re.search(
        rf"(?:-m reflectune\.(?P<module>[\w.]+)|reflectune (?P<command>\w+)|(?P<script>[\w/]+)\.py) "
        rf"--config {name}(?P<flags>.*)",
        header(path),
    )


def entry_script(path: Path) -> str:
    named_command = command(path)
    if named_command is None:
        return BY_FOLDER[path.parent.name]
    module = named_command["module"] or named_command["script"] or MODULES[named_command["command"]]
    return f"{module.replace('.', '/')}.py"


def config_class(script: str) -> Any:
    """The config class of an entry script's command."""
    module = importlib.import_module(f"reflectune.{script.removesuffix('.py').replace('/', '.')}")
    return getattr(module, Path(script).stem).kind


def problems(path: Path, *overrides: str) -> list[str]:
    """What is wrong with a config, but for files that are not there yet and keys that its command line gives."""
    named_command = command(path)
    given = re.findall(r"--(\w+)", named_command["flags"]) if named_command else []
    try:
        parse_config(config_class(entry_script(path)), argv=["--config", str(path), *overrides])
    except UserError as error:
        issues = str(error).splitlines()[1:]
        missing = [f"  `{key}` is needed" for key in given]
        return [issue for issue in issues if not NOT_THERE_YET.search(issue) and issue not in missing]
    return []


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.relative_to(ROOT / "configs").as_posix())
def test_a_config_is_right_by_its_entry_scripts_class(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)

    assert problems(path) == []


def test_a_wrong_value_or_key_of_a_config_is_found(tmp_path: Path) -> None:
    """That the test above can fail: nothing but what is not there yet is overlooked."""
    path = ROOT / "configs" / "qwen2_vl_7b" / "mmkb_lora.yaml"

    assert any("learning_rate" in issue for issue in problems(path, "--learning_rate", "-1"))
    assert any("unknown key" in issue for issue in problems(path, "--learning_rates", "1"))


@pytest.mark.parametrize("path", LAUNCHES, ids=lambda path: path.stem)
def test_accelerate_knows_every_key_of_a_launch_config(path: Path) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    assert load_config_from_file(str(path)).num_processes >= 1


# The recipes.

MODELS = sorted(path.parent.name for path in (ROOT / "configs").glob("*/architecture.json"))
"""Folders of recipes. `architecture.json` has what of the published model's config decides its shapes, and its size.

Both were written from memory, since the hub can't be reached from here: that the shapes add up to the size, to the
digit, checks them. LLaVA-1.5-13B has no size: the one remembered is 64 rows of both matrices below the sum
(13,351,494,656), and could not be looked up. Its layers and widths don't depend on it.
"""
NAMES = ("mr2ag_full", "mr2ag_lora", "mr2ag_qlora", "mmkb_lora")
RECIPES = [(folder, name) for folder in MODELS for name in NAMES]


def architecture(folder: str) -> dict[str, Any]:
    return json.loads((ROOT / "configs" / folder / "architecture.json").read_text())


def on_meta(folder: str) -> nn.Module:
    """The model at its true size, without memory."""
    with torch.device("meta"):
        return AutoModelForImageTextToText.from_config(AutoConfig.for_model(**architecture(folder)["config"]))


def layers_of(folder: str) -> int:
    return architecture(folder)["config"]["text_config"]["num_hidden_layers"]


def settings(folder: str, name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / "configs" / folder / f"{name}.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("folder", MODELS)
def test_the_shapes_are_the_published_models(folder: str) -> None:
    published = architecture(folder)["parameters"]

    total = sum(parameter.numel() for parameter in on_meta(folder).parameters())  # a tied matrix once

    assert published is None or total == published


@pytest.mark.parametrize("folder", MODELS)
@pytest.mark.parametrize("name", [name for name in NAMES if "lora" in name])
def test_adapters_are_on_the_seven_matrices_of_each_layer_and_nowhere_else(folder: str, name: str) -> None:
    model, layers = on_meta(folder), layers_of(folder)
    targets = settings(folder, name).get("lora_targets", SftConfig().lora_targets)

    matched = [module for module, _ in model.named_modules() if re.fullmatch(targets, module)]

    assert len(matched) == layers * 7
    assert {tower_of(module) for module in matched} == {"language model"}
    assert all(isinstance(model.get_submodule(module), nn.Linear) for module in matched)


@pytest.mark.slow
@pytest.mark.parametrize("folder", MODELS)
def test_peft_puts_the_adapters_there_and_trains_the_tokens_rows(folder: str) -> None:
    model, layers = on_meta(folder), layers_of(folder)
    with torch.device("meta"):
        adapted = add_adapters(
            model, [31_000, 31_001], rank=16, alpha=32, dropout=0.0, targets=SftConfig().lora_targets
        )

    trained = [name for name, parameter in adapted.named_parameters() if parameter.requires_grad]

    assert sum("lora_A" in name for name in trained) == layers * 7
    rows = [name for name in trained if "trainable_tokens_delta" in name]
    assert len(rows) == (1 if architecture(folder)["config"]["tie_word_embeddings"] else 2)
    assert len(trained) == 2 * layers * 7 + len(rows)


def batch_of(folder: str, name: str) -> int:
    """Questions of an optimiser step, by the recipe and the launch that its header names."""
    values, processes = settings(folder, name), 1
    if launch := re.search(r"--config_file (\S+)", header(ROOT / "configs" / folder / f"{name}.yaml")):
        processes = yaml.safe_load((ROOT / launch[1]).read_text())["num_processes"]
    return values["per_device_train_batch_size"] * values["gradient_accumulation_steps"] * processes


def numbers(pattern: str, text: str) -> list[float]:
    """The numbers in the groups of a pattern that must occur once."""
    (groups,) = re.findall(pattern, text)
    return [float(number.replace(",", "")) for number in ([groups] if isinstance(groups, str) else groups)]


def passages_of(name: str) -> int:
    """Most passages of a question, by the config that builds mR²AG-IT."""
    data = settings("papers/mr2ag", name)
    kinds = ("same_article", "retrieved", "random")
    return data["positives"] + sum(
        data.get(f"negatives_{kind}", getattr(BuildConfig(), f"negatives_{kind}")) for kind in kinds
    )


@pytest.mark.parametrize(("folder", "name"), RECIPES)
def test_a_recipe_has_the_papers_hyperparameters(folder: str, name: str) -> None:
    """mR²AG: learning rate 2e-5, 128 questions, one epoch. MMKB-RAG: LoRA, 512 rows."""
    values = settings(folder, name)

    assert values["method"] == name.split("_")[1]
    assert values["scheme"] == ("mmkb_rag" if name == "mmkb_lora" else "mr2ag")
    assert batch_of(folder, name) == 128
    if name == "mr2ag_full":
        assert (values["learning_rate"], values["freeze_vision"]) == (2e-5, True)
    if name != "mmkb_lora":
        assert values["epochs"] == 1


@pytest.mark.parametrize(("folder", "name"), [recipe for recipe in RECIPES if recipe[1] != "mmkb_lora"])
def test_a_header_says_how_many_questions_and_rows_a_step_reads(folder: str, name: str) -> None:
    text, batch = header(ROOT / "configs" / folder / f"{name}.yaml"), batch_of(folder, name)
    share = settings("papers/mr2ag", "infoseek_data")["visual_ratio"]
    seen, passages = batch * share, passages_of("infoseek_data")

    written = numbers(
        r"Batch: (\d+) questions a step, (\d+) of them with up to (\d+) passages and (\d+) with none, "
        r"so up to (\d+) rows",
        text,
    )
    steps, questions = numbers(r"Steps: ([\d,]+) for ([\d,]+) questions", text)

    assert written == [batch, batch - seen, passages, seen, (batch - seen) * passages + seen]
    assert steps == math.ceil(questions / batch)
    assert questions == settings("papers/mr2ag", "infoseek_data")["limit"] / (1 - share)
    assert "The paper's 8 × 16 = 128 are rows" in text


@pytest.mark.parametrize("folder", MODELS)
def test_mmkb_rag_has_steps_enough_to_bring_a_new_row_anywhere_in_its_table(folder: str) -> None:
    """As many as read a tenth of InfoSeek once, whatever number of questions the labels leave."""
    text, batch = header(ROOT / "configs" / folder / "mmkb_lora.yaml"), batch_of(folder, "mmkb_lora")
    values, probe = settings(folder, "mmkb_lora"), settings("papers/mmkb_rag", "infoseek_probe")
    config = SftConfig(**values)
    spread = AutoConfig.for_model(**architecture(folder)["config"]).get_text_config().initializer_range

    questions, fewest, most, documents, rows, each = numbers(
        r"Batch: (\d+) questions a step, each of (\d+) to (\d+) rows: RET, at most (\d+) documents, MCT; "
        r"(\d+) rows at (\d+) a question",
        text,
    )
    steps, read, tenth, whole = numbers(r"Steps: (\d+), which read ([\d,]+) .* InfoSeek, ([\d,]+) of ([\d,]+)\.", text)
    travel, scatter, former_steps, former = numbers(
        r"1e-4 × 730 / 2 = ([\d.]+) .* about ([\d.]+) \(`init.* were (\d+) steps, and ([\d.]+)\.\)", text
    )

    assert (questions, fewest, most, documents) == (batch, 1, probe["documents"] + 2, probe["documents"])
    assert rows == each * batch == 512  # the paper's
    assert (steps, read) == (values["max_steps"], values["max_steps"] * batch)
    assert (tenth, whole) == (probe["limit"], 934_048)
    assert steps == math.ceil(tenth / batch) == math.ceil(whole / 10 / batch)
    assert travel == round(longest_travel(config, values["max_steps"]), 3)
    assert scatter == spread
    assert travel > 1.5 * spread
    assert (former_steps, former) == (20_000 // 512, round(1e-4 * 39 / 2, 3))


@pytest.mark.parametrize(("folder", "name"), RECIPES)
def test_a_recipe_says_how_pictures_are_fitted(folder: str, name: str) -> None:
    """LLaVA-1.5's are padded, none is cut; Qwen's have a bound, which the header counts in tokens."""
    values, config = settings(folder, name), architecture(folder)["config"]
    text = header(ROOT / "configs" / folder / f"{name}.yaml")
    model = AutoConfig.for_model(**config)

    assert values.get("image_fit") == ("pad" if config["model_type"] == "llava" else None)
    if "max_pixels" in values:
        tokens, side = numbers(r"at most ([\d,]+) tokens, each (\d+) × \d+ pixels", text)
        assert side == model.vision_config.patch_size * model.vision_config.spatial_merge_size
        assert tokens == values["max_pixels"] // side**2 == image_tokens(model, values["max_pixels"])
    assert ("max_pixels" in values) == config["model_type"].startswith("qwen")


@pytest.mark.parametrize("folder", MODELS)
def test_a_model_is_probed_and_evaluated_on_the_pictures_that_it_is_trained_on(folder: str) -> None:
    values = settings(folder, "mmkb_lora")
    text = header(ROOT / "configs" / folder / "mmkb_lora.yaml")
    trained = {name: values.get(name, getattr(ImageKeys(), name)) for name in ("image_fit", "min_pixels", "max_pixels")}
    probed = {
        name: settings("papers/mmkb_rag", "infoseek_probe").get(name, default)
        for name, default in ImageKeys().model_dump().items()
    }
    if changed := re.search(r"infoseek_probe\.yaml with (.*?), then", text):
        flags = dict(re.findall(r"--(\w+) (\S+)", changed[1]))
        probed |= {name: type(probed[name])(flags[name]) for name in probed if name in flags}

    assert probed == trained
    if folder == "qwen2_vl_7b":
        evaluated = settings("papers/mmkb_rag", "evaluate")
        assert (
            evaluated["max_pixels"] == settings("papers/mmkb_rag", "evqa_probe")["max_pixels"] == trained["max_pixels"]
        )


def test_the_mixture_reads_every_visual_example_once_and_its_header_counts_right() -> None:
    path = ROOT / "configs/llava15_7b/mr2ag_full_mixture.yaml"
    text, batch, values = header(path), batch_of("llava15_7b", "mr2ag_full_mixture"), settings("llava15_7b", path.stem)
    infoseek, evqa, passages, nq, nq_passages, visual, reads = numbers(
        r"Reads: ([\d,]+) .*? and ([\d,]+) .*? up to (\d+) passages, ([\d,]+) .*? up to (\d+), ([\d,]+) .*?: ([\d,]+)",
        text,
    )
    knowledge, rows = infoseek + evqa + nq, (infoseek + evqa) * passages + nq * nq_passages

    assert infoseek == settings("papers/mr2ag", "infoseek_data")["limit"]
    assert [evqa, nq] == numbers(r"--limit (\d+) --output .*--limit (\d+);", text)
    assert passages == passages_of("infoseek_data") == passages_of("evqa_data")
    assert nq_passages == passages_of("nq_data")
    assert reads == knowledge + visual
    assert [batch, (rows + visual) * batch // reads + 1] == numbers(
        r"Batch: (\d+) questions a step, up to (\d+) rows", text
    )
    assert numbers(r"Steps: ([\d,]+)\.", text) == [math.ceil(reads / batch)]
    outputs = [settings("papers/mr2ag", f"{name}_data")["output"] for name in ("nq", "llava_instruct")]
    assert list(values["train_data"]) == [*re.findall(r"--output (runs/\S+),", text), *outputs]
    assert set(values["train_data"].values()) == {1}
    assert text.count("--visual_ratio 0 --") == 2
    assert settings("papers/mr2ag", "nq_data")["visual_ratio"] == 0

    pictured, others, share, steps, rows_each, hours = numbers(
        r"rows, ([\d,]+) of them .*?: ([\d,]+) reads, (\d+) % .*?, ([\d,]+) steps of up to (\d+) rows, (\d+) h", text
    )
    assert others == knowledge + pictured
    assert steps == math.ceil(others / batch)
    assert share == round(100 * pictured / others)
    assert rows_each == round((rows + pictured) * batch / others)
    # By tokens: those of mr2ag_full.yaml take the hours that its header says.
    image, one = 576 + QUESTION_TOKENS, EstimateConfig().branch_tokens
    alone = header(path.with_name("mr2ag_full.yaml"))
    (base_hours,) = numbers(r"GiB a GPU; (\d+) h on 8 A100 for 200,000 questions", alone)
    base = 100_000 * (image + 6 * one) + 100_000 * (image + 20)
    of_visual = [hours, *numbers(r"GiB a GPU; (\d+) h on 8 A100\.", text)]
    tokens = [(rows * one + knowledge * image) + count * (image + _CONVERSATION) for count in (pictured, visual)]
    assert of_visual == [round(base_hours * count / base) for count in tokens]
    assert numbers(r"not measured: (\d+) GiB", text) == numbers(r"not measured: (\d+) GiB", alone)


_CONVERSATION = 250
"""Tokens of the turns of a visual example, assumed."""


@pytest.mark.parametrize(("folder", "name"), RECIPES)
def test_a_recipes_header_says_what_one_has_to_know(folder: str, name: str) -> None:
    text = header(ROOT / "configs" / folder / f"{name}.yaml")

    for part in ("Download: ", "Data: ", "Launch, ", "Estimated, not measured: ", "It serves "):
        assert part in text
    for named in re.findall(r"configs/[\w/]+\.yaml", text):
        assert (ROOT / named).is_file(), named
    if name != "mr2ag_full":
        assert settings(folder, name)["model"] in text


@pytest.mark.parametrize(("folder", "name"), RECIPES)
def test_a_recipes_header_has_the_memory_that_is_computed_and_it_fits(folder: str, name: str) -> None:
    path = ROOT / "configs" / folder / f"{name}.yaml"
    text, values = header(path), settings(folder, name)
    launch, processes = re.search(r"--config_file configs/accelerate/(\w+)\.yaml", text), 1
    if launch:
        processes = yaml.safe_load((ROOT / f"configs/accelerate/{launch[1]}.yaml").read_text())["num_processes"]
    sharding: Any = launch[1] if launch and launch[1] != "multi_gpu" else ""
    card, written = (int(re.findall(p, text)[0]) for p in (r"Launch, .*? of (\d+) GB", r"not measured: (\d+) GiB"))

    config = EstimateConfig(**values, processes=processes, sharding=sharding)
    computed = total(forecast_from_shapes(config, path.with_name("architecture.json")).parts())

    assert written == math.ceil(computed / GIB)
    assert written < card


@pytest.mark.parametrize("folder", ["llava15_7b", "qwen2_vl_7b"])
def test_a_baselines_header_has_the_memory_that_is_computed_and_it_fits(folder: str) -> None:
    """The papers' baselines, tuned without reflection, whose contexts are longer than passages."""
    (path,) = (ROOT / "configs" / folder).glob("plain_*.yaml")
    text, values = header(path), settings(folder, path.stem)
    launch = re.search(r"--config_file configs/accelerate/(\w+)\.yaml", text)
    assert launch is not None
    branches, tokens, written = map(int, numbers(r"--branches (\d+) --branch_tokens (\d+): (\d+) GiB a GPU", text))
    (card,) = numbers(r"Launch, .*? of (\d+) GB", text)
    processes = yaml.safe_load((ROOT / f"configs/accelerate/{launch[1]}.yaml").read_text())["num_processes"]
    sharding: Any = "" if launch[1] == "multi_gpu" else launch[1]

    config = EstimateConfig(**values, processes=processes, sharding=sharding, branches=branches, branch_tokens=tokens)
    computed = total(forecast_from_shapes(config, path.with_name("architecture.json")).parts())

    assert written == math.ceil(computed / GIB)
    assert written < card
    assert batch_of(folder, path.stem) == 128


def test_every_evaluation_names_what_filters_for_naive_rag() -> None:
    """A baseline must not be weak by default: on the miniature it is everywhere the strongest filter that there is."""
    rerankers = {}
    for path in RUNS:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        if {"naive_rag", "tuned_baselines"} & set(values.get("pipelines", ())):
            rerankers[path.relative_to(ROOT)] = (values.get("reranker"), values.get("reranker_model", ""))
    assert len(rerankers) >= 3
    assert all(kind for kind, _ in rerankers.values()), rerankers
    shipped = {named for path, named in rerankers.items() if path.parent.name == "miniature"}
    assert shipped == {("embedding", "miniature/text")}


def test_no_two_recipes_write_into_one_folder() -> None:
    outputs = [settings(folder, name)["output_dir"] for folder, name in RECIPES]

    assert len(set(outputs)) == len(RECIPES)


def test_stage_1_has_the_published_hyperparameters_and_its_header_counts_right() -> None:
    """LLaVA-1.5's `pretrain.sh`: the projector alone, 1e-3, 256 captions a step, one epoch, cosine, warm-up 0.03."""
    path = ROOT / "configs/llava15_7b/stage1.yaml"
    values, text, batch = settings("llava15_7b", path.stem), header(path), batch_of("llava15_7b", path.stem)
    config = EstimateConfig(**values, branches=1, branch_tokens=40, processes=8, cache_features="anywhere")

    found = forecast_from_shapes(config, path.with_name("architecture.json"))
    steps, captions = numbers(r"Steps: ([\d,]+) for ([\d,]+) captions", text)
    tokens, width, each, whole = numbers(
        r"; (\d+) × ([\d,]+) numbers in bfloat16 would take ([\d.]+) MiB .*?, (\d+) GiB", text
    )

    assert (values["train_towers"], values["learning_rate"], values["epochs"]) == (["projector"], 1e-3, 1)
    assert (values["lr_scheduler"], values["warmup"], config.weight_decay) == ("cosine", 0.03, 0)
    assert batch == numbers(r"Batch: (\d+) questions a step", text)[0] == 256
    assert (captions, steps) == (558_128, math.ceil(558_128 / batch))
    assert found.feature_bytes == tokens * width * 2 == each * 2**20
    assert whole == round(captions * found.feature_bytes / GIB)
    assert numbers(r"branch_tokens 40: (\d+) GiB a GPU", text) == [math.ceil(total(found.parts()) / GIB)]
    assert found.weights.trained == 20_979_712
    assert found.batch.patches == 0


# ReAG's three stages.

REAG_STAGES = [(stage, method) for stage in ("critic", "answer", "grpo") for method in ("full", "lora")]


@pytest.mark.parametrize(("stage", "method"), REAG_STAGES)
def test_a_recipe_of_reag_counts_right_and_fits(stage: str, method: str) -> None:
    folder, name = "qwen25_vl_7b", f"reag_{stage}_{method}"
    path = ROOT / f"configs/{folder}/{name}.yaml"
    text, values, batch = header(path), settings(folder, name), batch_of(folder, name)
    data = settings("papers/reag", f"{stage}_data")
    card, written = (int(re.findall(p, text)[0]) for p in (r"Launch, .*? of (\d+) GB", r"not measured: (\d+) GiB"))
    flags = {key: int(value) for key, value in re.findall(r"--(image_tokens|branch\w*) (\d+)", text)}
    shapes = {"method": method, "model": "Qwen/Qwen2.5-VL-7B-Instruct", "max_pixels": values["max_pixels"]}
    keys = ("lora_r", "lora_alpha", "freeze_vision", "dtype", "gradient_checkpointing", "per_device_train_batch_size")
    shapes |= {key: values[key] for key in keys if key in values}
    cache = 0.0
    if stage == "grpo":
        flags = {"branches": 1, "branch_tokens": 1800, "branch_supervised": values["max_new_tokens"]}
        rows, tokens, kib, gib = numbers(r"cache of (\d+) × ([\d,]+) tokens × (\d+) KiB = ([\d.]+) GiB", text)
        layers, heads, width = numbers(r"(\d+) layers × 2 × (\d+) heads × (\d+) × 2 bytes", text)
        config = architecture(folder)["config"]["text_config"]
        assert (layers, heads) == (config["num_hidden_layers"], config["num_key_value_heads"])
        assert width == config["hidden_size"] / config["num_attention_heads"]
        assert kib * 2**10 == layers * 2 * heads * width * 2
        assert rows == values["per_device_train_batch_size"] * values["gradient_accumulation_steps"]
        cache = rows * tokens * kib * 2**10
        assert gib == round(cache / GIB, 1)
    sharding: Any = "zero2" if method == "full" else ""
    estimate = EstimateConfig(**shapes, scheme="plain", processes=8, sharding=sharding, **flags)
    computed = total(forecast_from_shapes(estimate, path.with_name("architecture.json")).parts()) + cache

    assert written == math.ceil(computed / GIB) < card
    steps, asked = numbers(r"Steps: ([\d,]+) for ([\d,]+) (?:questions|prompts)", text)
    assert asked == data["limit"]
    prompts = batch / values.get("generations", 1)
    assert steps == math.ceil(asked / prompts)
    assert numbers(r"Batch: (\d+)", text) == [batch]
    assert data["output"] == values["train_data"]
    if stage == "critic":
        assert data["limit"] * (1 + data["negatives"]) == 1_000_000  # the paper's passages
    assert values.get("answer_weight") == (0.8 if stage == "answer" else None)


def test_stages_of_reag_take_what_the_stage_before_has_written() -> None:
    critic = settings("qwen25_vl_7b", "reag_critic_full")
    assert settings("papers/reag", "grpo_data")["base_model"] == critic["output_dir"]
    names = ("critic", "answer", "grpo", "grpo_data")
    miniature = {name: settings("examples/miniature", f"reag_{name}") for name in names}
    assert miniature["grpo_data"]["base_model"] == miniature["critic"]["output_dir"]
    assert miniature["grpo"]["model"] == miniature["answer"]["output_dir"]
    for method in ("full", "lora"):
        answer = settings("qwen25_vl_7b", f"reag_answer_{method}")
        assert settings("qwen25_vl_7b", f"reag_grpo_{method}")["model"] == answer["output_dir"]
