"""Whole trainings by LoRA: trees in this project's trainer against flat rows in TRL's stock SFTTrainer.

`python benchmarks/train.py --whole` runs them. A whole training has loader, recomputation, optimiser and log. All sides
read the same questions in the same order and steps, and start from the same adapters.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from datasets import Dataset
from results import table
from torch import Tensor
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainingArguments
from trl import SFTConfig, SFTTrainer
from workload import build, tree_of, with_adapters

from reflectune.examples.miniature.models.architecture import train_tokenizer
from reflectune.models.attention.positions import inner_model
from reflectune.models.attention.tree import IGNORE, Segment, Tree, independent_rows
from reflectune.train.data.examples import Collator, EncodedExample
from reflectune.train.data.micro_batches import tokens_of
from reflectune.train.data.order import TrainingOrder
from reflectune.train.estimates.architecture import Architecture
from reflectune.train.estimates.forecast import forecast, largest_batch
from reflectune.train.estimates.memory import Division, count_weights, total
from reflectune.train.runs.checkpointed_trainer import Run
from reflectune.train.runs.packing import packs_trees
from reflectune.train.runs.trainer import ReflectionTrainer
from reflectune.train.settings.sft import SftConfig
from reflectune.train.weights.parameters import recompute_layers

WARM_UP = 3
"""Steps that aren't timed: layers are compiled in most of them. Of the others the median counts."""
AT_ONCE = 2
"""Questions of a forward pass in configs/recipes/mr2ag_lora.yaml."""


class Clock(TrainerCallback):
    """A callback that records the end of each step."""

    def __init__(self, device: str) -> None:
        self.ends: list[float] = []
        self._device = device

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Record the time when the device has finished the step."""
        if self._device == "cuda":
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())


def drawn_questions(model: PreTrainedModel, arguments: argparse.Namespace) -> list[EncodedExample]:
    """Draw questions with different images, whose passages have 0.5 to 1.5 times the mean length."""
    shortest, most = arguments.tokens // 2, arguments.tokens * 3 // 2
    lengths, generator = random.Random(0), torch.Generator().manual_seed(0)
    examples = []
    for number in range(arguments.questions):
        longest = tree_of(model, arguments.branches, most)
        sizes = [lengths.randint(shortest, most) for _ in longest.branches]
        branches = [
            Segment.of(branch.ids[-size:], branch.labels[-size:])
            for branch, size in zip(longest.branches, sizes, strict=True)
        ]
        pixels = torch.randn(longest.vision["pixel_values"].shape, generator=generator)
        vision = {**longest.vision, "pixel_values": pixels}
        examples.append(EncodedExample(f"q{number}", (replace(longest, branches=tuple(branches), vision=vision),)))
    return examples


def padded_rows(model: PreTrainedModel, rows: Sequence[Tree]) -> dict[str, Tensor]:
    """Return rows as a padded batch, with the image in each, as stock trainers read them."""
    most = max(row.length for row in rows)

    def filled(values: Sequence[int], padding: int) -> Tensor:
        return F.pad(torch.tensor(values), (0, most - len(values)), value=padding)

    ids = torch.stack([filled(row.prefix.ids, 0) for row in rows])
    mask = torch.stack([filled([1] * row.length, 0) for row in rows])
    labels = torch.stack([filled(row.prefix.labels, IGNORE) for row in rows])
    vision = {name: torch.cat([row.vision[name] for row in rows]) for name in rows[0].vision}
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels, **vision}
    if model.config.model_type != "llava":
        batch["mm_token_type_ids"] = (ids == model.config.image_token_id).int()
    return batch


def joined_rows(rows: Sequence[Tree]) -> dict[str, Tensor]:
    """Join LLaVA's rows into one without padding; transformers separates them by their positions."""
    joined = {
        "input_ids": [token for row in rows for token in row.prefix.ids],
        "position_ids": [position for row in rows for position in range(row.length)],
        "labels": [label for row in rows for label in (IGNORE, *row.prefix.labels[1:])],
    }
    vision = {name: torch.cat([row.vision[name] for row in rows]) for name in rows[0].vision}
    return {**{name: torch.tensor([values]) for name, values in joined.items()}, **vision}


