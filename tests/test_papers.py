"""Every stage of `configs/papers/*/dvc.yaml` is a command whose config parses, and its dependencies are complete."""

import functools
import importlib
import itertools
import json
import os
import re
import shlex
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from reflectune.core.config import parse_config
from reflectune.core.errors import UserError

ROOT = Path(__file__).parents[1]
PAPERS = sorted(path.parent.name for path in (ROOT / "configs/papers").glob("*/dvc.yaml"))
FLOORS = ("metrics", "retrieval", "data_builders", "train", "inference")
NOT_THERE_YET = re.compile(
    r"does not exist|must be an existing|has no [\w.]+\.json|there is no reflection\.json|holds no adapter"
    r"|is not a (folder|file)|not found: "
    r"|there is no (file|folder) (runs|data)/|is not there|pip install"
)
"""Problems that a stage has because no stage before it was run, not because of its command."""
BY_HAND = ("runs/bem/bem.json", "models/echosight/reranker.pth", "models/reflectiva/config.json")
"""Files that no stage writes and no page offers for download: docs/evaluation.md, docs/retrievers.md, the stage's."""


UNREAD = {
    "evaluate_closed": ("model",),
    "evaluate_without_nq": ("plain_model",),
    "evaluate_untuned": ("model",),
    "evaluate_echosight": ("model",),
    "evaluate_evqa_untuned": ("model",),
}
"""Keys of a stage's config that the pipelines on its command line do not read."""


@dataclass(frozen=True)
class Stage:
    """A stage of a dvc.yaml, after interpolation."""

    paper: str
    name: str
    command: str
    deps: tuple[str, ...]
    outs: tuple[str, ...]
    params: tuple[str, ...]

    @property
    def script(self) -> str:
        """The file of the command, relative to the root."""
        words = shlex.split(self.command)
        if words[0] == "reflectune":
            (path,) = (path for floor in FLOORS for path in ROOT.glob(f"{floor}/{words[1]}.py"))
            return path.relative_to(ROOT).as_posix()
        if words[:2] == ["python", "-m"]:
            return words[2].removeprefix("reflectune.").replace(".", "/") + ".py"
        assert words[:3] == ["accelerate", "launch", "--config_file"]
        assert (ROOT / words[3]).is_file(), words[3]
        return words[5].removeprefix("reflectune.").replace(".", "/") + ".py" if words[4] == "-m" else words[4]

    @property
    def arguments(self) -> list[str]:
        """The flags of the command."""
        words = shlex.split(self.command.split("||")[0])
        if words[0] == "reflectune":
            return words[2:]
        if words[0] == "python":
            return words[3:]
        return words[6:] if words[4] == "-m" else words[5:]


