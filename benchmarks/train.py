"""Measure training on trees against flat rows in TRL's stock SFTTrainer, on models of a given size.

    python benchmarks/train.py                                   # one step on a CPU
    python benchmarks/train.py --whole --results OUT             # whole trainings on a GPU of 80 GB
    python benchmarks/train.py --whole --results OUT --device cpu --size tiny --questions 64    # does it run? anywhere

A question has a picture of 576 tokens and K passages, each followed by a reflection token and an answer. A step is one
forward and one backward pass; the optimiser's is the same on both sides. Weights are random, and the losses must agree.

A whole training (`--whole`) has loader, recomputation, optimiser and log: LoRA by LLaVA-1.5-7B's recipe, on questions
whose passages differ in length. All sides read the same questions in the same order and steps. It takes eight minutes
on one H100; long trees are `--branches 20 --tokens 700`.
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
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from results import Benchmark, table
from torch import Tensor
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainingArguments
from trl import SFTConfig, SFTTrainer
from workload import FAMILIES, SIZES, build, flat_rows, timed, tree_of

from reflectune.examples.miniature.models.architecture import train_tokenizer
from reflectune.models.attention.collation import TreeCollator, loss_terms
from reflectune.models.attention.positions import inner_model
from reflectune.models.attention.tree import IGNORE, Segment, Tree, independent_rows
from reflectune.train.data.examples import Collator, EncodedExample
from reflectune.train.data.micro_batches import tokens_of
from reflectune.train.data.order import TrainingOrder
from reflectune.train.estimates.architecture import Architecture
from reflectune.train.estimates.forecast import forecast, largest_batch
from reflectune.train.estimates.memory import Division, total, weights_of
from reflectune.train.runs.checkpointed_trainer import Run
from reflectune.train.runs.packing import packs_trees
from reflectune.train.runs.trainer import ReflectionTrainer
from reflectune.train.settings.sft import SftConfig
from reflectune.train.weights.parameters import recompute_layers

WARM_UP = 3
"""Steps of a whole training that aren't timed: layers are compiled in most of them. Of the others the median counts."""
AT_ONCE = 2
"""Questions of a forward pass in configs/recipes/mr2ag_lora.yaml."""
TARGETS = SftConfig.model_fields["lora_targets"].default
PICTURES = 4
"""Questions of a batch about one picture, and about as many pictures."""


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


def tree_step(model: PreTrainedModel, batch: dict[str, Tensor]) -> float:
    """Run a forward and a backward pass on trees, and return the loss."""
    model.zero_grad()
    loss, weight = loss_terms(model, batch)
    (loss / weight).backward()
    return float((loss / weight).detach())


def collated_step(model: PreTrainedModel, collate: TreeCollator, trees: list[Tree]) -> float:
    """Put trees into a batch, and run a step on it."""
    return tree_step(model, collate(trees))


def measure(family: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Time a step on flat rows and on a tree, and a batch about one picture and about several."""
    model: Any = build(family, arguments.size)
    tower = model.model.vision_tower if family == "llava" else model.model.visual
    tower.requires_grad_(False)
    model.train()
    tree = tree_of(model, arguments.branches, arguments.tokens)
    rows = flat_rows(model, tree)
    with tempfile.TemporaryDirectory() as folder:
        trainer = stock_trainer(model, folder, arguments.branches)

        def flat_step() -> float:
            model.zero_grad()
            if family == "qwen2_vl":
                model.model.rope_deltas = None
            return float(trainer.training_step(model, dict(rows)))

        flat, flat_loss = timed(flat_step, repeats=arguments.repeats, warm_up=1)
    collate = TreeCollator(model)
    batch = collate([tree])
    ours, our_loss = timed(lambda: tree_step(model, batch), repeats=arguments.repeats, warm_up=1)
    return {
        "flat rows": {"seconds": round(flat, 3), "tokens": rows["input_ids"].numel(), "loss": flat_loss},
        "tree": {"seconds": round(ours, 3), "tokens": tree.length, "loss": our_loss},
        "pictures": {
            name: round(timed(partial(collated_step, model, collate, trees), repeats=arguments.repeats)[0], 3)
            for name, trees in (("several", pictures(tree)), ("one", [tree] * PICTURES))
        },
    }


def pictures(tree: Tree) -> list[Tree]:
    """Return the same question about several pictures."""
    generator = torch.Generator().manual_seed(0)
    shape = tree.vision["pixel_values"].shape
    drawn = (torch.randn(shape, generator=generator) for _ in range(PICTURES))
    return [replace(tree, vision={**tree.vision, "pixel_values": pixels}) for pixels in drawn]


class Clock(TrainerCallback):
    """Notes the end of each step."""

    def __init__(self, device: str) -> None:
        self.ends: list[float] = []
        self._device = device

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Note the time when the device has finished the step."""
        if self._device == "cuda":
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())


