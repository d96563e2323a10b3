"""Measure training on trees against flat rows in TRL's stock SFTTrainer, on models of a given size.

    python benchmarks/train.py                                   # one step on a CPU
    python benchmarks/train.py --whole --results OUT             # whole trainings on a GPU of 80 GB
    python benchmarks/train.py --whole --results OUT --device cpu --size tiny --questions 64    # a smoke test

A question has an image of 576 tokens and K passages, each followed by a reflection token and an answer. A step is one
forward and one backward pass; the optimiser's is the same on both sides. Weights are random, and the losses must agree.

A whole training (`--whole`) has loader, recomputation, optimiser and log: LoRA by LLaVA-1.5-7B's recipe, on questions
whose passages differ in length. All sides read the same questions in the same order and steps. It takes eight minutes
on one H100; long trees are `--branches 20 --tokens 700`.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from typing import Any

import torch
from datasets import Dataset
from results import Benchmark, table
from transformers import PreTrainedModel
from trl import SFTConfig, SFTTrainer
from whole_training import SIDES, head_to_head, whole_claims, whole_tables
from workload import FAMILIES, NAMES, SIZES, build, flat_rows, freeze_vision_tower, timed, tree_of, tree_step

from reflectune.examples.miniature.models.architecture import train_tokenizer
from reflectune.models.attention.collation import TreeCollator


def stock_trainer(model: PreTrainedModel, folder: str, rows: int) -> SFTTrainer:
    """Build TRL's trainer on the model, with its own loss."""
    config = SFTConfig(
        output_dir=folder,
        per_device_train_batch_size=rows,
        report_to="none",
        use_cpu=True,
        bf16=False,
        remove_unused_columns=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        gradient_checkpointing=False,
        max_length=None,
    )
    tokenizer = train_tokenizer(["what is it made of"], 300, "llava")
    unused = Dataset.from_dict({"input_ids": [[0]] * rows})
    trainer = SFTTrainer(model, config, data_collator=_unchanged, train_dataset=unused, processing_class=tokenizer)
    trainer.current_gradient_accumulation_steps = 1  # set by its own loop
    return trainer


def _unchanged(rows: list[Any]) -> Any:
    return rows


def measure(family: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Time a step on flat rows and on a tree."""
    model: Any = build(family, arguments.size or FAMILIES[family])
    freeze_vision_tower(model)
    model.train()
    tree = tree_of(model, arguments.branches, arguments.tokens)
    rows = flat_rows(model, tree)
    with tempfile.TemporaryDirectory() as folder:
        trainer = stock_trainer(model, folder, arguments.branches)

        def flat_step() -> float:
            model.zero_grad()
            if family != "llava":
                model.model.rope_deltas = None
            return float(trainer.training_step(model, dict(rows)))

        flat, flat_loss = timed(flat_step, repeats=arguments.repeats, warm_up=1)
    batch = TreeCollator(model)([tree])
    ours, our_loss = timed(lambda: tree_step(model, batch), repeats=arguments.repeats, warm_up=1)
    return {
        "flat rows": {"seconds": round(flat, 3), "tokens": rows["input_ids"].numel(), "loss": flat_loss},
        "tree": {"seconds": round(ours, 3), "tokens": tree.length, "loss": our_loss},
    }


def tables(figures: dict[str, Any]) -> list[str]:
    """Return the page's tables."""
    rows = []
    for family in (name for name in FAMILIES if name in figures):
        flat, ours = (figures[family][name] for name in ("flat rows", "tree"))
        ratio, tokens = flat["seconds"] / ours["seconds"], flat["tokens"] / ours["tokens"]
        far = abs(ours["loss"] - flat["loss"]) / flat["loss"]
        rows.append(
            (NAMES[family], flat["seconds"], ours["seconds"], f"{ratio:.2f} ×", f"{tokens:.2f} ×", f"{far:.0e}")
        )
    head = ("a step, s", "SFTTrainer, flat rows", "tree", "faster", "fewer tokens", "difference of the loss")
    return table(head, rows)


def claims(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the rows of the board."""
    if "sides" in figures:
        return whole_claims(figures)
    rows = []
    for family in (name for name in FAMILIES if name in figures):
        flat, ours = figures[family]["flat rows"]["seconds"], figures[family]["tree"]["seconds"]
        claim = f"{NAMES[family]}, one CPU thread: a step on a tree of 8 passages"
        rows.append((claim, f"{ours:.2f} s", f"SFTTrainer on flat rows {flat:.2f} s"))
    return rows


BENCHMARK = Benchmark(
    "train",
    "Training on trees on a CPU",
    """
Random weights in float32, one thread; medians. All weights except the vision tower's are trained. A question has an
image of 576 tokens, and 8 passages of 120 tokens, 17 of them supervised.

*Flat rows* are TRL's stock `SFTTrainer`: one row per passage, each with the image and the question, in one batch. Both
sides have the same weights, tokens and labels. [gpu.md](gpu.md) has the speed at 7B.
""",
    tables,
    claims,
    {"train_whole": whole_tables},
)


def main() -> None:
    """Measure every family, and write the results."""
    parser = BENCHMARK.parser(__doc__)
    parser.add_argument("--whole", action="store_true", help="measure whole LoRA trainings")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES), help="sides of --whole")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="device of --whole")
    parser.add_argument("--family", choices=FAMILIES, default="llava", help="family of --whole")
    parser.add_argument("--questions", type=int, default=128, help="questions of --whole")
    parser.add_argument("--step", type=int, default=16, help="questions per optimiser step of --whole")
    parser.add_argument("--epoch", type=int, default=100_000, help="questions of an epoch, for epochs per hour")
    parser.add_argument("--tokens_per_device", type=int, default=14_336, help="maximum tokens per forward pass")
    parser.add_argument("--rank", type=int, default=128, help="LoRA rank of --whole")
    parser.add_argument("--size", choices=SIZES, help="size of every family; default with --whole: 7b")
    parser.add_argument("--branches", type=int, help="passages of a question; default: 8, with --whole 6")
    parser.add_argument("--tokens", type=int, help="tokens of a branch; default: 137, with --whole 190 on average")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    arguments = BENCHMARK.parse(parser)
    torch.set_num_threads(arguments.threads)
    branches, tokens = (6, 190) if arguments.whole else (8, 137)
    arguments.branches, arguments.tokens = arguments.branches or branches, arguments.tokens or tokens
    if arguments.whole:
        arguments.size = arguments.size or "7b"
        write = partial(BENCHMARK.write, arguments=arguments, name="train_whole")
        print("\n".join(whole_tables(head_to_head(arguments, write))))
        return None
    return BENCHMARK.finish({family: measure(family, arguments) for family in FAMILIES}, arguments)


if __name__ == "__main__":
    main()
