"""Stages of MMKB-RAG's tables: world, index, probes, labels in several sizes, and trainings on them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import yaml

from reflectune.core.durable import read_json
from reflectune.examples.miniature.tables.config import SIZES, TablesConfig
from reflectune.examples.miniature.tables.stages import BuildStage
from reflectune.examples.staging import CONFIGS, MMKB

MODEL = "all three tasks"
STRING = "string labels"


def own_labels(size: float) -> str:
    """Return the name of the model that was trained on a share of its own labels."""
    return f"own labels {100 * size:g}%"


def preparation(config: TablesConfig) -> list[BuildStage]:
    """Return the stages that all models share: world, index and probes."""
    output = Path(config.output)
    world, index, probes = output / "world", output / "index", output / "probes"
    indexed = {"knowledge": world / "knowledge", "encoder": config.encoder, "output": index}
    probed = {
        "dataset": world,
        "index": index,
        "model": config.base_model,
        "limit": config.probe_limit,
        "dtype": None if config.dtype == "float32" else config.dtype,  # the recipe's own
        "device": config.device,
        "output": probes,
    }
    made = {"output": world, "seed": config.seed}
    return [
        BuildStage("world", "examples.miniature.build_world", "", made, world),
        BuildStage("index", "retrieval.build_index", "", indexed, index),
        BuildStage("probe", "data_builders.probe", "probe.yaml", probed, probes),
    ]


def labels(config: TablesConfig, name: str) -> BuildStage:
    """Return the stage that derives a model's labels: of all three tasks, or of SRT alone in some number."""
    folder = _folder(config, name) / "labels"
    settings: dict[str, Any] = {
        "probes": Path(config.output, "probes"),
        "dataset": Path(config.output, "world"),
        "output": folder,
        "srt_balance": 3.0,
        "seed": config.seed,
    }
    if name != MODEL:
        # one example of each other task, the least that the command takes, so that SRT alone is compared
        share = config.equal_at if name == STRING else _size(config, name)
        settings |= {"ret_limit": 1, "mct_limit": 1, "srt_limit": lambda: srt_labels(config, share)}
    if name == STRING:
        settings["labeller"] = "string"
    return BuildStage(f"labels: {name}", "data_builders.derive_labels", "derive_labels.yaml", settings, folder)


def training(config: TablesConfig, name: str, seed: int) -> BuildStage:
    """Return the stage that trains on a model's labels."""
    folder = _folder(config, name) / f"checkpoint-{seed}"
    settings: dict[str, Any] = {
        **MMKB,
        "model": config.base_model,
        "train_data": _folder(config, name) / "labels",
        "output_dir": folder,
        "seed": seed,
        "epochs": config.epochs or MMKB["epochs"],
        "device": config.training_device,
    }
    if name != MODEL:
        settings["max_steps"] = lambda: steps(config, name)
    return BuildStage(f"train: {name}, seed {seed}", "train.sft", "sft.yaml", settings, folder)


def srt_labels(config: TablesConfig, share: float) -> int:
    """Return the number of SRT labels in a share of the model's own; at least 1."""
    count = _statistics(config, MODEL)["taken"]["srt"]["examples"]
    return max(1, round(share * int(count)))


def steps(config: TablesConfig, name: str) -> int:
    """Return the steps of a training on SRT alone: the config's epochs, at least `min_steps`."""
    recipe = yaml.safe_load((CONFIGS / "examples/miniature/sft.yaml").read_text())
    batches = math.ceil(_statistics(config, name)["examples"] / recipe["per_device_train_batch_size"])
    return max(config.min_steps, round(batches * (config.epochs or MMKB["epochs"])))


def _statistics(config: TablesConfig, name: str) -> dict[str, Any]:
    path = _folder(config, name) / "labels" / "statistics.json"
    statistics: dict[str, Any] = read_json(path, "the labels' statistics")["train"]
    return statistics


def _folder(config: TablesConfig, name: str) -> Path:
    return Path(config.output, "models", name.replace(" %", "").replace("%", "").replace(" ", "-"))


def _size(config: TablesConfig, name: str) -> float:
    return next(size for size in SIZES if own_labels(size) == name)
