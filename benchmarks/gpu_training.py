"""The sections of `gpu.py` that train: a LoRA step, all weights' gradients, their equality to separate rows."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import workload as w
from results import table
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from reflectune.examples.scores import at
from reflectune.models.attention.collation import TreeCollator, loss_terms
from reflectune.models.attention.packed import pad_to_bucket
from reflectune.models.attention.tree import Tree
from reflectune.train.runs.utilization import needed_operations

if TYPE_CHECKING:
    from gpu import Figures

TREES, BRANCHES, BRANCH_TOKENS = 2, 6, 190
"""Batch of configs/recipes/mr2ag_lora.yaml: questions a step, passages of each, tokens of a passage."""


@dataclass(frozen=True)
class Case:
    """Trees whose forward and backward pass is timed, with gradients of all weights but the vision tower's.

    `wanted` is the mark: TFLOP/s, or a share of the card's product rate if below 1. If `flat`, it is a multiple of the
    flat rows' speed.
    """

    family: str
    trees: int
    branches: int
    tokens: int
    wanted: float
    flat: bool = False
    recomputed: bool = False
    image: int = 576

    @property
    def name(self) -> str:
        """Name in tables."""
        return f"{self.family}, {self.trees} x {self.branches} x {self.tokens}, images of {self.image}"

    @property
    def mark(self) -> str:
        """The mark in tables."""
        if self.flat:
            return f"{self.wanted:g} ×"
        return f"{self.wanted:.0%}" if self.wanted < 1 else f"{self.wanted:g}"


CASES = (
    Case("llava", 4, 8, 137, 500),
    Case("llava", 1, 20, 200, 3, flat=True, recomputed=True),
    Case("qwen2_vl", 4, 8, 137, 460),
    Case("qwen2_5_vl", 4, 8, 137, 0.45, image=1280),
    Case("llava", 1, 20, 700, 3, flat=True, recomputed=True),
)
"""Cases of `all_weights`. They have no optimiser: its states for 7B don't fit on one GPU."""


def lora_step(arguments: argparse.Namespace, figures: Figures) -> None:
    """Time a LoRA step of LLaVA-1.5-7B's recipe on flat rows and on trees, as it is and with compiled layers.

    `train/sft.py` compiles no layers under dense masks.
    """
    device, dtype = arguments.device, getattr(torch, arguments.dtype)
    base: Any = w.build("llava", arguments.size, dtype=dtype, device=device)
    model = w.with_adapters(base, 128 if arguments.size == "7b" else 4)
    model.enable_input_require_grads()
    base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    figures.put("model", "trainable", sum(parameter.numel() for parameter in trainable))
    optimizer = torch.optim.AdamW(trainable, lr=2e-4, fused=device == "cuda")
    trees = [w.tree_of(base, BRANCHES, BRANCH_TOKENS, seed=seed) for seed in range(TREES)]
    parts, read = [w.flat_rows(base, tree) for tree in trees], sum(tree.length for tree in trees)
    rows = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    needed = needed_operations(base.model.language_model.layers)

    def flat_loss() -> Any:
        return model(**rows).loss

    def tree_loss(batch: dict[str, Any]) -> Any:
        loss, weight = loss_terms(model, batch)
        return loss / weight

    def step(loss_of: Callable[[], Any]) -> float:
        with torch.autocast(device, dtype, enabled=dtype != torch.float32):
            loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    def measure(name: str, tokens: int, loss_of: Callable[[], Any], *, compiles: bool = True) -> None:
        for suffix in ("", ", layers compiled") if compiles and device == "cuda" else ("",):
            with compiled(base, on=bool(suffix)):
                found = figures.time("step", name + suffix, lambda: step(loss_of))
            if found is not None:
                seconds = figures.values["step"][name + suffix]
                figures.put("tokens", name + suffix, tokens)
                figures.put("tokens/s", name + suffix, round(tokens / seconds))
                figures.put("TFLOP/s", name + suffix, round(needed * tokens / seconds / 1e12, 1))

    measure("flat rows", rows["input_ids"].numel(), flat_loss)
    dense = trees_on(base, trees, device, packed=False)  # from here on the model's attention reads trees
    measure("trees, dense masks", read, lambda: tree_loss(dense), compiles=False)
    packed = trees_on(base, trees, device)
    measure("trees", read, lambda: tree_loss(packed))
    model.eval()  # without dropout both sides have one loss
    with torch.no_grad(), torch.autocast(device, dtype, enabled=dtype != torch.float32):
        figures.put("loss", "flat rows", flat_loss().item())
        figures.put("loss", "trees, dense masks", tree_loss(dense).item())
        figures.put("loss", "trees", tree_loss(packed).item())


@contextmanager
def compiled(model: Any, *, on: bool) -> Iterator[None]:
    """Compile the language model's layers inside this block, as `train/sft.py` does."""
    layers = model.model.language_model.layers if on else ()
    for layer in layers:
        layer.compile(dynamic=False)
    try:
        yield
    finally:
        for layer in layers:
            layer._compiled_call_impl = None


