"""What full fine-tuning, LoRA and QLoRA of the miniature cost, and what QLoRA learns beside full fine-tuning.

    python benchmarks/methods.py --output benchmarks/methods.md

`benchmarks/marks.py` has what full fine-tuning and LoRA learn. The scores here are those of LLaVA's quick start
(`examples/miniature/quickstart.py`) and of a QLoRA of its data beside its baselines, which both run unless they are
finished.
Costs are of short trainings, each in a process of its own and in turns: one epoch in which examples are encoded and one
in which they are not; an epoch of the quick start has all questions, and all but its first are of the second kind.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from marks import FAMILIES, folder_of, run_all
from running import write
from staging import launch, run_stages
from trainers import Clock, ours, settings, subset

from reflectune.inference.pipelines.registry import find_recipe
from reflectune.train.runs.fine_tune import fine_tune
from reflectune.train.runs.parameters import count_by_tower

METHODS = ("full", "lora", "qlora")
FAMILY, SEED = "llava", 0
"""Of the runs whose scores are shown."""
SCORES: dict[str, tuple[str, ...]] = {
    "gate: accuracy": ("gate", "accuracy"),
    "relevance within the article, balanced": ("relevance", "within_article"),
    "relevance against look-alikes, balanced": ("relevance", "look_alikes"),
    "answer, gold passage given": ("answer", "gold_passage"),
    "visual questions": ("visual", "tuned"),
    "InfoSeek score: closed_book": ("pipelines", "closed_book", "overall"),
    **{
        f"InfoSeek score: {name}{tuned}": ("pipelines", f"{name}{tuned}", "overall")
        for name in ("naive_rag_article", "naive_rag_articles", "naive_rag_passages")
        for tuned in ("", "_tuned")
    },
    "InfoSeek score: mr2ag": ("pipelines", "mr2ag", "overall"),
    "InfoSeek score: mr2ag_oracle": ("pipelines", "mr2ag_oracle", "overall"),
    "mr2ag − best baseline at equal depth, paired": ("comparisons", "mr2ag - best_baseline"),
}
"""Rows of the scores' table: what is read from `metrics.json`."""


@dataclass(frozen=True)
class Cost:
    """What a short training took.

    Attributes:
        trained: Parameters that train.
        seconds: CPU time a question, in the first epoch and in the second; other jobs hardly matter to it.
        gib: Most memory of the process.
        megabytes: Size of the final checkpoint, and of one to resume from.
    """

    trained: int
    seconds: Sequence[float]
    gib: float
    megabytes: Sequence[float]


def train_shortly(family: str, method: str, data: Path, questions: int) -> Cost:
    """Train in this process; then once more for two steps, to see what is left on the disk."""
    torch.set_num_threads(1)
    model = f"miniature/{family}"
    trainer: Any = ours(settings(method, model, data, epochs=2))
    clock = Clock(trainer, "cpu")
    trainer.train()
    gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    trained = sum(count.trainable for count in count_by_tower(trainer.model).values())
    with tempfile.TemporaryDirectory() as folder:
        fine_tune(settings(method, model, data, max_steps=2, save_steps=2, output_dir=folder))
        sizes = [megabytes(path) for path in (Path(folder), Path(folder, "checkpoint-2"))]
    return Cost(trained, [epoch.cpu_seconds / questions for epoch in clock.epochs()], gib, sizes)


def measured(family: str, method: str, data: Path, questions: int) -> Cost:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--child", family, method, str(data), "--questions", str(questions)]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return Cost(**json.loads(lines[-1]))


def costs(source: Path, questions: int, turns: int) -> dict[tuple[str, str], Cost]:
    """Of each family and method the fastest of some turns, and the most memory.

    Args:
        source: Reflection data to take questions from; a world's are the same for both families.
        questions: How many.
        turns: Short trainings of each.
    """
    taken: dict[tuple[str, str], list[Cost]] = {column: [] for column in product(FAMILIES, METHODS)}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data")
        subset(source, data, questions)
        for family, method in list(taken) * turns:
            taken[family, method].append(measured(family, method, data, questions))
    return {
        column: Cost(
            column_turns[0].trained,
            [min(cost.seconds[epoch] for cost in column_turns) for epoch in (0, 1)],
            max(cost.gib for cost in column_turns),
            column_turns[0].megabytes,
        )
        for column, column_turns in taken.items()
    }


def scored(full: Path, run: Path, limit: int | None) -> Mapping[str, Any]:
    """The metrics of a fine-tuning, held against the quick start's baselines; what is finished is not run again.

    Args:
        full: The folder of the quick start.
        run: That of the fine-tuning, which may be the quick start's own.
        limit: How many questions of each split to take; None: all.
    """
    output = run / f"scores-{limit or 'all'}"
    (output / "traces").mkdir(parents=True, exist_ok=True)
    for path in sorted((full / "traces").glob("*.jsonl")):  # `evaluate` checks the hash in each
        is_baselines = find_recipe(path.stem).model != "model"
        if (is_baselines or run == full) and not (output / "traces" / path.name).exists():
            shutil.copy(path, output / "traces")
    checkpoint, model = run / "checkpoint", f"miniature/{FAMILY}"
    evaluate = [
        *launch("inference/evaluate.py", "evaluate.yaml"),
        *("--dataset", str(full / "world"), "--index", str(full / "index"), "--model", str(checkpoint)),
        *("--base_model", model, "--plain_model", str(full / "plain_checkpoint"), "--output", str(output)),
        *("--seed", str(SEED), *(("--limit", str(limit)) if limit else ())),
    ]
    run_stages(output, {"evaluate": evaluate})
    metrics: Mapping[str, Any] = json.loads((output / "metrics.json").read_text())
    return metrics