def interpolated(value: Any, variables: dict[str, Any]) -> Any:
    """Fill in `${name}` as DVC does; a mapping becomes flags."""
    if isinstance(value, dict):
        return {interpolated(key, variables): interpolated(item, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [interpolated(item, variables) for item in value]
    if not isinstance(value, str):
        return value

    def filled(match: re.Match[str]) -> str:
        known = variables[match[1]] if match[2] is None else variables[match[1]][match[2]]
        return " ".join(f"--{key} {item}" for key, item in known.items()) if isinstance(known, dict) else str(known)

    return re.sub(r"\$\{(\w+)(?:\.(\w+))?\}", filled, value)


@functools.cache
def stages(paper: str, *, pilot: bool = False) -> list[Stage]:
    """Return the stages of a paper; with the options of `PILOT` in place of those of its `vars`."""
    content = yaml.safe_load((ROOT / "configs/papers" / paper / "dvc.yaml").read_text())
    variables = {key: value for inline in content["vars"] for key, value in inline.items()}
    variables |= PILOT if pilot else {}
    made = []
    for name, stage in content["stages"].items():
        for key, item in stage.get("foreach", {"": {}}).items():
            values = interpolated(stage.get("do", stage), {**variables, "key": key, "item": item})
            assert values["wdir"] == "../../.."
            outs = [dict(out) for out in values["outs"]]
            assert all(out == {path: {"cache": False, "persist": True}} for out in outs for path in out)
            made.append(
                Stage(
                    paper,
                    f"{name}@{key}" if key else name,
                    values["cmd"].strip(),
                    tuple(values["deps"]),
                    tuple(path for out in outs for path in out),
                    tuple(path for file in values.get("params", []) for path in file),
                )
            )
    return made


PILOT = {
    "annotate": {"limit": 1000, "annotator": "string"},
    "probe": {"limit": 1000},
    "lessons": {"limit": 1000},
    "train": {"max_steps": 8},
    "answer": {"limit": 500},
}
"""Options that the head of each dvc.yaml names."""
EVERY = [stage for paper in PAPERS for stage in stages(paper)]
PILOTS = [stage for paper in PAPERS for stage in stages(paper, pilot=True) if stage not in EVERY]


def config_class(script: str) -> Any:
    """Return the config class of a command's file."""
    module = importlib.import_module(f"reflectune.{script.removesuffix('.py').replace('/', '.')}")
    return getattr(module, Path(script).stem).kind


def settings(stage: Stage) -> dict[str, Any]:
    """Return the keys of a stage's YAML file and of its flags."""
    values: dict[str, Any] = {}
    words = stage.arguments
    for position, word in enumerate(words):
        if word == "--config":
            values |= yaml.safe_load((ROOT / words[position + 1]).read_text())
        elif word.startswith("--"):
            given = itertools.takewhile(lambda word: not word.startswith("--"), words[position + 1 :])
            values[word.removeprefix("--")] = " ".join(given)
    return values


def wrong(check: Callable[[Stage], Any], stages: Iterable[Stage]) -> dict[str, Any]:
    """Return the findings of a check by stage."""
    return {f"{stage.paper}, {stage.name}": found for stage in stages if (found := check(stage))}


def problems(stage: Stage) -> list[str]:
    """Return the problems of a stage's config, but for files that no stage has written yet."""
    try:
        parse_config(config_class(stage.script), argv=stage.arguments)
    except UserError as error:
        return [problem for problem in str(error).splitlines()[1:] if not NOT_THERE_YET.search(problem)]
    return []


def test_a_stages_command_has_a_config_that_parses(monkeypatch, tmp_path) -> None:
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)  # nothing is there but the configs
    monkeypatch.setenv("OPENAI_API_KEY", "key")  # a judge's
    assert wrong(problems, [*EVERY, *PILOTS]) == {}


def elsewhere(stage: Stage) -> list[str]:
    """Return the outputs of a stage that don't lie in the output of its command."""
    values = settings(stage)
    output = values.get("output") or values["output_dir"]
    return [out for out in stage.outs if out != output and not out.startswith(f"{output}/")]


def test_a_stage_depends_on_its_config_and_writes_into_its_output() -> None:
    for stage in EVERY:
        words = stage.arguments
        assert list(stage.params) == [words[i + 1] for i, word in enumerate(words) if word == "--config"], stage
    assert wrong(elsewhere, EVERY) == {}


def test_no_two_stages_write_one_file() -> None:
    outs = [out for stage in EVERY for out in stage.outs]
    assert len(set(outs)) == len(outs)


def undeclared(stage: Stage) -> list[str]:
    """Return the folders and downloads that a stage's settings name and its dependencies don't."""
    values = settings(stage)
    named = [values.get(key) for key in ("dataset", "index", "reflection", "probes", "ranked_entities", "model")]
    named += [values.get(key) for key in ("base_model", "plain_model", "answerer", "bem", "visual_dataset")]
    train_data = values.get("train_data")
    if isinstance(train_data, str) and train_data.startswith("{"):
        train_data = json.loads(train_data)
    named += [*train_data] if isinstance(train_data, dict) else [train_data]
    named += [path for value in named if isinstance(value, dict) for path in value.values()]
    given = [values[key] for key in UNREAD.get(stage.name.partition("@")[0], ())]
    unread = {path for value in given for path in (value.values() if isinstance(value, dict) else [value])}
    read = {name for name in named if isinstance(name, str) and name.startswith(("runs/", "checkpoints/"))}
    if stage.script == "data_builders/convert.py":
        read |= converted(values)
    return [path for path in read - unread if not any(dep == path or dep.startswith(f"{path}/") for dep in stage.deps)]


def converted(values: dict[str, Any]) -> set[str]:
    """Return the files of questions and articles that a conversion reads."""
    splits = typed(values.get("splits", {}))
    chosen = [files for name, files in splits.items() if values.get("split") in (None, name)]
    names = [name for files in chosen for name in (files.values() if isinstance(files, dict) else [files])]
    names += [values[key] for key in ("knowledge_source",) if values.get(key)]
    return {os.path.normpath(f"{values.get('root', '.')}/{name}") for name in names}


def test_a_stage_depends_on_all_that_it_reads() -> None:
    assert wrong(undeclared, EVERY) == {}


def test_a_dependency_is_downloaded_or_written_by_a_stage() -> None:
    def unwritten(stage: Stage) -> list[str]:
        written = {out for other in EVERY for out in other.outs if other != stage}
        return [dep for dep in stage.deps if not dep.startswith("data/") and dep not in {*written, *BY_HAND}]

    assert wrong(unwritten, EVERY) == {}


def test_the_stages_have_an_order() -> None:
    done: set[str] = set()
    remaining = list(EVERY)
    while remaining:
        ready = [s for s in remaining if all(d in done or d.startswith("data/") or d in BY_HAND for d in s.deps)]
        assert ready, [stage.name for stage in remaining]
        done |= {out for stage in ready for out in stage.outs}
        remaining = [stage for stage in remaining if stage not in ready]


def test_the_library_writes_a_file_of_each_outputs_name() -> None:
    files = (path for floor in (*FLOORS, "models", "formats") for path in (ROOT / floor).rglob("*.py"))
    library = "\n".join(path.read_text(encoding="utf-8") for path in files)
    names = {Path(out).name for stage in EVERY for out in stage.outs} - {"recall.json"}
    assert {name for name in names if f'"{name}"' not in library} == set()


def test_stages_of_reag_read_the_checkpoint_of_the_stage_before() -> None:
    made = {stage.name: settings(stage) for stage in stages("reag")}

    assert made["grpo_data"]["base_model"] == made["critic"]["output_dir"]
    assert made["grpo"]["model"] == made["answers"]["output_dir"]
    assert made["answers"]["answer_weight"] == "0.8"
    assert int(made["critic_data"]["limit"]) * (1 + int(made["critic_data"]["negatives"])) == 1_000_000  # the paper's
    for data, training in (("critic_data", "critic"), ("answer_data", "answers"), ("grpo_data", "grpo")):
        assert made[data]["output"] == made[training]["train_data"]


def test_stages_of_promsa_read_the_checkpoint_of_the_stage_before_by_the_papers_numbers() -> None:
    made = {stage.name: settings(stage) for stage in stages("promsa")}

    models = [made["sft"]["output_dir"], made["grpo_infoseek"]["output_dir"], made["grpo"]["output_dir"]]
    read = ("grpo_infoseek", "model"), ("grpo", "model"), ("evaluate", "base_model"), ("evaluate_evqa", "base_model")
    assert [made[name][key] for name, key in read] == [*models, models[-1]]
    assert [*made["sft"]["train_data"]] == [made[f"data_{name}"]["output"] for name in ("infoseek", "evqa")]
    trainings, grpo = [made["grpo_infoseek"], made["grpo"]], made["grpo"]
    assert sum(int(training["limit"]) for training in trainings) == 15_000
    trajectories = 8 * grpo["per_device_train_batch_size"] * grpo["gradient_accumulation_steps"]
    assert (trajectories // grpo["generations"], grpo["horizon"], grpo["learning_rate"]) == (128, 0.04, 1e-6)
    assert (made["sft"]["epochs"], made["sft"]["learning_rate"]) == (3, 1e-5)
    budget = [
        (s["image_calls"], s["text_calls"], s["call_passages"], s["turns"]) for s in made.values() if "turns" in s
    ]
    assert set(budget) == {(3, 3, 3, 7)}


def test_one_model_of_mr2ag_has_all_tables() -> None:
    made = {stage.name: settings(stage) for stage in stages("mr2ag")}
    table_3 = yaml.safe_load((ROOT / "configs/examples/lmms_eval/llava15_7b.yaml").read_text())

    models = {made[name]["model"] for name in ("evaluate", "evaluate_evqa", "sweep")} | {table_3["model"]}
    assert models == {made["train"]["output_dir"]}
    assert set(made["train"]["train_data"]) >= {made["visual_it"]["output"]}


def test_each_baseline_of_mr2ag_is_read_by_the_model_that_was_tuned_on_its_contexts() -> None:
    made = {stage.name: settings(stage) for stage in stages("mr2ag")}
    tuned_on = {}
    for name in ("mrag", "sfr"):
        data, training = made[f"{name}_data"], made[f"train_{name}"]
        assert data["output"] == training["train_data"]
        forms = data["evidence"].split() if isinstance(data["evidence"], str) else data["evidence"]
        tuned_on |= dict.fromkeys(forms, training["output_dir"])
    readers = made["evaluate"]["plain_model"]
    assert readers == {form: tuned_on[form] for form in ("article", "articles", "passages")}


@pytest.mark.parametrize("half", ["", "_evqa"])
def test_mmkb_rags_target_model_answers_the_tables(half: str) -> None:
    """Its target is the fine-tuned model: probed on other questions than it was tuned on, tuned, and answering."""
    made = {stage.name: settings(stage) for stage in stages("mmkb_rag")}
    target = made[f"sft{half}"]["output"]

    assert made[f"sft{half}"]["checkpoint"] == made[f"train_plain{half}"]["output_dir"]
    probes = made["evqa_probes" if half else "infoseek_probes"]
    assert (probes["model"], probes["trained_on"]) == (target, made[f"train_plain{half}"]["train_data"])
    assert made[f"train{half}"]["model"] == target
    tables = [f"evaluate{half}", f"table_2{half}", f"tables_3_4{half}", f"table_5{half}@2"]
    assert {made[name]["base_model"] for name in tables} == {target}
    assert made[f"evaluate{half}_untuned"]["base_model"] == made["train_plain"]["model"]
    keys = ("top_n", "documents", "documents_by", "reranker", "reranker_model", "title_weight")
    assert {tuple(made[name][key] for key in keys) for name in tables} == {tuple(probes[key] for key in keys)}
    data = made[f"plain_data{half}"]  # the baselines' ranking
    assert (data["reranker"], data["reranker_model"]) == (probes["reranker"], probes["reranker_model"])


CLIP = "openai/clip-vit-large-patch14-336@ce19dc912ca5cd21c8a653c79e251e808ccabcd1"
EVA = "BAAI/EVA-CLIP-8B@feabc73833cf6198fa5b76a067651ab363a24d65"
GIVEN_MR2AG = {
    "index.yaml": {"encoder": CLIP},
    "train.yaml": {
        "method": "full",
        "train_towers": None,
        "learning_rate": 2e-5,
        "epochs": 1,
        "gradient_accumulation_steps": None,
    },
    "evaluate.yaml": {"top_n": 5, "title_weight": 0.5, "gamma": 0.5, "fallback": None},
    "infoseek_data.yaml": {"negatives_retrieved": 0, "negatives_random": 0, "llm_model": "GPT-4", "limit": None},
    "evaluate_evqa.yaml": {"ranked_scores": None, "top_n": 5, "gamma": 0.5},
    "evqa_data.yaml": {"negatives_retrieved": 0, "negatives_random": 0, "two_hop": False},
    "sweep": {"top_n": 5, "title_weight": 0.5},
    "plain_data.yaml": {"top_n": 5, "evidence": None, "context_words": None},
    "sfr_data": {"evidence": None},
    "nq_it": {"limit": None, "without_image": None, "positives": None, "negatives_random": None},
}
GIVEN_MMKB = {
    "index.yaml": {"encoder": EVA},
    "evaluate.yaml": {"top_n": 5, "k": "auto", "threshold": 0.5, "gamma": 0.5, "title_weight": 0},
    "evaluate": {"documents": None, "mct": "merge", "reranker": "embedding", "reranker_model": None},
    "sweep.yaml": {"top_n": 5, "title_weight": 0, "threshold": 0.5, "gamma": 0.5},
    "probe.yaml": {"top_n": 5, "title_weight": 0, "limit": 93405, "documents": None},
    "derive_labels.yaml": {"tau": None},
    "infoseek_labels": {"rule": "paper", "noise": "no_rel", "srt_limit": None},
    "configs/recipes/mmkb_lora.yaml": {
        "method": "lora",
        "lora_r": None,
        "lora_alpha": None,
        "learning_rate": None,
        "max_pixels": None,
        "max_steps": None,
        "gradient_accumulation_steps": None,
    },
    "train_plain.yaml": {"epochs": None, "gradient_accumulation_steps": None},
    "evqa_probes": {"limit": None},
}
"""The papers' own values by stage, or by file with all stages that read it; None where a paper gives none."""


def path_of(paper: str, file: str) -> Path:
    return (ROOT if "/" in file else ROOT / "configs/papers" / paper) / file


def values_of(paper: str, place: str, key: str) -> dict[str, Any]:
    """Return a key's value in a file and in the stages that read it, or in one stage, by place."""
    file = path_of(paper, place).relative_to(ROOT).as_posix()
    read = {stage.name: stage for stage in stages(paper) if stage.name == place or file in stage.params}
    made = {name: settings(stage) for name, stage in read.items()}
    if place.endswith(".yaml"):
        made[place] = yaml.safe_load(path_of(paper, place).read_text())
    default = config_class(next(iter(read.values())).script).model_fields[key].default
    return {name: typed(values.get(key, default)) for name, values in made.items()}


def typed(value: Any) -> Any:
    return yaml.safe_load(value) if isinstance(value, str) else value


def departures(paper: str, given: dict[str, dict[str, Any]], listed: Collection[tuple[str, str]]) -> dict[str, Any]:
    """Return the values that are neither the paper's nor in the table, which names a stage or a file for its stages."""
    stage_keys = {(place.partition("@")[0], key) for place, key in listed}
    found = {}
    for place, keys in given.items():
        for key, own in keys.items():
            files = [file for file, k in listed if k == key and file.endswith(".yaml")]
            known = [own, *(table_value(paper, file, key) for file in files)]
            for name, value in values_of(paper, place, key).items():
                if value not in known and (name.partition("@")[0], key) not in stage_keys:
                    found[f"{name}: {key}"] = value
    return found


@pytest.mark.parametrize(
    ("paper", "title", "own"), [("mr2ag", "mR²AG", GIVEN_MR2AG), ("mmkb_rag", "MMKB-RAG", GIVEN_MMKB)]
)
def test_the_departures_are_those_of_the_table(paper: str, title: str, own: dict[str, dict[str, Any]]) -> None:
    table = (ROOT / "docs/reproduce.md").read_text().split(f"| {title} | paper |")[1].split("\n\n")[0]
    listed = set()
    for row in table.splitlines()[2:]:
        place, *pairs = re.findall(r"`([^`]+)`", row.split(" | ")[3])
        for pair in pairs:
            key, value = re.split(r": | ", pair.removeprefix("--"), maxsplit=1)
            assert str(typed(table_value(paper, place, key))) == str(typed(value)), row
            listed.add((place, key))
    assert departures(paper, own, listed) == {}


def table_value(paper: str, place: str, key: str) -> Any:
    """Return the value that a row of the table is about."""
    if place.endswith(".yaml"):
        return yaml.safe_load(path_of(paper, place).read_text())[key]
    return settings(next(stage for stage in stages(paper) if stage.name == place))[key]