def arguments_of(kind: type[TrainingArguments], arguments: argparse.Namespace, folder: str, **more: Any) -> Any:
    """Return the arguments that all sides share, and a side's own."""
    shared: dict[str, Any] = {
        "output_dir": folder,
        "num_train_epochs": 1,
        "learning_rate": 2e-4,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.03,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "bf16": arguments.device == "cuda",
        "use_cpu": arguments.device == "cpu",
        "dataloader_pin_memory": arguments.device == "cuda",
        "ddp_find_unused_parameters": False,
    }
    return kind(**{**shared, **more})


def stock_side(
    model: Any, examples: Sequence[EncodedExample], arguments: argparse.Namespace, folder: str, kind: str
) -> Trainer:
    """Build SFTTrainer on flat rows: with its defaults, compiled layers, compiled layers without padding, or Liger."""
    if "no padding" in kind and model.config.model_type != "llava":
        raise ValueError("rows without padding have no 3D positions")
    rows = [row for example in examples for row in independent_rows(example.trees[0])]
    at_once = AT_ONCE * arguments.branches
    config = arguments_of(
        SFTConfig,
        arguments,
        folder,
        per_device_train_batch_size=at_once,
        gradient_accumulation_steps=arguments.step // AT_ONCE,
        activation_checkpointing=True,
        activation_checkpointing_kwargs={"use_reentrant": False},
        train_sampling_strategy="sequential",
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
        use_liger_kernel="Liger" in kind,
    )

    def collated(batch: list[dict[str, Any]]) -> dict[str, Tensor]:
        chosen = [rows[item["row"]] for item in batch]
        return joined_rows(chosen) if "no padding" in kind else padded_rows(model, chosen)

    if "compiled" in kind and arguments.device == "cuda":
        for layer in model.model.language_model.layers:
            layer.compile(dynamic=True)
    tokenizer = train_tokenizer(["what is it made of"], 300, "llava")
    indices = Dataset.from_dict({"row": list(range(len(rows)))})
    adapted: Any = with_adapters(model, arguments.rank)
    return SFTTrainer(adapted, config, data_collator=collated, train_dataset=indices, processing_class=tokenizer)


def our_side(
    model: Any, examples: Sequence[EncodedExample], arguments: argparse.Namespace, folder: str, kind: str
) -> Trainer:
    """Build this project's trainer as `train/sft.py` does, with micro-batches of questions or with a token budget."""
    budget = arguments.tokens_per_device if "budget" in kind else None
    at_once = arguments.step if budget else AT_ONCE
    args = arguments_of(
        TrainingArguments,
        arguments,
        folder,
        per_device_train_batch_size=at_once,
        gradient_accumulation_steps=arguments.step // at_once,
    )
    args._n_gpu = min(args.n_gpu, 1)
    collator = Collator(model)
    packs = packs_trees(model, SftConfig(dtype="bfloat16"), args)
    adapted = with_adapters(model, arguments.rank)
    recompute_layers(adapted)
    in_turn = InTurn([1] * len(examples), [0] * len(examples), batch_size=arguments.step, seed=0)
    run = Run(adapted, args, lambda *_: None, {})
    return ReflectionTrainer(run, examples, collator, in_turn, packs=packs, tokens_per_device=budget)  # type: ignore[arg-type]


class InTurn(TrainingOrder):
    """An order that keeps the examples as they are, like the other side's."""

    def _order(self, generator: torch.Generator) -> list[int]:
        return list(range(self.examples))


SIDES: dict[str, Callable[..., Trainer]] = {
    "SFTTrainer as it comes": stock_side,
    "SFTTrainer, compiled": stock_side,
    "SFTTrainer, compiled, no padding": stock_side,
    "SFTTrainer, Liger": stock_side,
    "trees": our_side,
    "trees, budget of tokens": our_side,
}


