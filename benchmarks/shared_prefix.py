"""The shared-prefix engine against reading every passage with its image and question, on models of a given size.

    python benchmarks/shared_prefix.py --output benchmarks/shared_prefix.md
    python benchmarks/shared_prefix.py --device cuda --size 7b --dtype bfloat16      # on a GPU

One question with an image of 576 tokens, K passages. Both sides run in one process, on the same weights and threads,
and must give the same gates and the same answers.
"""

from __future__ import annotations

import argparse
import functools
from typing import Any

import torch
from geometry import GATE, SIZES, build, engine_of, passages, plain_inputs, question
from running import alone, parser, timed, write
from torch import Tensor
from transformers import PreTrainedModel

from reflectune.inference.report.curves import Line, line_chart
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.prefix.rows import kept_bytes
from reflectune.models.rendering.renderer import Rendered

NEW_TOKENS, ANSWERS = 16, 4


@torch.no_grad()
def one_by_one(model: PreTrainedModel, prefix: Rendered, branches: list[list[int]]) -> Tensor:
    """Gates from one forward pass per passage."""
    logits = [
        model(**plain_inputs(model, prefix, branch), use_cache=False, logits_to_keep=1).logits[0, -1]
        for branch in branches
    ]
    return torch.stack(logits).float().softmax(-1)[:, GATE].cpu()


@torch.no_grad()
def loop(model: Any, prefix: Rendered, branches: list[list[int]]) -> list[list[int]]:
    """Answers from one `generate` per passage, as peers do."""
    answers = []
    for branch in branches:
        inputs = plain_inputs(model, prefix, branch)
        out: Any = model.generate(**inputs, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0)
        answers.append(out[0, inputs["input_ids"].shape[1] :].tolist())
    return answers


def gates(engine: PrefixEngine, prefix: Rendered, branches: list[list[int]]) -> Tensor:
    """Gates from the engine."""
    return engine.branch(engine.read([prefix]), [branches]).probabilities([GATE])[0][:, 0]


def gates_and_answers(engine: PrefixEngine, prefix: Rendered, branches: list[list[int]]) -> dict[int, list[int]]:
    """Gates, and answers from the passages with the highest, by passage."""
    state = engine.branch(engine.read([prefix]), [branches])
    best = state.probabilities([GATE])[0][:, 0].topk(ANSWERS).indices.tolist()
    answers = engine.generate(state, [(0, k) for k in best], max_new_tokens=NEW_TOKENS)
    return {k: answer.token_ids for k, answer in zip(best, answers, strict=True)}


def measure(family: str, arguments: argparse.Namespace) -> tuple[list[str], list[float]]:
    """The rows of a family's table, and the seconds of `seconds_by_count`."""
    dtype = getattr(torch, arguments.dtype)
    model = build(family, SIZES[arguments.size], dtype=dtype, device=arguments.device)
    prefix, branches = question(model), passages(model, arguments.passages, arguments.tokens)
    engine = engine_of(model, arguments.token_budget)
    gates(engine, prefix, branches[:2])
    one_by_one(model, prefix, branches[:1])
    how = (arguments.device, arguments.repeats)
    ours, probabilities = timed(lambda: gates(engine, prefix, branches), *how)
    theirs, expected = timed(lambda: one_by_one(model, prefix, branches), *how)
    ours_answers, answers = timed(lambda: gates_and_answers(engine, prefix, branches), *how)
    loop_seconds, decoded = timed(lambda: loop(model, prefix, branches), arguments.device, 1)
    same = all(decoded[k] == ids for k, ids in answers.items())
    count, length = len(branches), len(prefix.ids)
    tokens = count * (length + arguments.tokens) / (length + count * arguments.tokens)
    state = engine.branch(engine.read([prefix]), [branches])
    levels = {id(level): level for chunk in state.chunks for level in chunk.rows.levels}
    kept = kept_bytes(list(levels.values()))
    copies = kept * count * (length + arguments.tokens) / (length + count * arguments.tokens)
    params = sum(p.numel() for p in model.model.language_model.parameters()) / 1e6
    curve = seconds_by_count(engine, prefix, branches, arguments)
    rows = [
        f"| {family}: language model of {params:.0f} M, {length} + {count} × {arguments.tokens} tokens | | | |",
        f"| gates: one forward per passage | {theirs:.2f} s | {ours:.2f} s | {theirs / ours:.1f} × |",
        f"| the same, tokens read by the language model | {count * (length + arguments.tokens)} "
        f"| {length + count * arguments.tokens} | {tokens:.1f} × |",
        f"| gates, then {ANSWERS} answers: one `generate` per passage | {loop_seconds:.2f} s | {ours_answers:.2f} s "
        f"| {loop_seconds / ours_answers:.1f} × |",
        f"| keys and values held: copies per passage | {copies / 2**20:.0f} MiB | {kept / 2**20:.0f} MiB "
        f"| {copies / kept:.1f} × |",
        f"| largest difference of a gate; answers equal | | {(probabilities - expected).abs().max():.0e} | {same} |",
        _slope(curve, arguments),
    ]
    return rows, curve


