"""The report page: one HTML file with scores, curves and every question, that needs no network."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from reflectune.core.durable import write_atomically
from reflectune.core.html import read_asset, render
from reflectune.core.types import Question
from reflectune.formats.dataset import Dataset
from reflectune.inference.pipelines.mr2ag import ChoiceSettings
from reflectune.inference.pipelines.registry import find_recipe
from reflectune.inference.report import charts, overview, tables, trajectories
from reflectune.inference.report.data import browser_data, script_json
from reflectune.inference.scoring.scores import Traces, TraceScorer
from reflectune.inference.trace_files.columns import with_texts

MAX_BYTES = 20_000_000
"""Maximum size of a report. As many questions are listed as fit."""
MAX_QUESTIONS = 1000
"""Maximum number of listed questions, a random sample."""
_RESERVED = 10_000
"""Bytes for sentences that depend on the number of listed questions."""


def write_report(
    path: Path,
    *,
    dataset: Dataset,
    questions: Sequence[Question],
    traces: Traces,
    metrics: Mapping[str, Any],
    title: str,
    facts: Mapping[str, str],
    notices: Sequence[str],
    measure: TraceScorer,
    gamma: float,
    choice: ChoiceSettings | None,
    seed: int,
) -> None:
    """Write the report of a run.

    Args:
        dataset: The data set with questions, images and the knowledge base.
        traces: By pipeline or stage, then by question id.
        metrics: The content of metrics.json.
        title: Title of the page.
        facts: Facts of the run by name, shown as a table.
        notices: Sentences at the top of the page.
        measure: Scorer of answers.
        choice: Settings of mR²AG's choice; None if it was not run.
    """
    shown = {name: pipeline_traces for name, pipeline_traces in traces.items() if find_recipe(name).form}
    drawn, names = sample(questions, MAX_QUESTIONS, seed), tables.plain_names(metrics)
    filled = functools.partial(
        fill,
        title=title,
        subtitle=f"{len(questions)} questions, {len(shown)} pipelines. {metrics['metric']['caption']}.",
        finding=overview.finding(metrics),
        notices=notices,
        overview=overview.scores(metrics),
        losses=overview.losses(metrics),
        lost=overview.lost(metrics),
        scores=tables.scores(metrics),
        parts=tables.parts(metrics),
        rankings=tables.rankings(metrics),
        costs=trajectories.costs(metrics),
        charts=charts.charts(questions, traces, gamma, measure, names),
        calibration=tables.calibration(metrics),
        facts=tables.facts(facts),
    )
    data = browser_data(
        dataset,
        drawn,
        {name: with_texts(table, [question.id for question in drawn]) for name, table in shown.items()},
        measure,
        gamma=gamma,
        names=names,
        choice=choice,
        max_bytes=MAX_BYTES - _RESERVED - len(filled(browse_note="", data={}).encode()),
    )
    count = len(data["questions"])
    reason = f" The file is kept below {MAX_BYTES / 1e6:g} MB." if count < len(drawn) else ""
    note = (
        f"All {count} questions."
        if count == len(questions)
        else f"A random sample of {count} of the {len(questions)} questions; traces/ has all of them.{reason}"
    )
    write_atomically(path, filled(browse_note=note, data=data))


def fill(*, data: Mapping[str, Any], **values: Any) -> Markup:
    """Fill the page's template. Values of type `Markup` are HTML, the others are text.

    The page's policy allows our own script and style by their hashes, and images from data URIs. Nothing else runs or
    loads, whatever a question or a passage contains.
    """
    return render(
        "inference/report/templates/report.html",
        **values,
        data=script_json(data),
        style=read_asset("inference/report/page.css"),
        script=read_asset("inference/report/page.js", "inference/report/sliders.js"),
    )


def sample(questions: Sequence[Question], max_questions: int, seed: int) -> list[Question]:
    """Return at most `max_questions` questions, in random order."""
    return random.Random(seed).sample(list(questions), min(max_questions, len(questions)))
