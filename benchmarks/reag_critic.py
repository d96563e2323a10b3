"""ReAG's critic before and after its fine-tuning, on passages of held-out questions: does P(Yes) tell evidence?

    python benchmarks/reag_critic.py --output benchmarks/reag_critic.md

Passages are those of `write_lessons` with `stage: critic`: the evidence, and four that don't state the answer, 70 % of
them among what was found for the question. P(Yes) is in the full softmax, as the pipeline reads it, over one prefix a
question. Which passage is evidence is what the data set names.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from running import write

from reflectune.core.images import load_image
from reflectune.formats.reflection_data import image_roots, read_examples, read_manifest
from reflectune.inference.operators.models import LocalModel
from reflectune.inference.operators.requests import Prompt
from reflectune.metrics.reporting.gates import auroc, balanced_accuracy
from reflectune.models.loading import load
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.schemes.examples import PromptedExample
from reflectune.models.schemes.plain import SCHEME as PLAIN

LESSONS = "python -m reflectune.inference.write_lessons --config configs/reag/miniature_critic_data.yaml"
BEFORE = (
    LESSONS,
    *(f"{LESSONS} --split {split} --limit 60" for split in ("val_unseen_question", "val_unseen_entity")),
    "$launch train/sft.py --config configs/reag/miniature_critic.yaml",
)
"""What is run before this, after the quick start's world and index."""


def read(model: str, folder: Path, split: str, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """P(Yes) of each passage of a split's lessons, and whether it is evidence: both of shape (passages,)."""
    lessons = read_examples(folder / f"{split}.parquet", PromptedExample, PLAIN.problem)
    roots = image_roots(folder, read_manifest(folder))
    critic = LocalModel(PrefixEngine(load(model), 4096), pictures=0)
    likely: list[float] = []
    for start in range(0, len(lessons), batch):
        asked = [
            (
                load_image(each.image, root=roots, needed_by=each.id),
                Prompt(each.template, {"question": each.question}, each.branch_documents, each.system),
            )
            for each in lessons[start : start + batch]
        ]
        likely += [judged.yes for one in critic.judge_each(asked, "Yes", "No") for judged in one.each]
    truth = [branch.reply == "Yes" for each in lessons for branch in each.branches]
    return np.array(likely), np.array(truth)


def row(name: str, likely: np.ndarray, truth: np.ndarray, threshold: float) -> str:
    """One model on one split, as a row of the table."""
    kept = likely > threshold
    return (
        f"| {name} | {truth.sum()} of {len(truth)} | {100 * balanced_accuracy(kept, truth):.1f} "
        f"| {100 * kept[truth].mean():.1f} | {100 * kept[~truth].mean():.1f} | {auroc(likely, truth):.3f} "
        f"| {likely.max():.3f} |"
    )


def table(models: Sequence[tuple[str, str]], folder: Path, splits: Sequence[str], threshold: float) -> list[str]:
    """Every model on every split."""
    rows = [
        "| critic, split | evidence | balanced accuracy % | evidence kept % | others kept % | AUROC | highest P(Yes) |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, model in models:
        rows += [row(f"{name}, `{split}`", *read(model, folder, split, 4), threshold) for split in splits]
    return rows


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.set_defaults(device="cpu", dtype="float32")
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--output", type=Path, help="Markdown file; printed in any case")
    options.add_argument("--data", default="runs/reag/critic_data")
    options.add_argument("--before", default="miniature/llava")
    options.add_argument("--after", default="runs/reag/critic")
    options.add_argument("--splits", nargs="+", default=["val_unseen_question", "val_unseen_entity"])
    options.add_argument("--threshold", type=float, default=0.1)
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    models = [("before", arguments.before), ("after", arguments.after)]
    lines = table(models, Path(arguments.data), arguments.splits, arguments.threshold)
    print("\n".join(lines))
    if arguments.output:
        told = f"kept if P(Yes) > {arguments.threshold:g}; miniature numbers"
        lines += ["", "Before it, after the quick start's world and index:", "", "```bash", *BEFORE, "```"]
        write(arguments, "ReAG's critic, fine-tuned", "reag_critic.py", told, lines)


if __name__ == "__main__":
    main()
