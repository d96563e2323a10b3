"""Whole short trainings: our trainer against stock TRL `SFTTrainer`, on the same data and the same weights.

    python benchmarks/train.py --runs runs/marks --output benchmarks/train.md

The data is a finished quick start's. TRL reads what `data_builders.export --to trl` makes of it, one row per passage;
a step of its has as many rows as a step of ours has on average. Data loading, encoding and logging are part of the
time on both sides; checkpoints are not written. Two models: the miniature, over two epochs, and one of a given size
that reads 576 image tokens.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from geometry import SIZES, save_as_base
from profiled import KINDS, shares
from running import parser, write
from trainers import Clock, exported, ours, settings, stock, subset
from transformers import Trainer

from reflectune.models.attention.collation import loss_terms
from reflectune.models.attention.tree import IGNORE
from reflectune.train.data.examples import load_training_data
from reflectune.train.settings.sft import SftConfig


@dataclass(frozen=True)
class Case:
    """A model, the questions that it trains on, how many of them a step reads, and how often each side trains."""

    name: str
    model: str
    data: Path
    questions: int
    batch: int
    epochs: int
    turns: int

    def config(self, arguments: argparse.Namespace, **more: Any) -> SftConfig:
        """How it is trained: in full, but for the vision tower, as the miniature's quick start."""
        device = "cpu" if arguments.device == "cpu" else "auto"
        given = {"epochs": self.epochs, "per_device_train_batch_size": self.batch, "dtype": arguments.dtype, **more}
        return settings("full", self.model, self.data, device=device, **given)


def loss_difference(case: Case, arguments: argparse.Namespace) -> str:
    """Both losses of one batch of questions, before training; and by how many supervised tokens they differ."""
    config = case.config(arguments, matmul_precision="highest")
    rows = exported(config)
    mine: Any = ours(config)
    theirs: Any = stock(config, rows)
    examples = load_training_data(config.parts(), config.scheme).examples
    chosen = list(range(min(8, len(examples))))
    ids = {examples[i].id for i in chosen}
    device: Any = mine.args.device
    batch = {
        name: value.to(device)
        for name, value in mine.data_collator([mine.train_dataset[i] for i in chosen]).items()
        if isinstance(value, torch.Tensor)
    }
    batch_rows: Any = rows.filter(lambda row: row["id"] in ids)
    flat: Any = theirs.data_collator([batch_rows[i] for i in range(len(batch_rows))]).to(device)
    after = _after(flat["labels"], int(batch["labels"][batch["labels"] != IGNORE][-1]))
    dropped = int((after & (flat["labels"] != IGNORE)).sum())
    flat["labels"][after] = IGNORE
    with torch.no_grad():
        summed, weight = loss_terms(mine.model, batch)
        expected = theirs.compute_loss(theirs.model, dict(flat))
    loss = float(summed / weight)
    kept = int((flat["labels"] != IGNORE).sum())
    return (
        f"| {case.name} | {int(weight)} | {kept} | {dropped} | {loss:.6f} "
        f"| {abs(loss - float(expected)) / float(expected):.0e} |"
    )


def _after(labels: torch.Tensor, end: int) -> torch.Tensor:
    """Where a row goes on after its last end of turn: a template's line break, which TRL supervises."""
    ends = (labels == end).flip(1).cumsum(1).flip(1)
    return ends == 0


def tower_of_trainer(trainer: Trainer) -> torch.nn.Module:
    model: Any = trainer.model
    return model.model.visual if "qwen" in model.config.model_type else model.model.vision_tower