def drawn_questions(model: PreTrainedModel, arguments: argparse.Namespace) -> list[EncodedExample]:
    """Draw questions with pictures of their own, whose passages have half to one and a half of the mean length."""
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
    """Return rows as a padded batch, with the picture in each, as stock trainers read them."""
    most = max(row.length for row in rows)

    def filled(values: Sequence[int], padding: int) -> Tensor:
        return F.pad(torch.tensor(values), (0, most - len(values)), value=padding)

    ids = torch.stack([filled(row.prefix.ids, 0) for row in rows])
    mask = torch.stack([filled([1] * row.length, 0) for row in rows])
    labels = torch.stack([filled(row.prefix.labels, IGNORE) for row in rows])
    vision = {name: torch.cat([row.vision[name] for row in rows]) for name in rows[0].vision}
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels, **vision}
    if model.config.model_type == "qwen2_vl":
        batch["mm_token_type_ids"] = (ids == model.config.image_token_id).int()
    return batch


def joined_rows(rows: Sequence[Tree]) -> dict[str, Tensor]:
    """Return rows as one without padding (LLaVA's alone): transformers tells them apart by their positions."""
    joined = {
        "input_ids": [token for row in rows for token in row.prefix.ids],
        "position_ids": [place for row in rows for place in range(row.length)],
        "labels": [label for row in rows for label in (IGNORE, *row.prefix.labels[1:])],
    }
    vision = {name: torch.cat([row.vision[name] for row in rows]) for name in rows[0].vision}
    return {**{name: torch.tensor([values]) for name, values in joined.items()}, **vision}


def with_adapters(model: Any, rank: int) -> PeftModel:
    """Add the recipe's adapters; all sides start from the same ones."""
    torch.manual_seed(0)
    adapted: Any = get_peft_model(
        model, LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.05, target_modules=TARGETS)
    )
    return adapted.train()


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
    """Build SFTTrainer on flat rows: as it comes, with compiled layers, without padding too, or with Liger."""
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
    """Build this project's trainer as `train/sft.py` does: by a number of questions, or by a budget of tokens."""
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
    packs = packs_trees(SimpleNamespace(model=model), SftConfig(dtype="bfloat16"), args)  # type: ignore[arg-type]
    adapted = with_adapters(model, arguments.rank)
    recompute_layers(adapted)
    in_turn = InTurn([1] * len(examples), [0] * len(examples), batch_size=arguments.step, seed=0)
    run = Run(adapted, args, lambda *_: None, {})
    return ReflectionTrainer(run, examples, collator, in_turn, packs=packs, tokens_per_device=budget)  # type: ignore[arg-type]


class InTurn(TrainingOrder):
    """Reads the examples in their order, as the other side does."""

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
    weights = weights_of(model, double=False)
    made = forecast(config, config, shapes, weights, batch, Division("", 1), arguments.device, None)
    return total(part for part in made.parts() if part.name != "context")


