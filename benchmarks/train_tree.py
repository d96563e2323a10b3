"""Training on trees against flattened rows in TRL's stock SFTTrainer, on models of a given size.

    python benchmarks/train_tree.py --output benchmarks/train_tree.md
    python benchmarks/train_tree.py --device cuda --size 7b --dtype bfloat16      # on a GPU

One question with an image of 576 tokens and K branches of passage, reflection token and answer; forward and backward,
without the optimiser's step, which is the same on both sides. The losses must agree.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import torch
from datasets import Dataset
from geometry import IMAGE_TOKEN, SIZES, build, passages, question
from running import parser, timed, write
from torch import Tensor
from transformers import PreTrainedModel
from trl import SFTConfig, SFTTrainer

from reflectune.examples.miniature.models.architecture import train_tokenizer
from reflectune.models.attention.collation import TreeCollator, loss_terms
from reflectune.models.attention.tree import IGNORE, Segment, Tree

SUPERVISED = 17
"""Tokens at a branch's end that are supervised: the reflection token and an answer of 16."""


def tree_of(model: PreTrainedModel, count: int, tokens: int) -> Tree:
    """A question and its branches; the prefix's last token stands for [Retrieval]."""
    prefix = question(model)
    silent = [IGNORE] * len(prefix.ids)
    branches = [
        Segment.of(ids, [IGNORE] * (len(ids) - SUPERVISED) + ids[-SUPERVISED:])
        for ids in passages(model, count, tokens)
    ]
    return Tree(Segment.of(prefix.ids, [*silent[:-1], prefix.ids[-1]]), tuple(branches), dict(prefix.vision))


def flattened(model: PreTrainedModel, tree: Tree) -> dict[str, Tensor]:
    """A batch of one whole row per branch, the image in each, as stock trainers are fed."""
    ids = torch.tensor([[*tree.prefix.ids, *branch.ids] for branch in tree.branches])
    labels = torch.tensor([[*tree.prefix.labels, *branch.labels] for branch in tree.branches])
    labels[1:, : len(tree.prefix.ids)] = IGNORE  # [Retrieval] counts once
    count = len(tree.branches)
    vision = {name: value.repeat(count, *[1] * (value.dim() - 1)) for name, value in tree.vision.items()}
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels, **vision}
    if model.config.model_type == "qwen2_vl":
        batch["mm_token_type_ids"] = (ids == IMAGE_TOKEN).int()
    return batch


def stock_trainer(model: PreTrainedModel, folder: str, arguments: argparse.Namespace) -> SFTTrainer:
    """TRL's trainer on this model, with its own loss."""
    config = SFTConfig(
        output_dir=folder,
        per_device_train_batch_size=arguments.branches,
        report_to="none",
        use_cpu=arguments.device == "cpu",
        bf16=arguments.dtype == "bfloat16",
        remove_unused_columns=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        gradient_checkpointing=arguments.checkpointing,
        max_length=None,
    )
    tokenizer = train_tokenizer(["what is it made of"], 300, "llava")
    unused = Dataset.from_dict({"input_ids": [[0]] * arguments.branches})
    return SFTTrainer(model, config, data_collator=_as_it_is, train_dataset=unused, processing_class=tokenizer)


def _as_it_is(rows: list[Any]) -> Any:
    return rows


def seconds_of(step: Any, device: str, repeats: int) -> tuple[float, float]:
    """The least seconds of some steps, after one that warms up, and the loss."""
    step()
    return timed(lambda: float(step()), device, repeats)


def measure(family: str, *, frozen: bool, arguments: argparse.Namespace) -> list[str]:
    """A row of the table."""
    model = build(family, SIZES[arguments.size], dtype=getattr(torch, arguments.dtype), device=arguments.device)
    tower = model.model.vision_tower if family == "llava" else model.model.visual
    tower.requires_grad_(not frozen)
    model.train()
    tree = tree_of(model, arguments.branches, arguments.tokens)
    rows = {name: value.to(arguments.device) for name, value in flattened(model, tree).items()}
    with tempfile.TemporaryDirectory() as folder:
        trainer = stock_trainer(model, folder, arguments)

        trainer.current_gradient_accumulation_steps = 1  # as its own loop sets it

        def flat() -> Tensor:
            model.zero_grad()
            if family == "qwen2_vl":
                model.model.rope_deltas = None
            return trainer.training_step(model, dict(rows))

        theirs, expected = seconds_of(flat, arguments.device, arguments.repeats)
    batch = {name: value.to(arguments.device) for name, value in TreeCollator(model)([tree]).items()}

    def ours_step() -> Tensor:
        model.zero_grad()
        loss, weight = loss_terms(model, batch)
        (loss / weight).backward()
        return (loss / weight).detach()

    ours, our_loss = seconds_of(ours_step, arguments.device, arguments.repeats)
    tokens, vision = rows["input_ids"].numel() / tree.length, "frozen" if frozen else "trained"
    return [
        f"| {family}, vision {vision} | {theirs:.2f} s | {ours:.2f} s | {theirs / ours:.2f} × | {tokens:.2f} × "
        f"| {abs(our_loss - expected) / expected:.0e} |"
    ]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--branches", type=int, default=8)
    options.add_argument("--tokens", type=int, default=137)
    options.add_argument("--repeats", type=int, default=2)
    options.add_argument("--checkpointing", action="store_true", help="recompute activations, on both sides")
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    lines = [
        "| | SFTTrainer, flat rows | tree | ratio | tokens | difference of the loss |",
        "|---|---|---|---|---|---|",
    ]
    for family in arguments.families:
        for frozen in (True, False):
            lines += measure(family, frozen=frozen, arguments=arguments)
    print("\n".join(lines))
    write(arguments, "Training on trees", "train_tree.py", "seconds per question, one run", lines)


if __name__ == "__main__":
    main()