def measure(case: Case, arguments: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Rows of the table of times, and of the table of what the time is spent on."""
    config = case.config(arguments)
    rows = exported(config)
    one_step = case.config(arguments, max_steps=1)
    ours(one_step).train()
    stock(one_step, rows).train()  # warms up what the process keeps
    epochs_by_turn = []
    for _ in range(case.turns):
        for make in (lambda: stock(config, rows), lambda: ours(config)):
            trainer = make()
            clock = Clock(trainer, arguments.device)
            trainer.train()
            epochs_by_turn.append(clock.epochs())
    lines = []
    for number in range(case.epochs):
        turns = [epochs[number] for epochs in epochs_by_turn]
        theirs, mine = (min(side, key=lambda epoch: epoch.cpu_seconds) for side in (turns[::2], turns[1::2]))
        name = case.name + (f", epoch {number + 1}" if case.epochs > 1 else "")
        seconds = [epoch.seconds / case.questions for epoch in (theirs, mine)]
        lines.append(
            f"| {name} | {seconds[0]:.3g} | {seconds[1]:.3g} | {seconds[0] / seconds[1]:.2f} × "
            f"| {theirs.cpu_seconds / mine.cpu_seconds:.2f} × "
            + "".join(f"| {mine.supervised / epoch.seconds:,.1f} " for epoch in (theirs, mine))
            + "".join(f"| {epoch.tokens / epoch.seconds:,.0f} " for epoch in (theirs, mine))
            + "".join(f"| {epoch.tokens / case.questions:,.0f} " for epoch in (theirs, mine))
            + "|"
        )
    profiles = []
    few = case.config(arguments, max_steps=arguments.profile_steps)
    for name, trainer in (("SFTTrainer", stock(few, rows)), ("ours", ours(few))):
        spent = shares(trainer, tower_of_trainer(trainer))
        profiles.append(f"| {case.name}: {name} | {' | '.join(f'{100 * spent[kind]:.0f} %' for kind in KINDS)} |")
    return lines, profiles


def cases(folder: Path, arguments: argparse.Namespace) -> list[Case]:
    """The miniature and the larger model of each family, with their data written into a folder."""
    made = []
    for family in arguments.families:
        source = arguments.runs / f"{family}-full-0" / "reflection"
        small, large = (folder / f"{family}-{kind}" for kind in ("miniature", arguments.size))
        made.append(Case(f"{family}, miniature", f"miniature/{family}", small / "data", arguments.miniature, 8, 2, 2))
        if arguments.questions:
            model = save_as_base(family, SIZES[arguments.size], large / "model")
            name = f"{family}, {model / 1e6:,.0f} M, 576 image tokens"
            made.append(Case(name, str(large / "model"), large / "data", arguments.questions, arguments.batch, 1, 1))
        for case in made[-2:]:
            if not case.data.exists():
                subset(source, case.data, case.questions)
    return made


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--runs", type=Path, default=Path("runs/marks"), help="finished quick starts, as marks.py's")
    options.add_argument("--miniature", type=int, default=200, help="questions that the miniatures train on")
    options.add_argument("--questions", type=int, default=8, help="questions that the larger models train on; 0: none")
    options.add_argument("--batch", type=int, default=2, help="questions a step of the larger models")
    options.add_argument("--profile_steps", type=int, default=3)
    arguments = options.parse_args()
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    torch.set_num_threads(arguments.threads)
    times = [
        "| | SFTTrainer, s a question | ours | ratio | by CPU time | SFTTrainer, supervised tokens/s | ours "
        "| SFTTrainer, tokens/s | ours | SFTTrainer, tokens read a question | ours |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    profiles = [f"| | {' | '.join(KINDS)} |", f"|---|{'---|' * len(KINDS)}"]
    losses = [
        "| | supervised tokens of a batch, ours | SFTTrainer's | further ones of SFTTrainer's | loss "
        "| difference of the loss |",
        "|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(Path(folder), arguments):
            losses.append(loss_difference(case, arguments))
            rows, spent = measure(case, arguments)
            times += rows
            profiles += spent
            print("\n".join([*rows, *spent, losses[-1]]), flush=True)
    lines = [*times, "", *_NOTES, "", *losses, "", "Share of the CPU's time:", "", *profiles]
    print("\n".join(lines))
    load = f"a load of {os.getloadavg()[2]:.1f} on {os.cpu_count()} cores at the end"
    how = f"both sides in one run, in turns; miniatures: the faster of two; {load}"
    write(arguments, "Training, against stock SFTTrainer", "train.py", how, lines)


_NOTES = [
    "Supervised tokens and questions are the same on both sides, so their rates compare; of tokens read, SFTTrainer "
    "reads image, question and instruction again for each passage. In a second epoch ours has every example encoded "
    "already (`cache_mib`); stock decodes and encodes again. Three fifths of the questions are visual, without a "
    "passage, and cost the same on both sides but for encoding; `train_tree.md` has questions with eight passages. "
    "Other jobs hardly matter to the ratio by CPU time, as they do to the clock.",
    "",
    "One batch of questions, before training. Every supervised token weighs one on both sides. TRL also supervises "
    "what a chat template writes after the end of a turn (Qwen's line break): these are left out of its loss here.",
]


if __name__ == "__main__":
    main()