def head_to_head(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure every side; one that fails is recorded with its error, and one that isn't installed is named."""
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
        except Exception as error:  # one side must not cost the others' figures
            sides[kind] = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(kind, sides[kind], flush=True)
        BENCHMARK.write({**figures, "sides": sides}, arguments, "train_whole")
        gc.collect()
        if arguments.device == "cuda":
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


def tables(figures: dict[str, Any]) -> list[str]:
    """Return the page's tables."""
    rows, batches = [], []
    for family in FAMILIES:
        flat, ours, seen = (figures[family][name] for name in ("flat rows", "tree", "pictures"))
        ratio, tokens = flat["seconds"] / ours["seconds"], flat["tokens"] / ours["tokens"]
        far = abs(ours["loss"] - flat["loss"]) / flat["loss"]
        rows.append((family, flat["seconds"], ours["seconds"], f"{ratio:.2f} ×", f"{tokens:.2f} ×", f"{far:.0e}"))
        batches.append((family, seen["several"], seen["one"], f"{seen['several'] / seen['one']:.2f} ×"))
    head = ("a step, s", "SFTTrainer, flat rows", "tree", "faster", "fewer tokens", "difference of the loss")
    return [*table(head, rows), "", *table(("4 trees, s", "4 pictures", "one picture", "faster"), batches)]


def claims(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the rows of the board."""
    if sides := figures.get("sides"):
        speeds = {kind: found["questions/s"] for kind, found in sides.items() if "questions/s" in found}
        ours, stock = (
            max((speed for kind, speed in speeds.items() if SIDES[kind] is side), default=None)
            for side in (our_side, stock_side)
        )
        claim = f"{figures['family']}: a whole LoRA training, questions/s"
        return [(claim, f"{ours:.2f}", f"SFTTrainer at its best {stock:.2f}")] if ours and stock else []
    rows = []
    for family, name in (("llava", "LLaVA"), ("qwen2_vl", "Qwen2-VL")):
        flat, ours = figures[family]["flat rows"]["seconds"], figures[family]["tree"]["seconds"]
        claim = f"{name}, small, one CPU thread: a step on a tree of 8 passages"
        rows.append((claim, f"{ours:.2f} s", f"SFTTrainer on flat rows {flat:.2f} s"))
    return rows


BENCHMARK = Benchmark(
    "train",
    "Training on trees on a CPU",
    """
Random weights, float32, one thread, all weights but the vision tower's; medians. A question has a picture of 576 tokens
and 8 passages of 120 tokens with 17 supervised ones each. Flat rows are TRL's stock `SFTTrainer`: one row a passage,
with the picture and the question in each, as one batch. Both sides have the same weights, tokens and labels. The second
table has 4 such questions in a batch, about one picture or about four. At 7 B: [gpu.md](gpu.md).
""",
    tables,
    claims,
    {"train_whole": whole_tables},
)


def main() -> None:
    """Measure both families, and write the results."""
    parser = BENCHMARK.parser(__doc__)
    parser.add_argument("--whole", action="store_true", help="whole trainings by LoRA, against SFTTrainer's")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES), help="of whole trainings")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="of whole trainings")
    parser.add_argument("--family", choices=FAMILIES, default="llava", help="of whole trainings")
    parser.add_argument("--questions", type=int, default=128, help="of a whole training")
    parser.add_argument("--step", type=int, default=16, help="questions of an optimiser step of a whole training")
    parser.add_argument("--epoch", type=int, default=100_000, help="questions of the epochs that are counted an hour")
    parser.add_argument("--tokens_per_device", type=int, default=14_336, help="most tokens of a forward pass")
    parser.add_argument("--rank", type=int, default=128, help="of the adapters")
    parser.add_argument("--size", choices=SIZES, help="small, and 7b for whole trainings")
    parser.add_argument("--branches", type=int, help="passages of a question: 8, and 6 in a whole training")
    parser.add_argument("--tokens", type=int, help="of a branch, with token and answer: 137, and 190 on average")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.page:
        return BENCHMARK.write_page(arguments)
    torch.set_num_threads(arguments.threads)
    size, branches, tokens = ("7b", 6, 190) if arguments.whole else ("small", 8, 137)
    arguments.size = arguments.size or size
    arguments.branches, arguments.tokens = arguments.branches or branches, arguments.tokens or tokens
    if arguments.whole:
        print("\n".join(whole_tables(head_to_head(arguments))))
        return None
    return BENCHMARK.finish({family: measure(family, arguments) for family in FAMILIES}, arguments)


if __name__ == "__main__":
    main()