def trees_on(model: Any, trees: Sequence[Tree], device: str, *, packed: bool = True) -> dict[str, Any]:
    """Return a batch of trees, packed for FlexAttention; on a CPU, where it has no gradients, with dense masks."""
    batch = TreeCollator(model)(list(trees))
    batch = pad_to_bucket(batch, device) if packed and device == "cuda" else batch
    return {name: value.to(device) for name, value in batch.items()}


def gradients(arguments: argparse.Namespace, figures: Figures) -> None:
    """Compare losses and gradients of trees, read as on this device, with those of separate rows, in float32."""
    size = "tiny" if arguments.size == "tiny" else "small"
    for family in ("llava", "qwen2_vl", "qwen2_5_vl", "qwen3_5"):
        model: Any = w.build(family, size, device=arguments.device).train()
        tree = w.tree_of(model, 4, 60)
        rows = w.flat_rows(model, tree)
        supervised = int((rows["labels"][:, 1:] != w.IGNORE).sum())
        expected = model(**rows, num_items_in_batch=torch.tensor(supervised)).loss
        expected.backward()
        wanted = _gradients(model)
        for recomputed in (False, True):
            if recomputed:
                model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            loss = w.tree_step(model, trees_on(model, [tree], arguments.device))
            far = max(
                float((found - wanted[name]).norm() / wanted[name].norm()) for name, found in _gradients(model).items()
            )
            row = f"{family}, recomputed" if recomputed else family
            figures.put("relative difference of a gradient", row, far)
            figures.put("relative difference of the loss", row, float(abs(loss - expected) / expected))


def _gradients(model: Any) -> dict[str, Tensor]:
    """Return the gradients of the language model's matrices."""
    found = model.model.language_model.named_parameters()
    return {name: weight.grad.clone() for name, weight in found if weight.dim() == 2 and weight.grad is not None}


def all_weights(arguments: argparse.Namespace, figures: Figures) -> None:
    """Time the passes of `CASES`, and profile those of several trees; a family's weights are drawn once."""
    model: Any = None
    family, dtype = "", getattr(torch, arguments.dtype)
    for case in CASES:
        if arguments.size == "tiny":
            case = replace(case, tokens=case.tokens // 8, image=case.image // 4)
        if case.family != family:
            del model
            torch.cuda.empty_cache()
            family = case.family
            model = w.build(family, arguments.size, dtype=dtype, device=arguments.device).train()
            w.freeze_vision_tower(model)
        _measure_case(model, case, arguments.device, figures)


def _measure_case(model: Any, case: Case, device: str, figures: Figures) -> None:
    trees = [w.tree_of(model, case.branches, case.tokens, seed=seed, image=case.image) for seed in range(case.trees)]
    rows = w.flat_rows(model, trees[0]) if case.flat else {}
    if case.recomputed:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    needed = needed_operations(model.model.language_model.layers)

    def flat_pass() -> float:
        model.zero_grad()
        loss = model(**rows).loss
        loss.backward()
        return float(loss)

    batch = trees_on(model, trees, device)

    def measure(name: str, run: Callable[[], float], tokens: int) -> None:
        loss = figures.time("pass", f"{case.name}, {name}", run)
        if loss is not None:
            seconds = figures.values["pass"][f"{case.name}, {name}"]
            figures.put("loss", f"{case.name}, {name}", loss)
            figures.put("TFLOP/s", f"{case.name}, {name}", round(needed * tokens / seconds / 1e12, 1))

    with compiled(model, on=device == "cuda"):
        if rows:
            measure("flat rows", flat_pass, rows["input_ids"].numel())
        measure("trees", lambda: w.tree_step(model, batch), sum(tree.length for tree in trees))
        if device == "cuda" and case.trees > 1:
            with profile(activities=[ProfilerActivity.CUDA]) as record:
                w.tree_step(model, batch)
            events = sorted(record.key_averages(), key=lambda event: -event.self_device_time_total)[:8]
            figures.put(
                "profile, ms", case.name, {e.key[:60]: round(e.self_device_time_total / 1e3, 1) for e in events}
            )
    model.zero_grad()
    model.gradient_checkpointing_disable()


def weights_tables(figures: dict[str, Any]) -> list[str]:
    """Return the table of `all_weights`, and its profiles."""
    found, rate = figures.get("weights", {}), figures.get("matrix product, TFLOP/s")
    rows = []
    for case in CASES if found else ():
        seconds, other = (at(found, "pass", f"{case.name}, {side}") for side in ("trees", "flat rows"))
        reached = at(found, "TFLOP/s", f"{case.name}, trees")
        times = other / seconds if seconds and other else None
        share = reached / rate if reached and rate else None
        memory = at(found, "pass, GiB", f"{case.name}, trees")
        ratios = (share and f"{share:.0%}", times and f"{times:.1f} ×")
        rows.append((case.name, seconds, reached, *ratios, case.mark, memory))
    head = (
        "all weights, forward and backward",
        "s",
        "TFLOP/s",
        "of the card",
        "faster than flat rows",
        "wanted",
        "GiB",
    )
    notes = [
        f"- {name}: " + ", ".join(f"{kernel} {ms:g} ms" for kernel, ms in spent.items()) + "."
        for name, spent in found.get("profile, ms", {}).items()
    ]
    return [*table(head, rows), "", *notes, *([""] if notes else [])] if found else []
