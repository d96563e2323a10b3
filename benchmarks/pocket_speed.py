"""What sharing prefixes gains on pocket: training against stock `SFTTrainer`, reading against `generate` calls.

    python benchmarks/pocket_speed.py --run runs/pocket --output benchmarks/pocket_speed.md

Real weights, pictures and passages: the recipe `configs/examples/pocket/mr2ag_lora.yaml` on some questions of its own
data, and
`pocket/mr2ag` on questions of the gallery. Both sides of each comparison run in this process, one after the other, on
the same threads; beside them stands what the machine computes at that moment. Before it: the stages `parts`, `gallery`
and `reflection` of `pocket.py`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from one_by_one import compare
from running import write
from trainers import Clock, Epoch, exported, ours, stock, subset
from transformers.utils import logging

from reflectune.core.config import parse_config
from reflectune.formats.dataset import Dataset
from reflectune.train.settings.sft import SftConfig

RECIPE = Path(__file__).resolve().parents[1] / "configs/examples/pocket/mr2ag_lora.yaml"


def recipe(data: Path, dtype: str, *more: str) -> SftConfig:
    """Pocket's own, on other data; pictures are read by the tower on both sides, since stock caches no features."""
    given = ["--config", str(RECIPE), "--train_data", str(data), "--output_dir", str(data.parent / "run")]
    (config,) = parse_config(SftConfig, argv=[*given, "--dtype", dtype, "--cache_features", "", *more])
    return config


def stock_on_adapters(config: SftConfig, rows: Any) -> Any:
    """Stock's trainer, whose fused loss (TRL 1.16) fails over a head that peft's trainable rows are wrapped around.

    It asks the head for a bias. With one that is None it goes on, and leaves the new rows' training out of the head: a
    little less work than ours.
    """
    trainer: Any = stock(config, rows)
    trainer.model.get_output_embeddings().bias = None
    return trainer


def trained(data: Path, dtype: str) -> tuple[Epoch, Epoch]:
    """An epoch of stock's trainer and one of ours, after one step of each that warms up."""
    config, one_step = recipe(data, dtype), recipe(data, dtype, "--max_steps", "1")
    rows = exported(config)
    epochs = []
    for make in (lambda c: stock_on_adapters(c, rows), ours):
        make(one_step).train()
        trainer = make(config)
        clock = Clock(trainer, "cpu")
        trainer.train()
        epochs += clock.epochs()
    theirs, mine = epochs
    return theirs, mine


def training_lines(data: Path, dtype: str, questions: int) -> list[str]:
    """The table of the trainings."""
    theirs, mine = trained(data, dtype)
    lines = ["| | s a question | tokens read a question | tokens/s | supervised tokens/s |", "|---|---|---|---|---|"]
    for name, epoch in (("`SFTTrainer`, a row a passage", theirs), ("ours, a tree a question", mine)):
        lines.append(
            f"| {name} | {epoch.seconds / questions:.2f} | {epoch.tokens / questions:,.0f} "
            f"| {epoch.tokens / epoch.seconds:,.0f} | {epoch.supervised / epoch.seconds:.1f} |"
        )
    by_clock, by_cpu = theirs.seconds / mine.seconds, theirs.cpu_seconds / mine.cpu_seconds
    return [*lines, "", f"{by_clock:.2f} times by the clock, {by_cpu:.2f} by CPU time (mark 3).", "", *_NOTE]


_NOTE = (
    "`SFTTrainer` pads the rows of a batch to the longest, which the tokens above leave out. Its loss (TRL 1.16) reads",
    "the head without the new tokens' trained rows: a little less work than ours.",
)


def measured_rate(dtype: str) -> float:
    """Measure a product of a 256 × 1024 and a 1024 × 1024 matrix, in GFLOP/s."""
    rows, weight = (torch.ones(size, 1024, dtype=getattr(torch, dtype)) for size in (256, 1024))
    for _ in range(3):
        torch.nn.functional.linear(rows, weight)
    count, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < 0.15:
        torch.nn.functional.linear(rows, weight)
        count += 1
    return count * 2 * 256 * 1024 * 1024 / elapsed / 1e9


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.set_defaults(device="cpu")
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--dtype", default="bfloat16", help="that is trained in")
    options.add_argument("--output", type=Path, help="Markdown file; printed in any case")
    options.add_argument("--run", type=Path, default=Path("runs/pocket"), help="pocket's runs")
    options.add_argument("--questions", type=int, default=32, help="questions to train on")
    options.add_argument("--asked", type=int, default=4, help="questions to answer, each from 20 passages")
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    logging.disable_progress_bar()
    rates = {dtype: measured_rate(dtype) for dtype in ("float32", "bfloat16")}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data")
        subset(arguments.run / "reflection", data, arguments.questions)
        training = training_lines(data, arguments.dtype, arguments.questions)
    told = ", ".join(f"{rate:.0f} GFLOP/s in {name}" for name, rate in rates.items())
    lines = [
        f"A product of matrices ran at {told}.",
        "",
        f"## Training on {arguments.questions} questions of pocket's mR²AG-IT, by LoRA",
        "",
        *training,
        "",
        "## Gate, 20 passages and answers, in float32, against a `generate` call for each",
        "",
        "```",
        *compare("pocket/mr2ag", Dataset(arguments.run / "gallery"), arguments.asked, turns=1),
        "```",
        "",
        "The mark is 4.",
    ]
    print("\n".join(lines))
    write(arguments, "Speed on pocket", "pocket_speed.py", "both sides in one run", lines)


if __name__ == "__main__":
    main()
