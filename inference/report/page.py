"""The report page: one HTML file with scores, curves and every question, that needs no network."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from reflectune.core.durable import write_atomically
from reflectune.core.html import read_asset, render
from reflectune.core.types import Question
from reflectune.formats.dataset import Dataset
from reflectune.inference.pipelines.registry import find_recipe
from reflectune.inference.report import charts, tables, trajectories
from reflectune.inference.report.data import browser_data
from reflectune.inference.scoring.scores import Traces, TraceScorer
from reflectune.inference.trace_files.columns import TraceColumns, with_texts

MOST_TEXTS = 30_000
"""Most passages from Parquet traces whose text is in a report: some 15 MB of HTML."""


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
    most: int,
    seed: int,
) -> None:
    """Write the report of a run.

    Args:
        dataset: The data set with questions, images and the knowledge base.
        traces: By pipeline or stage, then by question id.
        metrics: The content of metrics.json.
        title: Title of the page.
        facts: Facts of the run by name, shown as a table.
        notices: Sentences at the head.
        measure: Scorer of answers.
        most: Most questions to list; a random sample if there are more.
    """
    shown = {name: pipeline_traces for name, pipeline_traces in traces.items() if find_recipe(name).form}
    listed = sample(questions, most, seed, functools.partial(_texts_read, shown))
    whole = {name: with_texts(table, [question.id for question in listed]) for name, table in shown.items()}
    note = (
        f"All {len(questions)} questions."
        if len(listed) == len(questions)
        else (f"A random sample of {len(listed)} of the {len(questions)} questions; traces/ has all of them.")
    )
    page = fill(
        title=title,
        subtitle=f"{len(questions)} questions, {len(shown)} pipelines: {', '.join(shown)}.",
        notices=notices,
        scores=tables.scores(metrics),
        parts=tables.parts(metrics),
        rankings=tables.rankings(metrics),
        costs=trajectories.costs(metrics),
        charts=charts.charts(questions, traces, gamma, measure),
        calibration=tables.calibration(metrics),
        facts=tables.facts(facts),
        browse_note=f"{note} Click a question to see its entries, the judgement of each passage, and the answer.",
        data=browser_data(dataset, listed, whole, gamma, measure),
    )
    write_atomically(path, page)


def fill(
    *,
    title: str,
    subtitle: str,
    notices: Sequence[str],
    scores: Markup,
    parts: Markup,
    rankings: Markup,
    costs: Markup,
    charts: Markup,
    calibration: Markup,
    facts: Markup,
    browse_note: str,
    data: Mapping[str, Any],
) -> Markup:
    """Fill the page. Parts of type `Markup` are HTML, the others are text.

    The page's policy allows our own script and style by their hashes, and images from data URIs. Nothing else runs or
    loads, whatever a question or a passage contains.
    """
    return render(
        "inference/report/templates/report.html",
        title=title,
        subtitle=subtitle,
        notices=notices,
        scores=scores,
        parts=parts,
        rankings=rankings,
        costs=costs,
        charts=charts,
        calibration=calibration,
        facts=facts,
        browse_note=browse_note,
        data=script_json(data),
        style=read_asset("inference/report/page.css"),
        script=read_asset("inference/report/page.js"),
    )


def script_json(value: Any) -> Markup:
    """Return JSON for a `<script>` element: no text in it can close the element or open a comment."""
    return htmlsafe_json_dumps(value, ensure_ascii=False, separators=(",", ":"))


def _texts_read(traces: Traces, question: Question) -> int:
    """Return the number of passages whose text is read from the disk to show a question."""
    columns = [column for column in traces.values() if isinstance(column, TraceColumns)]
    return sum(len(column[question.id].passages) for column in columns if question.id in column)


def sample(
    questions: Sequence[Question], most: int, seed: int, texts: Callable[[Question], int] = lambda question: 0
) -> list[Question]:
    """Return at least one question and at most `most`, in the order of their ids; a random sample if there are more.

    Args:
        most: Most questions.
        texts: Number of passage texts that a question adds. The draw ends before there are more than `MOST_TEXTS`.
    """
    chosen = list(questions) if len(questions) <= most else random.Random(seed).sample(list(questions), most)
    added = list(itertools.accumulate(map(texts, chosen)))
    if added and added[-1] > MOST_TEXTS:
        if len(questions) <= most:
            random.Random(seed).shuffle(chosen)
            added = list(itertools.accumulate(map(texts, chosen)))
        chosen = chosen[: max(1, sum(total <= MOST_TEXTS for total in added))]
    return sorted(chosen, key=lambda question: question.id)