def whole_training(kind: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train on the questions by one side, and return its speed, its first losses and its peak memory."""
    torch.compiler.reset()
    dtype = torch.bfloat16 if arguments.device == "cuda" else torch.float32
    model: Any = build(arguments.family, arguments.size, dtype=dtype, device=arguments.device)
    examples, clock = drawn_questions(model, arguments), Clock(arguments.device)
    with tempfile.TemporaryDirectory() as folder:
        trainer = SIDES[kind](model, examples, arguments, folder, kind)
        trainer.add_callback(clock)
        if arguments.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    seconds = statistics.median(end - start for start, end in itertools.pairwise(clock.ends[WARM_UP - 1 :]))
    figures = {
        "seconds a step": round(seconds, 4),
        "questions/s": round(arguments.step / seconds, 3),
        "epochs an hour": round(3600 / (seconds * arguments.epoch / arguments.step), 3),
        "seconds of the first steps": round(clock.ends[WARM_UP - 1] - began, 1),
        "first loss": losses[0],
        "last loss": losses[-1],
    }
    if SIDES[kind] is our_side:
        figures["forecast, GiB"] = round(forecast_bytes(trainer, examples, arguments, kind) / 2**30, 1)
        tokens = sum(tokens_of(example) for example in examples) / len(examples)
        figures["tokens/s"] = round(tokens * arguments.step / seconds)
    if arguments.device == "cuda":
        figures["peak, GiB"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
        figures["MFU"] = next((row["mfu"] for row in reversed(trainer.state.log_history) if "mfu" in row), None)
    return figures


def forecast_bytes(
    trainer: Trainer, examples: Sequence[EncodedExample], arguments: argparse.Namespace, kind: str
) -> int:
    """Forecast the memory of our side's largest micro-batch, without the context of the accelerator."""
    model: Any = trainer.model
    shapes = Architecture.of(inner_model(model).config)
    batch = largest_batch(examples, AT_ONCE, shapes.patch_size)
    if "budget" in kind:
        batch = batch.within(arguments.tokens_per_device, arguments.step // AT_ONCE)
    config = SftConfig(
        method="lora",
        lora_r=arguments.rank,
        lora_dropout=0.05,
        dtype="bfloat16" if arguments.device == "cuda" else "float32",
        gradient_checkpointing=True,
    )
    weights = count_weights(model)
    made = forecast(config, config, shapes, weights, batch, Division("", 1), arguments.device, None)
    return total(part for part in made.parts() if part.name != "context")


def head_to_head(arguments: argparse.Namespace, write: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Measure every side, and `write` the figures after each.

    A side that fails is recorded with its error, and one that isn't installed is named.
    """
    figures: dict[str, Any] = {name: getattr(arguments, name) for name in ("family", "questions", "epoch")}
    if arguments.device == "cuda":
        figures["gpu"] = torch.cuda.get_device_name()
    sides: dict[str, Any] = {}
    for kind in arguments.sides:
        if "Liger" in kind and not find_spec("liger_kernel"):
            sides[kind] = {"error": "liger-kernel is not installed"}
            continue
        try:
            sides[kind] = whole_training(kind, arguments)
        except Exception as error:  # the other sides are still measured
            sides[kind] = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(kind, sides[kind], flush=True)
        write({**figures, "sides": sides})
        gc.collect()
        torch.cuda.empty_cache()
    return {**figures, "sides": sides}


def whole_tables(figures: dict[str, Any]) -> list[str]:
    """Return the table of whole trainings."""
    columns = (
        "seconds a step",
        "questions/s",
        "epochs an hour",
        "peak, GiB",
        "first loss",
        "seconds of the first steps",
    )
    rows = [(kind, *(found.get(column) for column in columns)) for kind, found in figures["sides"].items()]
    errors = [f"- {kind}: {found['error']}." for kind, found in figures["sides"].items() if "error" in found]
    return [*table(("whole LoRA training", *columns), rows), *([""] if errors else []), *errors]


def whole_claims(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the row of the board: our best side against the best stock one."""
    speeds = {kind: found["questions/s"] for kind, found in figures["sides"].items() if "questions/s" in found}
    ours, stock = (
        max((speed for kind, speed in speeds.items() if SIDES[kind] is side), default=None)
        for side in (our_side, stock_side)
    )
    claim = f"{figures['family']}: a whole LoRA training, questions/s"
    return [(claim, f"{ours:.2f}", f"SFTTrainer at its best {stock:.2f}")] if ours and stock else []
