"""How fast a machine computes: given by its data sheet, or measured on a few layers of the model's own shapes.

Small products, long rows and single tokens each reach another share of a machine's peak, so each kind of pass has a
rate of its own. A measured one is of random weights: the same products, norms and softmax, and the same engine.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import AutoModelForImageTextToText, PreTrainedConfig, PreTrainedModel

from reflectune.models.attention.collation import collate, loss_terms
from reflectune.models.attention.shared import KeysValues
from reflectune.models.attention.tree import IGNORE, Segment, Tree
from reflectune.models.prefix.forward import Forward, find_budget
from reflectune.models.prefix.rows import Rows
from reflectune.models.rendering.renderer import Rendered
from reflectune.train.estimates.architecture import Architecture, is_qwen
from reflectune.train.estimates.work import Flop, Work, decoder_weights, flop

LAYERS = 4
"""Of the decoder, that are timed of a deeper one."""
_LONGEST = 2.0
"""Seconds after which a pass is not timed again."""
_MOST_WORDS = 8
"""Tokens of an answer that are timed."""
TRAINED = 3
"""A training step takes the operations of the forward pass, and twice as many for the gradients."""


@dataclass(frozen=True)
class Rates:
    """Operations a second by kind of pass.

    Attributes:
        vision: Of the vision tower.
        prefix: Of reading prefixes.
        branches: Of reading branches.
        writing: Of writing answers.
        how: Where they come from, in words.
    """

    vision: float
    prefix: float
    branches: float
    writing: float
    how: str

    def seconds(self, operations: Flop) -> float:
        """How long one question takes."""
        return (
            operations.vision / self.vision
            + operations.prefix / self.prefix
            + operations.branches / self.branches
            + operations.writing / self.writing
        )


def given_rates(model: Architecture, tflops: float, bandwidth: float | None, rows: float, size: int) -> Rates:
    """Of a machine that is not here.

    Args:
        model: Whose weights each step of writing reads once.
        tflops: 10¹² operations a second that products reach.
        bandwidth: 10⁹ bytes a second that its memory is read with; None where nothing is written.
        rows: Answers that are written together.
        size: Bytes of a weight.
    """
    peak = tflops * 1e12
    if bandwidth is None:
        return Rates(peak, peak, peak, peak, f"given: {tflops:g} TFLOP/s")
    weights = decoder_weights(model) + model.vocabulary * model.width
    step = size * weights / (bandwidth * 1e9)
    writing = min(peak, 2 * weights * rows / step)
    return Rates(peak, peak, peak, writing, f"given: {tflops:g} TFLOP/s and {bandwidth:g} GB/s")


def measure_rates(config: PreTrainedConfig, work: Work, *, batch: int, dtype: torch.dtype, device: str) -> Rates:
    """Time each kind of pass on a few layers of a model's shapes: in seconds of the process on a CPU.

    Args:
        config: The model's.
        work: What a question takes; what it lacks is not timed.
        batch: Questions that are answered together.
        dtype: Of the weights.
        device: Where.
    """
    model = few_layers(config, dtype, device)
    shapes = Architecture.of(model.config)
    forward = Forward(model)
    budget = find_budget(forward)
    prefix = max(1, round(work.seen + work.prefix))
    together = max(1, min(batch, budget // prefix))
    filling = min(batch * work.branches, budget // max(1.0, work.branch_tokens))  # one pass of branches
    branches = max(1, round(filling)) if work.branches else 0
    each = replace(work, branches=branches)
    steps = min(round(max(work.longest, work.row_tokens)), _MOST_WORDS)
    share = work.row_tokens / max(work.longest, work.row_tokens, 1e-9)  # of the rows that are still being written
    one, opening = flop(shapes, each), flop(shapes, Work(prefix=prefix))
    with torch.no_grad():
        looking = _timed(lambda: _look(model, round(work.tile), together), device) if work.patches else 0.0
        reading = _timed(lambda: forward.prefill([_text(prefix)] * together), device)
        rows = forward.prefill([_text(prefix)] * together)
        taken = _timed(lambda: _branch(forward, rows, each, budget), device) if each.branches else 0.0
        rows = _branch(forward, rows, each, budget) if each.branches else rows
        written = _written_together(work, batch, budget)
        writing = _timed(lambda: _write(forward, rows, written, steps, share), device) if work.rows else 0.0
        words = written * share * steps
    rates = {
        "vision": one.vision * work.tile / work.patches * together / looking if looking else 1.0,
        "prefix": opening.prefix * together / reading,
        "branches": one.branches / taken if taken else 1.0,
        "writing": one.writing / work.written * words / writing if writing else 1.0,
    }
    told = ", ".join(f"{name} {rate / 1e9:,.1f}" for name, rate in rates.items() if rate > 1)
    kind = "seconds of the process" if device == "cpu" else "seconds"
    return Rates(**rates, how=f"measured on {shapes.layers} layers, GFLOP/s by {kind}: {told}")


def measure_training(config: PreTrainedConfig, work: Work, *, batch: int, autocast: bool, device: str) -> Rates:
    """Operations a second of training steps with AdamW, on trees of text; the vision tower's forward pass by itself.

    Args:
        config: The model's.
        work: What a question takes.
        batch: Questions of a step.
        autocast: Whether products are computed in bfloat16.
        device: Where.
    """
    model = few_layers(config, torch.float32, device).train()
    shapes = Architecture.of(model.config)
    prefix, length = Segment.of([0] * round(work.prefix), [IGNORE] * round(work.prefix)), round(work.branch_tokens)
    words = max(1, round(work.row_tokens))
    branch = Segment.of([0] * length, [IGNORE] * (length - words) + [0] * words)
    tree = Tree(prefix, (branch,) * round(work.branches), {})
    inputs = {name: value.to(device) for name, value in collate([tree] * batch, model).items()}

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)

    def step() -> None:
        with torch.autocast(device.split(":")[0], torch.bfloat16, enabled=autocast):
            loss_terms(model, inputs)[0].backward()
        optimizer.step()
        model.zero_grad(set_to_none=True)

    seconds = _timed(step, device)
    looking = 0.0
    if work.patches:
        with torch.no_grad(), torch.autocast(device.split(":")[0], torch.bfloat16, enabled=autocast):
            looking = _timed(lambda: _look(model, round(work.tile), batch), device)
    one = flop(shapes, work)
    rate = TRAINED * batch * (one.prefix + one.branches) / seconds
    vision = one.vision * work.tile / work.patches * batch / looking if looking else rate
    return Rates(
        vision, rate, rate, rate, f"measured on {shapes.layers} layers: {rate / 1e9:,.1f} GFLOP/s of training steps"
    )


def few_layers(config: PreTrainedConfig, dtype: torch.dtype, device: str) -> PreTrainedModel:
    """A model of random weights with the config's shapes, and at most `LAYERS` of its decoder's layers."""
    config = copy.deepcopy(config)
    text: Any = config.get_text_config()
    text.num_hidden_layers = min(text.num_hidden_layers, LAYERS)
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[: text.num_hidden_layers]
    kind: Any = AutoModelForImageTextToText
    return kind.from_config(config, dtype=dtype, attn_implementation="sdpa").to(device).eval()


def _written_together(work: Work, batch: int, budget: int) -> int:
    """Answers that are written in one go: the engine goes on from each pass of branches by itself."""
    read = work.branches * work.branch_tokens if work.branches else work.prefix
    passes = max(1.0, batch * read / budget)
    return max(1, min(round(work.rows * batch / passes), int(budget // max(1.0, work.row_tokens))))


def _text(tokens: int) -> Rendered:
    return Rendered([0] * tokens, [], {})


def _branch(forward: Forward, rows: Rows, work: Work, budget: int) -> Rows:
    """Read branches on prefixes by turns, in passes of the budget; the last ones read."""
    tokens, left = round(work.branch_tokens), int(work.branches)
    read = rows
    while left > 0:
        count = min(left, max(1, budget // tokens))
        under = rows.take(torch.arange(count, device=rows.hidden.device) % len(rows))
        read = forward.append(under, [[0] * tokens] * count)[1]
        left -= count
    return read


def _write(forward: Forward, rows: Rows, count: int, tokens: int, share: float) -> None:
    """Write answers below rows by turns, as the engine does: the likeliest token, again and again."""
    going_on = max(1, round(count * share))
    under = rows.take(torch.arange(going_on, device=rows.hidden.device) % len(rows)).compact()
    shared, hidden = under.shared(), under.hidden
    written: KeysValues = []
    head: Any = forward.model.get_output_embeddings()
    for step in range(tokens):
        chosen = head(hidden).float().log_softmax(-1).argmax(-1)
        hidden, written = forward.decode_step(chosen, under.next_position + step, shared, written)


def _look(model: Any, patches: int, count: int) -> None:
    """Have the vision tower read pictures of one size, or tiles of one, together."""
    vision, side = model.config.vision_config, round(patches**0.5)
    tower = model.model.visual if is_qwen(model.config) else model.model.vision_tower
    place = next(tower.parameters())
    if is_qwen(model.config):
        merge = vision.spatial_merge_size
        side = max(1, side // merge) * merge
        values = 3 * vision.temporal_patch_size * vision.patch_size**2
        pixels = torch.zeros(count * side * side, values, device=place.device, dtype=place.dtype)
        tower(pixels, grid_thw=torch.tensor([[1, side, side]] * count, device=place.device))
        return
    size = vision.image_size
    tower(torch.zeros(count, 3, size, size, device=place.device, dtype=place.dtype))


def _timed(make: Callable[[], Any], device: str) -> float:
    """Seconds of the process on a CPU, else by the clock, after a run that counts for nothing: the middle of three.

    A run to be foretold has bad luck as often as good, so that the least would promise too much.
    """
    make()
    times: list[float] = []
    while len(times) < 3 and sum(times) < _LONGEST:
        if device != "cpu":
            torch.accelerator.synchronize()
        began = (time.process_time if device == "cpu" else time.perf_counter)()
        make()
        if device != "cpu":
            torch.accelerator.synchronize()
        times.append((time.process_time if device == "cpu" else time.perf_counter)() - began)
    return sorted(times)[len(times) // 2]