def train_qlora(full: Path, run: Path) -> None:
    """Fine-tune by QLoRA on a quick start's data, unless that is finished."""
    run.mkdir(parents=True, exist_ok=True)
    command = [
        *launch("train/sft.py", "mr2ag_qlora.yaml"),
        *("--model", f"miniature/{FAMILY}", "--train_data", str(full / "reflection")),
        *("--output_dir", str(run / "checkpoint"), "--seed", str(SEED)),
    ]
    run_stages(run, {"train": command})


def megabytes(folder: Path) -> float:
    """Size of a folder's own files, without its subfolders'."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) / 1e6


def cost_table(taken: Mapping[tuple[str, str], Cost]) -> list[str]:
    """One row a measure, one column a family and method."""
    rows = {
        "parameters that train": [f"{cost.trained:,}" for cost in taken.values()],
        "CPU ms a question, first epoch": [f"{1000 * cost.seconds[0]:.1f}" for cost in taken.values()],
        "CPU ms a question, later epochs": [f"{1000 * cost.seconds[1]:.1f}" for cost in taken.values()],
        "peak memory, GiB": [f"{cost.gib:.2f}" for cost in taken.values()],
        "checkpoint, MB": [f"{cost.megabytes[0]:.2f}" for cost in taken.values()],
        "checkpoint to resume from, MB": [f"{cost.megabytes[1]:.2f}" for cost in taken.values()],
    }
    head = [f"|  | {' | '.join(' '.join(column) for column in taken)} |", "|---" * (len(taken) + 1) + "|"]
    return [*head, *(f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items())]


def score_table(runs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One row a score with its 95 % interval, one column a method."""

    def cell(metrics: Mapping[str, Any], path: Sequence[str]) -> str:
        score: Any = metrics
        for key in path:
            score = score[key]
        low, high = 100 * score["low"], 100 * score["high"]
        return f"{100 * score['value']:.1f} ({low:.1f} to {high:.1f}, n = {score['n']})"

    head = [f"|  | {' | '.join(runs)} |", "|---" * (len(runs) + 1) + "|"]
    rows = [f"| {name} | {' | '.join(cell(m, path) for m in runs.values())} |" for name, path in SCORES.items()]
    return [*head, *rows, f"| the best baseline | {' | '.join(m['best_baseline'] for m in runs.values())} |"]


def page(taken: Mapping[tuple[str, str], Cost], runs: Mapping[str, Mapping[str, Any]], limit: int | None) -> list[str]:
    """What stands below the page's head."""
    asked = f"{limit} questions each of" if limit else "all questions of"
    return [
        "## What they cost",
        "",
        *cost_table(taken),
        "",
        "A checkpoint is what is saved at the end, with tokenizer and records; an adapter's needs its base model "
        "beside it. Most of the memory is the process itself and activations. 4-bit weights are unpacked for each "
        "product.",
        "",
        "## What QLoRA learns",
        "",
        f"[marks.md](marks.md) has full fine-tuning and LoRA on both families over three seeds. Here: LLaVA, seed "
        f"{SEED}, {asked} val_unseen_question and val_unseen_entity, phrasings not seen in training, per cent, 95 % "
        "intervals. Both are held against the same baselines: the base, and the base fully tuned without "
        "reflection on the same questions.",
        "",
        *score_table(runs),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/methods"), help="quick starts, as marks.py's")
    parser.add_argument("--output", type=Path, help="Markdown file; printed in any case")
    parser.add_argument("--limit", type=int, help="questions of each split whose answers are scored (default: all)")
    parser.add_argument("--questions", type=int, default=160, help="questions of the short trainings")
    parser.add_argument("--turns", type=int, default=1, help="short trainings of each method; the fastest counts")
    parser.add_argument("--child", nargs=3, metavar=("FAMILY", "METHOD", "DATA"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        family, method, data = arguments.child
        print(json.dumps(vars(train_shortly(family, method, Path(data), arguments.questions))))
        return
    run_all(arguments.runs, [SEED], [FAMILY], ["full"], jobs=1)
    full, qlora = (folder_of(arguments.runs, FAMILY, method, SEED) for method in ("full", "qlora"))
    train_qlora(full, qlora)
    runs = {run.name.split("-")[1]: scored(full, run, arguments.limit) for run in (full, qlora)}
    lines = page(costs(full / "reflection", arguments.questions, arguments.turns), runs, arguments.limit)
    print("\n".join(lines))
    arguments.device, arguments.threads, arguments.dtype = "cpu", 1, "float32"
    how = f"costs of {arguments.questions} questions, the fastest of {arguments.turns} turn(s)"
    write(arguments, "Full fine-tuning, LoRA and QLoRA of the miniature", "methods.py", how, lines)


if __name__ == "__main__":
    main()
