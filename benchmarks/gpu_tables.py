"""Tables of `gpu.py`, and the sizes that their rows are named after."""

from __future__ import annotations

from typing import Any

from gpu_training import weights_tables
from results import table

from reflectune.examples.scores import at

PASSAGES, TOKENS, ANSWERS, NEW = 20, 120, 4, 16
"""Passages of a question, tokens of each, answers, and tokens of an answer."""
QUESTIONS = 8
LONG = 700
"""Tokens of a long passage."""
LONG_GATES = f"gates of {PASSAGES} x {LONG}"
PROBED = 8
"""Tokens of the answers after every passage, as a probe asks them."""
FAMILIES = ("llava", "qwen2_vl", "qwen3_5")
RIVALS = ("engine", "repeated cache", "batched rows", "one row at a time")
MARKS: tuple[tuple[str, str, float, str, str], ...] = (
    ("gates of one question, ms", "gates", 1000, "118 to 159", "85"),
    ("gates, each of eight questions, ms", "gates of 8", 1000, "106 to 117", "70"),
    ("decode step of 4 rows, ms", f"decode step of {ANSWERS} rows, ms", 1, "50", "10"),
    ("decode step of 32 rows, ms", f"decode step of {ANSWERS * QUESTIONS} rows, ms", 1, "147", "14"),
    ("gates and four answers, each of eight questions, ms", "answers of 8", 1000, "205 to 400", "105"),
    ("compiling, s", "compiling, s", 1, "–", "90"),
    ("compiling by a second process, s", "compiling again, s", 1, "–", "10"),
)
"""Marks: name, figure, factor, value of November 2026 before packed rows, target."""


def tables(figures: dict[str, Any]) -> list[str]:
    """Return the page's tables."""
    found = figures | {"llava": figures.get("again", {}) | figures.get("llava", {})}  # the section compiles llava
    families = [family for family in FAMILIES if found.get(family)]
    marks = [
        (text, before, wanted, *(_times(at(found, family, figure, "engine"), factor) for family in families))
        for text, figure, factor, before, wanted in MARKS
    ]
    head = ("mark", "before", "at most", *families)
    lines = [*figures.get("notes", ()), "", *inference_tables(figures), *table(head, marks), ""]
    trained = figures.get("training", {})
    columns = ("tokens", "step", "tokens/s", "TFLOP/s", "step, GiB")
    rows = [(name, *(at(trained, column, name) for column in columns)) for name in trained.get("step", {})]
    if rows:
        lines += [*table(("LoRA step", "tokens", "seconds", "tokens/s", "TFLOP/s", "GiB"), rows), ""]
    if losses := trained.get("loss"):
        pairs = ", ".join(f"{name} {loss:.4f}" for name, loss in losses.items())
        lines += [f"- Losses without dropout: {pairs}.", ""]
    lines += weights_tables(figures)
    exactly = []
    for name in (*FAMILIES, "qwen2_5_vl"):
        gates = [at(figures, "exact", name, key) for key in ("largest difference of a gate", "largest gate")]
        numbers = (*gates, at(figures, "gradients", "relative difference of a gradient", name))
        if any(number is not None for number in numbers):
            answers = [at(figures, "exact", name, key) for key in ("equal answers", "answers")]
            exactly.append((name, *(number if number is None else f"{number:.0e}" for number in numbers), *answers))
    if exactly:
        columns = ("difference of a gate", "largest gate", "of a gradient", "equal answers", "of")
        lines += [*table(("float32, against separate rows", *columns), exactly), ""]
    for section, values in figures.items():
        for name, error in (values.get("errors", {}) if isinstance(values, dict) else {}).items():
            lines.append(f"- {section}, {name}: {error}")
    return lines


def inference_tables(figures: dict[str, Any]) -> list[str]:
    """Return a table of gates, answers, probes and decode steps for each family."""
    lines: list[str] = []
    steps = f"decode step of {ANSWERS} rows, ms", f"decode step of {ANSWERS * QUESTIONS} rows, ms"
    columns = ("gates", "gates of 8", "answers", "answers of 8", "probe", LONG_GATES, *steps, "answers of 8, GiB")
    times = ("gates, s", "of 8", "gates and answers, s", "of 8", "probe, s", f"gates, {LONG} tokens, s")
    heads = (*times, "decode step, ms", "of 32 rows", "GiB of 8")
    for family in FAMILIES:
        if not (found := figures.get(family, {})):
            continue
        names = [*RIVALS[:1], "engine, eager layers", "engine, question's gate first", *RIVALS[1:]]
        rows = [(name, *(at(found, column, name) for column in columns)) for name in names]
        rows = [row for row in rows if row[1] is not None]
        ratios = []
        for column in columns[:-1]:
            others = [seconds for name in RIVALS[1:] if (seconds := at(found, column, name))]
            ours = at(found, column, "engine")
            ratios.append(min(others) / ours if ours and others else None)
        rows.append(("best rival / engine", *ratios, None))
        shown = [0, *(k for k in range(1, len(columns) + 1) if any(row[k] is not None for row in rows))]
        rows = [tuple(row[k] for k in shown) for row in rows]
        head = (family, *heads)
        lines += [*table([head[k] for k in shown], rows), "", *notes(figures, found)]
    return lines


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def notes(figures: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Return lines about rates, agreement and the profile of a family."""
    lines, rows = [], []
    for name in ("engine", "repeated cache"):
        if (median := at(found, "difference of log-odds, median", name)) is not None:
            keys = ("difference of log-odds, 99 %", "questions with another best passage")
            rows.append((name, median, *(at(found, key, name) for key in keys)))
    if rows:
        head = ("log-odds of gates against batched rows", "median difference", "99 %")
        lines += [*table((*head, "different best passage"), rows), ""]
    if (seconds := at(found, LONG_GATES, "engine")) and (rate := figures.get("matrix product, TFLOP/s")):
        prefix = 600 + PASSAGES * LONG
        reached = 2 * prefix * found["model"].get("language parameters", 0) / seconds / 1e12
        lines.append(f"- {LONG} tokens: {reached:.0f} TFLOP/s, {reached / rate:.0%} of a matrix product.")
    for name, values in found.items():
        if name.startswith(("launches", "share of GPU")):
            lines.append(f"- {name}: {values['engine']}.")
    return [*lines, ""] if lines else []


def claims(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the rows of the board."""
    rows = []
    for family, name in (("llava", "LLaVA-1.5-7B"), ("qwen2_vl", "Qwen2-VL-7B"), ("qwen3_5", "Qwen3.5-9B")):
        for key, text in (("answers", "one question"), ("answers of 8", "each of eight questions")):
            ours, cache, flat = (at(figures, family, key, row) for row in RIVALS[:3])
            if ours and cache and flat:
                best = f"the best is {min(cache, flat) / ours:.1f} times as slow"
                reference = f"repeated cache {cache:.3f} s, batched rows {flat:.3f} s: {best}"
                rows.append((f"{name}: 20 gates and 4 answers, {text}", f"{ours:.3f} s", reference))
    steps = at(figures, "training", "step") or {}
    ours, theirs = ([seconds for name, seconds in steps.items() if name.startswith(kind)] for kind in ("trees", "flat"))
    if ours and theirs:
        reference = f"flat rows {min(theirs):.3f} s, the faster of eager and compiled as well"
        rows.append(("LLaVA-1.5-7B: a LoRA step on trees", f"{min(ours):.3f} s", reference))
    return rows
