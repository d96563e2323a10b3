"""How MMKB-RAG's tables are prepared: world, index, probes, labels in several sizes, and the trainings on them."""

from __future__ import annotations

import importlib.resources
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from reflectune.core.durable import read_json
from reflectune.examples.miniature.tables.config import TablesConfig
from reflectune.examples.miniature.tables.stages import Stage

MODEL = "all three tasks"
STRING = "string labels"

MINUTES = {
    "world": 0.1,
    "index": 0.1,
    "probe": 2.0,
    "labels": 0.1,
    "train": 3.0,
    "train_size": 0.9,
    "answer": 2.0,
    "answer_size": 0.4,
}
"""On two idle cores, with the settings of configs/examples/miniature/tables_mmkb.yaml."""


@dataclass(frozen=True)
class Prepared:
    """What all settings and seeds share, and the stages that make it."""

    world: Path
    index: Path
    probes: Path
    stages: tuple[Stage, ...]


def own_labels(size: float) -> str:
    """The name of the model that was trained on a share of its own labels."""
    return f"own labels {size:.0%}"


def preparation(config: TablesConfig) -> Prepared:
    """World, index and probes: those that the config names, or stages that make them."""
    output = Path(config.output)
    world = Path(config.world or output / "world")
    index = Path(config.index or output / "index")
    probes = Path(config.probes or output / "probes")
    shared = {"encoder": config.encoder, "dataset": world, "index": index, "device": config.device}
    stages = {
        "world": ("data_builders.build_world", "world.yaml", {"output": world, "seed": config.seed}, world),
        "index": (
            "retrieval.build_index",
            "index.yaml",
            {"knowledge": world / "knowledge", "encoder": config.encoder, "output": index},
            index,
        ),
        "probe": (
            "data_builders.probe",
            "probe.yaml",
            {
                **shared,
                "model": config.base_model,
                "limit": config.probe_limit,
                "dtype": None if config.dtype == "float32" else config.dtype,  # the recipe's own
                "output": probes,
            },
            probes,
        ),
    }
    given = {"world": config.world, "index": config.index, "probe": config.probes}
    made = [
        Stage(name, module, f"examples/miniature/{file}", settings, folder, MINUTES[name])
        for name, (module, file, settings, folder) in stages.items()
        if not given[name]
    ]
    return Prepared(world, index, probes, tuple(made))


def labels(config: TablesConfig, prepared: Prepared, name: str) -> Stage:
    """The labels that a model is trained on: all three tasks, or SRT alone in some number."""
    folder = _folder(config, name) / "labels"
    settings: dict[str, Any] = {
        "probes": prepared.probes,
        "dataset": prepared.world,
        "output": folder,
        "rule": config.rule,
        "srt_balance": config.srt_balance,
        "seed": config.seed,
        "proofread": 0,
    }
    if name != MODEL:
        # one example of each other task, as many as the command can do with, so that SRT alone is compared
        share = config.equal_at if name == STRING else _size(config, name)
        settings |= {"ret_limit": 1, "mct_limit": 1, "srt_limit": lambda: srt_labels(config, share)}
    if name == STRING:
        settings["labeller"] = "string"
    return Stage(
        f"labels: {name}",
        "data_builders.derive_labels",
        "examples/miniature/derive_labels.yaml",
        settings,
        folder,
        MINUTES["labels"],
    )


def training(config: TablesConfig, name: str, seed: int) -> Stage:
    """A training on a model's labels."""
    recipe = f"miniature/mmkb_{config.method}.yaml"
    folder = _folder(config, name) / f"checkpoint-{seed}"
    settings: dict[str, Any] = {
        "model": config.base_model,
        "train_data": _folder(config, name) / "labels",
        "output_dir": folder,
        "seed": seed,
        "epochs": config.epochs,
        "device": "cpu" if config.device == "cpu" else "auto",
    }
    if name != MODEL:
        settings["max_steps"] = lambda: steps(config, name)
    return Stage(
        f"fine-tuning: {name}, seed {seed}",
        "train.sft",
        recipe,
        settings,
        folder,
        MINUTES["train" if name == MODEL else "train_size"],
    )


def srt_labels(config: TablesConfig, share: float) -> int:
    """How many SRT labels a share of the model's own is; at least one."""
    count = _statistics(config, MODEL)["taken"]["srt"]["examples"]
    return max(1, round(share * int(count)))


def steps(config: TablesConfig, name: str) -> int:
    """Steps of a training on SRT alone: the recipe's epochs, or `least_steps` if that is more."""
    recipes = importlib.resources.files("reflectune.configs")
    text = recipes.joinpath(f"examples/miniature/mmkb_{config.method}.yaml").read_text()
    recipe = yaml.safe_load(text)
    batches = math.ceil(_statistics(config, name)["examples"] / recipe["per_device_train_batch_size"])
    return max(config.least_steps, round(batches * float(config.epochs or recipe["epochs"])))


def _statistics(config: TablesConfig, name: str) -> dict[str, Any]:
    path = _folder(config, name) / "labels" / "statistics.json"
    statistics: dict[str, Any] = read_json(path, "the labels' statistics")["train"]
    return statistics


def _folder(config: TablesConfig, name: str) -> Path:
    return Path(config.output, "models", name.replace(" %", "").replace("%", "").replace(" ", "-"))


def _size(config: TablesConfig, name: str) -> float:
    return next(size for size in config.sizes if own_labels(size) == name)
