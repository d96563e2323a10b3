"""Training on several questions about one picture, which is read once, against as many pictures.

    python benchmarks/shared_pictures.py --runs runs/marks --output benchmarks/shared_pictures.md

Forward and backward of one batch, models of a given size, 576 image tokens a picture, a passage of some tokens each;
and how often the batches of a quick start's training have a picture twice.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch
from geometry import SIZES, build
from running import parser, timed, write
from torch import Tensor
from train_tree import tree_of
from transformers import PreTrainedModel

from reflectune.formats.reflection_data import read_examples
from reflectune.models.attention.collation import TreeCollator, loss_terms
from reflectune.models.attention.tree import Tree
from reflectune.models.schemes.examples import ReflectionExample
from reflectune.models.schemes.mr2ag import SCHEME
from reflectune.train.data.order import TrainingOrder
from reflectune.train.runs.parameters import freeze_tower


def pictures(tree: Tree, count: int) -> list[Tree]:
    """The same question about so many pictures."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for _ in range(count):
        pixels = torch.randn(tree.vision["pixel_values"].shape, generator=generator)
        made.append(replace(tree, vision={**tree.vision, "pixel_values": pixels}))
    return made


def seconds(model: PreTrainedModel, trees: list[Tree], arguments: argparse.Namespace) -> float:
    """Of a forward and a backward pass, by the CPU's clock where there is no GPU; putting a batch together counts."""
    collate = TreeCollator(model)

    def step() -> Tensor:
        model.zero_grad()
        loss, _ = loss_terms(model, {name: value.to(arguments.device) for name, value in collate(trees).items()})
        loss.backward()
        return loss.detach()

    step()
    clock = time.process_time if arguments.device == "cpu" else time.perf_counter
    return timed(step, arguments.device, arguments.repeats, clock)[0]


def measure(family: str, *, frozen: bool, arguments: argparse.Namespace) -> str:
    """A row of the table."""
    model = build(family, SIZES[arguments.size], dtype=getattr(torch, arguments.dtype), device=arguments.device)
    if frozen:
        freeze_tower(model, "vision tower")
    model.train()
    tree, count = tree_of(model, 1, arguments.tokens), arguments.questions
    apart, together = (seconds(model, trees, arguments) for trees in (pictures(tree, count), [tree] * count))
    vision = "frozen" if frozen else "trained"
    return f"| {family}, vision {vision} | {apart:.2f} s | {together:.2f} s | {apart / together:.2f} × |"


def repeats_in_batches(reflection: Path, sizes: tuple[int, ...]) -> list[str]:
    """Rows: of the pictures of one epoch's batches, how many are read when repeats are not."""
    examples = read_examples(reflection / "train.parquet", ReflectionExample)
    lines = ["| batch | pictures of an epoch's batches | read |", "|---|---|---|"]
    for size in sizes:
        lengths = [sum(map(len, SCHEME.texts(example))) for example in examples]
        kinds = [SCHEME.kind(example) for example in examples]
        order = list(TrainingOrder(lengths, kinds, batch_size=size, seed=0))
        batches = [order[i : i + size] for i in range(0, len(order), size)]
        read = sum(len({examples[i].image for i in batch}) for batch in batches)
        lines.append(f"| {size} | {len(examples):,} | {read:,} ({100 * read / len(examples):.1f} %) |")
    return lines


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--runs", type=Path, default=Path("runs/marks"), help="finished quick starts, as marks.py's")
    options.add_argument("--questions", type=int, default=4)
    options.add_argument("--tokens", type=int, default=60)
    options.add_argument("--repeats", type=int, default=1)
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    lines = [f"| {arguments.questions} questions | as many pictures | one picture | ratio |", "|---|---|---|---|"]
    for family in arguments.families:
        lines += [measure(family, frozen=frozen, arguments=arguments) for frozen in (True, False)]
    rows = repeats_in_batches(arguments.runs / "llava-full-0" / "reflection", (8, 32, 128, 512))
    lines += ["", "The quick start's batches, in the order that training reads them:", "", *rows]
    print("\n".join(lines))
    write(
        arguments,
        "Several questions about one picture",
        "shared_pictures.py",
        "(CPU) seconds per batch, one run",
        lines,
    )


if __name__ == "__main__":
    main()
