"""Compare a server with the local engine: gates, passages, answers and speed for the same questions."""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from reflectune.core.errors import UserError
from reflectune.formats.dataset import Dataset
from reflectune.inference.config import ModelSettings
from reflectune.inference.pipelines.registry import build_pipeline
from reflectune.inference.running.config import AgreementConfig
from reflectune.inference.running.loading import open_entries
from reflectune.inference.running.opening import open_questions
from reflectune.inference.running.planning import select
from reflectune.inference.running.single import open_reflecting
from reflectune.inference.trace import Trace
from reflectune.models.remote.served_engine import ServedEngine
from reflectune.retrieval.config import RetrieverConfig

_UNKNOWN = "unknown: start vLLM with --enable-prompt-tokens-details"


def run(config: AgreementConfig) -> dict[str, Any]:
    """Answer questions by the pipeline of the checkpoint's scheme, on the local engine and on the server.

    Returns:
        `gates` with the largest and the median difference of probabilities by gate, `answers_equal`, `chosen_equal`,
        `questions_a_minute`, `agrees`, and `prefix_hits`: the share of prefix tokens that came from the server's prefix
        cache, over all but the first request of each question; None if the server doesn't report it.

    Raises:
        UserError: A question or the server can't be used.
    """
    dataset, models = Dataset(Path(config.dataset)), ModelSettings.of(config)
    questions = select(dataset, config.splits, config.limit, config.seed)
    opened = open_entries(RetrieverConfig.of(config), dataset, models.device)
    traces: dict[str, list[Trace]] = {}
    seconds: dict[str, float] = {}
    hits: float | None = None
    for side, settings in (("local", models.model_copy(update={"server": ""})), ("server", models)):
        name, parts = open_reflecting(config, settings, dataset, opened)
        engine, pipeline = parts.engine, build_pipeline(name, config, parts)
        if isinstance(engine, ServedEngine):
            engine.server.salt = secrets.token_hex(16)
        traces[side], seconds[side] = [], 0.0
        for start in range(0, len(questions), config.batch_questions):
            batch, images, _ = open_questions(questions[start : start + config.batch_questions], dataset.root, "stop")
            began = time.monotonic()
            traces[side] += pipeline.run(batch, images)
            seconds[side] += time.monotonic() - began
        if isinstance(engine, ServedEngine) and engine.cached is not None:
            hits = round(engine.cached / engine.repeated, 4)
    figures = compare(traces["local"], traces["server"])
    return {
        **figures,
        "questions": len(questions),
        "questions_a_minute": {side: round(60 * len(questions) / spent, 1) for side, spent in seconds.items()},
        "prefix_hits": hits,
        "tolerance": config.tolerance,
        "agrees": all(gate["largest"] <= config.tolerance for gate in figures["gates"].values()),
    }


def describe(config: AgreementConfig) -> str:
    """Describe the run, for `--dry_run`."""
    questions = select(Dataset(Path(config.dataset)), config.splits, config.limit, config.seed)
    return f"would answer {len(questions)} questions of {config.dataset} by {config.model} here and at {config.server}"


def compare(local: Sequence[Trace], served: Sequence[Trace]) -> dict[str, Any]:
    """Compare traces of the same questions in the same order.

    Passages that only one side judged, since only its gate opened, aren't compared; see `retrieved_equal`.
    """
    pairs = [*zip(local, served, strict=True)]
    differences: dict[str, list[float]] = {}
    for one, other in pairs:
        for gate, difference in _differences(one, other):
            differences.setdefault(gate, []).append(difference)
    if not differences:
        raise UserError("no gate was read; `agreement` needs a `model` that was fine-tuned to reflect")
    same = {
        "answers_equal": [one.answer == other.answer for one, other in pairs],
        "chosen_equal": [(one.chosen, one.used) == (other.chosen, other.used) for one, other in pairs],
        "retrieved_equal": [one.retrieved == other.retrieved for one, other in pairs],
    }
    return {
        "gates": {
            gate: {"count": len(values), "largest": max(values), "median": statistics.median(values)}
            for gate, values in differences.items()
        },
        **{name: sum(values) / len(values) for name, values in same.items()},
    }


def table(figures: dict[str, Any]) -> str:
    """Return the figures as lines of text."""
    lines = [f"{figures['questions']} questions", f"{'gate':20}{'read':>8}{'largest |Δp|':>16}{'median |Δp|':>16}"]
    for gate, values in figures["gates"].items():
        lines.append(f"{gate:20}{values['count']:8}{values['largest']:16.2e}{values['median']:16.2e}")
    names = {"answers_equal": "equal answers", "chosen_equal": "same passages", "retrieved_equal": "same gate decision"}
    lines += [f"{name:20}{figures[key]:8.1%}" for key, name in names.items()]
    hits = figures["prefix_hits"]
    known = f"{hits:8.1%} of the prefixes' tokens" if hits is not None else f"  {_UNKNOWN}"
    lines.append(f"{'prefix-cache hits':20}{known}")
    for side, speed in figures["questions_a_minute"].items():
        lines.append(f"{side:20}{speed:8.1f} questions a minute")
    lines.append(f"{'agrees' if figures['agrees'] else 'DIFFERS'}: at most {figures['tolerance']:g} is allowed")
    return "\n".join(lines)


def _differences(one: Trace, other: Trace) -> Iterator[tuple[str, float]]:
    """Yield the name and |Δp| of each probability that both sides computed."""
    if one.gate is not None and other.gate is not None:
        yield "retrieve", abs(one.gate - other.gate)
    others = {passage.passage: passage for passage in other.passages}
    for passage in one.passages:
        twin = others.get(passage.passage)
        if twin is not None and passage.s_rel is not None and twin.s_rel is not None:
            yield "relevance", abs(passage.s_rel - twin.s_rel)
        if twin is not None and passage.answer == twin.answer and passage.s_ans is not None and twin.s_ans is not None:
            yield "answer", abs(passage.s_ans - twin.s_ans)
