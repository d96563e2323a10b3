"""Full fine-tuning, LoRA and QLoRA of the miniature side by side: what they learn, take and leave on the disk.

    python benchmarks/methods.py --runs runs/marks --output benchmarks/methods.md

Scores and sizes are those of finished quick starts (`benchmarks/marks.py --methods full lora qlora`). Time and memory
are measured here, each method in processes of its own and in turns: a short training, of one epoch in which examples
are encoded and one in which they are not; an epoch of the quick start has all questions, and all but its first are of
the second kind.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from marks import FAMILIES, MARKS, Metrics, finished, folder_of
from running import write
from trainers import Clock, ours, settings, subset

from reflectune.data_builders.reflection_data import read_examples
from reflectune.models.schemes.examples import ReflectionExample
from reflectune.train.setup.parameters import count_by_tower

METHODS = ("full", "lora", "qlora")
SHOWN = (
    "gate: accuracy",
    "relevance within the article, balanced",
    "relevance against look-alikes, balanced",
    "answer, gold passage given",
    "visual questions",
    "mr2ag − best baseline at equal depth",
)


@dataclass(frozen=True)
class Cost:
    """What a short training took.

    Attributes:
        trained: Parameters that train.
        seconds: CPU time a question, in the first epoch and in the second; other jobs hardly matter to it.
        gib: Most memory of the process.
    """

    trained: int
    seconds: tuple[float, float]
    gib: float

    def minutes(self, questions: int, epochs: float) -> float:
        """Of a whole run, of which this one is a part."""
        return questions * (self.seconds[0] + (epochs - 1) * self.seconds[1]) / 60


def train_shortly(family: str, method: str, data: Path) -> Cost:
    """Train in this process."""
    torch.set_num_threads(1)
    config = settings(method, f"miniature/{family}", data, epochs=2)
    trainer: Any = ours(config)
    clock = Clock(trainer, "cpu")
    trainer.train()
    questions = len(read_examples(data / "train.parquet", ReflectionExample))
    first, second = (epoch.cpu_seconds / questions for epoch in clock.epochs())
    trained = sum(count.trainable for count in count_by_tower(trainer.model).values())
    return Cost(trained, (first, second), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)


def measured(family: str, method: str, data: Path) -> Cost:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--child", family, method, str(data)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    values = json.loads(lines[-1])
    return Cost(**{**values, "seconds": tuple(values["seconds"])})


def costs(columns: Sequence[tuple[str, str]], arguments: argparse.Namespace) -> dict[tuple[str, str], Cost]:
    """The fastest of some turns of each family and method, and the most memory."""
    turns: dict[tuple[str, str], list[Cost]] = {column: [] for column in columns}
    with tempfile.TemporaryDirectory() as folder:
        for family, method in list(columns) * arguments.turns:
            data = Path(folder, family, "data")
            if not data.exists():
                subset(folder_of(arguments.runs, family, "full", 0) / "reflection", data, arguments.questions)
            turns[family, method].append(measured(family, method, data))
    return {
        column: Cost(
            column_turns[0].trained,
            (min(cost.seconds[0] for cost in column_turns), min(cost.seconds[1] for cost in column_turns)),
            max(cost.gib for cost in column_turns),
        )
        for column, column_turns in turns.items()
    }


def megabytes(folder: Path) -> float:
    """Size of a folder's own files, without its subfolders'."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) / 1e6