COUNTS = (1, 2, 4, 8, 16, 32, 64)


def seconds_by_count(
    engine: PrefixEngine, prefix: Rendered, branches: list[list[int]], arguments: argparse.Namespace
) -> list[float]:
    """Seconds for the gates of 1, 2, 4, … 64 passages."""
    more = (branches * 64)[:64]
    calls = [functools.partial(gates, engine, prefix, more[:k]) for k in COUNTS]
    return [timed(call, arguments.device, arguments.repeats)[0] for call in calls]


def _slope(seconds: list[float], arguments: argparse.Namespace) -> str:
    """The milliseconds of one more token, by a straight line through the seconds."""
    new = torch.tensor([float(k * arguments.tokens) for k in COUNTS])
    y = torch.tensor(seconds)
    slope = ((new - new.mean()) * (y - y.mean())).sum() / ((new - new.mean()) ** 2).sum()
    fit = y.mean() + slope * (new - new.mean())
    share = 1 - ((y - fit) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    shown = ", ".join(f"{k}: {s:.2f} s" for k, s in zip(COUNTS, seconds, strict=True))
    return f"| K = {shown} | | {1000 * slope:.2f} ms a token | R² {share:.3f} |"


def plot(curves: dict[str, list[float]]) -> str:
    """Seconds against K as an SVG."""
    highest = max(max(seconds) for seconds in curves.values())
    lines = [
        Line(family, [(k / COUNTS[-1], s / highest) for k, s in zip(COUNTS, seconds, strict=True)], dots=True)
        for family, seconds in curves.items()
    ]
    figure = line_chart("Gates of K passages", f"K / {COUNTS[-1]}", f"seconds / {highest:.1f}", lines)
    return alone(figure, list(curves))


def profile(family: str, arguments: argparse.Namespace) -> str:
    """What the engine's time goes to."""
    model = build(family, SIZES[arguments.size], dtype=getattr(torch, arguments.dtype), device=arguments.device)
    prefix, branches = question(model), passages(model, arguments.passages, arguments.tokens)
    engine = engine_of(model, arguments.token_budget)
    gates(engine, prefix, branches[:2])
    with torch.profiler.profile() as profiler:
        gates_and_answers(engine, prefix, branches)
    events = sorted(profiler.key_averages(), key=lambda e: -e.self_cpu_time_total)[:6]
    whole = sum(event.self_cpu_time_total for event in profiler.key_averages())
    return ", ".join(f"{event.key.removeprefix('aten::')} {event.self_cpu_time_total / whole:.0%}" for event in events)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--passages", type=int, default=20)
    options.add_argument("--tokens", type=int, default=120)
    options.add_argument("--token_budget", type=int, help="the engine's; what it finds if unset")
    options.add_argument("--repeats", type=int, default=2)
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    lines = ["| | one by one | engine | ratio |", "|---|---|---|---|"]
    curves = {}
    for family in arguments.families:
        rows, curves[family] = measure(family, arguments)
        lines += rows
    lines.append("")
    lines += [f"{family}, share of the engine's time: {profile(family, arguments)}" for family in arguments.families]
    print("\n".join(lines))
    if arguments.output:
        drawing = arguments.output.with_suffix(".svg")
        drawing.write_text(plot(curves) + "\n", encoding="utf-8")
        lines += ["", f"![Seconds against the number of passages]({drawing.name})"]
        write(arguments, "The shared prefix", "shared_prefix.py", "both sides in one run", lines)


if __name__ == "__main__":
    main()
