"""Trainers that a benchmark runs: ours as `fine_tune` makes it, stock `SFTTrainer`, and a clock for both."""

from __future__ import annotations

import functools
import random
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, load_dataset
from running import wait
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import SaveStrategy
from trl import SFTConfig, SFTTrainer

from reflectune.core.config import parse_config
from reflectune.data_builders.exporting.config import ExportConfig
from reflectune.data_builders.exporting.run import export
from reflectune.formats.reflection_data import (
    Manifest,
    read_examples,
    read_manifest,
    write_examples,
    write_manifest,
)
from reflectune.models.attention.tree import IGNORE
from reflectune.models.schemes.examples import ReflectionExample
from reflectune.train.data.examples import Collator, load_training_data
from reflectune.train.data.order import training_order
from reflectune.train.runs.fine_tune import (
    encoded_examples,
    global_batch,
    load_base,
    prepare_model,
    save_model,
    training_arguments,
)
from reflectune.train.runs.trainer import ReflectionTrainer, TrainingRun
from reflectune.train.settings.sft import SftConfig

CONFIGS = Path(__file__).resolve().parents[1] / "configs/examples/miniature"


@dataclass(frozen=True)
class Epoch:
    """What one epoch took.

    Attributes:
        seconds: By the clock.
        cpu_seconds: Of this process; what else runs on the machine hardly matters to it.
        tokens: That were read, without padding.
        supervised: Those that are predicted; stock also predicts what a template writes after the end of a turn.
    """

    seconds: float
    cpu_seconds: float
    tokens: int
    supervised: int


class Clock(TrainerCallback):
    """Times each epoch of a trainer, and counts what its batches hold."""

    def __init__(self, trainer: Trainer, device: str) -> None:
        super().__init__()
        self._device, self._start = device, (0.0, 0.0)
        self._seconds: list[tuple[float, float]] = []
        self._counts: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        self._collate: Any = trainer.data_collator
        trainer.data_collator = self._counted
        trainer.add_callback(self)

    def _counted(self, features: list[Any]) -> Any:
        batch = self._collate(features)
        counts = self._counts[len(self._seconds)]
        counts[0] += batch["tokens"] if "tokens" in batch else int(batch["attention_mask"].sum())
        counts[1] += int((batch["labels"][:, 1:] != IGNORE).sum())
        return batch

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        """Start the clock."""
        wait(self._device)
        self._start = time.perf_counter(), time.process_time()

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        """Stop it."""
        wait(self._device)
        self._seconds.append((time.perf_counter() - self._start[0], time.process_time() - self._start[1]))

    def epochs(self) -> list[Epoch]:
        """What was measured."""
        return [Epoch(*seconds, *self._counts[i]) for i, seconds in enumerate(self._seconds)]


def subset(source: Path, folder: Path, questions: int) -> None:
    """Write some of a quick start's questions, drawn by a fixed seed, as reflection data of their own."""
    manifest = read_manifest(source)
    examples = read_examples(source / "train.parquet", ReflectionExample)
    write_examples(folder / "train.parquet", random.Random(0).sample(examples, questions))
    write_manifest(folder, Manifest(manifest.scheme, manifest.image_root, {"train": "0"}))


def settings(method: str, model: str, data: Path, **more: Any) -> SftConfig:
    """The miniature's config of a method, for a model and data, with some settings changed."""
    given = {"model": model, "train_data": data, "output_dir": data.parent / "run", "logging_steps": 10, **more}
    argv = [part for name, value in given.items() for part in (f"--{name}", str(value))]
    (config,) = parse_config(SftConfig, argv=["--config", str(CONFIGS / f"mr2ag_{method}.yaml"), *argv])
    return config


def ours(config: SftConfig) -> ReflectionTrainer:
    """Our trainer, as `fine_tune` makes it."""
    torch.set_float32_matmul_precision(config.matmul_precision)
    data = load_training_data(config.parts(), config.scheme)
    args = training_arguments(config)
    args.save_strategy = SaveStrategy.NO
    loaded = load_base(config, args)
    model = prepare_model(loaded, config)
    dataset = encoded_examples(data.examples, data.image_roots, loaded, config)
    order = training_order(data, global_batch(args), seed=config.seed, group_by_length=config.group_by_length)
    save = functools.partial(save_model, loaded=loaded, settings={})
    return ReflectionTrainer(TrainingRun(model, args, dataset, Collator(loaded.model), order, save, {}))


def exported(config: SftConfig) -> Dataset:
    """The data as TRL's users read it."""
    (part,) = config.parts()
    folder = part.folder.parent / "trl"
    if not folder.exists():
        export(ExportConfig(data=str(part.folder), to="trl", output=str(folder)))
    return load_dataset(str(folder), cache_dir=str(folder.parent / "cache"))["train"]


def stock(config: SftConfig, rows: Dataset) -> SFTTrainer:
    """TRL's trainer on the same weights, with the same optimiser, schedule and precision."""
    torch.set_float32_matmul_precision(config.matmul_precision)
    mine = training_arguments(config)
    loaded = load_base(config, mine)
    questions = len(load_training_data(config.parts(), config.scheme).examples)
    args = SFTConfig(
        output_dir=config.output_dir,
        max_length=None,
        per_device_train_batch_size=round(config.per_device_train_batch_size * len(rows) / questions),
        num_train_epochs=config.epochs,
        max_steps=config.max_steps or -1,
        learning_rate=config.learning_rate,
        lr_scheduler_type=config.lr_scheduler,
        warmup_steps=config.warmup,
        logging_steps=config.logging_steps,
        seed=config.seed,
        use_cpu=mine.use_cpu,
        bf16=mine.bf16,
        gradient_checkpointing=config.gradient_checkpointing,
        save_strategy="no",
        report_to="none",
    )
    return SFTTrainer(prepare_model(loaded, config), args, train_dataset=rows, processing_class=loaded.processor)