def table(columns: dict[tuple[str, str], list[Metrics]], taken: dict[tuple[str, str], Cost], runs: Path) -> list[str]:
    """One row a measure, one column a family and method."""

    def row(name: str, cells: Sequence[str]) -> str:
        return f"| {name} | {' | '.join(cells)} |"

    def over_seeds(values: Sequence[float]) -> str:
        spread = f" ({100 * min(values):.1f} to {100 * max(values):.1f})" if len(values) > 1 else ""
        return f"{100 * statistics.mean(values):.1f}{spread}"

    lines = [row("", [f"{' '.join(c)}, {len(seed_metrics)} seed(s)" for c, seed_metrics in columns.items()])]
    lines.append("|---" * (len(columns) + 1) + "|")
    lines += [
        row(mark.name, [over_seeds([mark.read(m) for m in seed_metrics]) for seed_metrics in columns.values()])
        for mark in MARKS
        if mark.name in SHOWN
    ]
    scores: Any = [
        [m["pipelines"]["mr2ag"]["overall"]["value"] for m in seed_metrics] for seed_metrics in columns.values()
    ]
    lines.append(row("InfoSeek score: mr2ag", [over_seeds(seed_scores) for seed_scores in scores]))
    lines.append(row("parameters that train", [f"{taken[c].trained:,}" for c in columns]))
    lines += [
        row(f"CPU ms a question, {name}", [f"{1000 * taken[c].seconds[i]:.1f}" for c in columns])
        for i, name in enumerate(("first epoch", "later epochs"))
    ]
    minutes = [taken[c].minutes(*_length(folder_of(runs, *c, 0))) for c in columns]
    lines.append(row("minutes of fine-tuning on one core, by these", [f"{value:.1f}" for value in minutes]))
    lines.append(row("peak memory, GiB", [f"{taken[c].gib:.2f}" for c in columns]))
    checkpoints = [folder_of(runs, *c, 0) / "checkpoint" for c in columns]
    lines.append(row("checkpoint, MB", [f"{megabytes(path):.2f}" for path in checkpoints]))
    last = [next(path.glob("checkpoint-*")) for path in checkpoints]
    lines.append(row("checkpoint to resume from, MB", [f"{megabytes(path):.2f}" for path in last]))
    return lines


def _length(run: Path) -> tuple[int, float]:
    """Questions of a quick start's data, and its epochs."""
    record = json.loads((run / "checkpoint/run.json").read_text())
    return len(read_examples(run / "reflection/train.parquet", ReflectionExample)), record["settings"]["epochs"]


_NOTES = [
    "On a model of 1.7 M parameters adapters save disk, and neither time nor memory: most of the memory is the "
    "process itself and activations, to which adapters add theirs. 4-bit weights are unpacked for each product, which "
    "is what QLoRA takes longer than LoRA. A checkpoint is what is saved at the end, with tokenizer and records; an "
    "adapter's needs its base model beside it.",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/marks"), help="finished quick starts, as marks.py's")
    parser.add_argument("--output", type=Path, help="Markdown file; printed in any case")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--questions", type=int, default=160, help="questions of the short trainings")
    parser.add_argument("--turns", type=int, default=1, help="short trainings of each method; the fastest counts")
    parser.add_argument("--child", nargs=3, metavar=("FAMILY", "METHOD", "DATA"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        family, method, data = arguments.child
        print(json.dumps(vars(train_shortly(family, method, Path(data)))))
        return
    columns = {
        (family, method): seed_metrics
        for family in FAMILIES
        for method in METHODS
        if (seed_metrics := finished(arguments.runs, family, method, arguments.seeds))
    }
    lines = [*table(columns, costs(list(columns), arguments), arguments.runs), "", *_NOTES]
    print("\n".join(lines))
    arguments.device, arguments.threads, arguments.dtype = "cpu", 1, "float32"
    how = (
        "scores in per cent on questions not seen in training, mean over seeds (lowest to highest); time and memory of "
        f"{arguments.questions} questions, the fastest of {arguments.turns} turn(s); the fine-tunings are those of "
        "`python benchmarks/marks.py` and, for QLoRA, `python benchmarks/marks.py --families llava --methods qlora "
        "--seeds 0`"
    )
    write(arguments, "Full fine-tuning, LoRA and QLoRA of the miniature", "methods.py", how, lines)


if __name__ == "__main__":
    main()
