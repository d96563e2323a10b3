"""The report page: one HTML file with scores, curves and every question, that needs no network."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import random
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from reflectune.core.durable import write_atomically
from reflectune.core.types import Question
from reflectune.data_builders.dataset import Dataset
from reflectune.inference.pipelines.registry import find_recipe
from reflectune.inference.report import charts, tables
from reflectune.inference.report.data import browser_data
from reflectune.inference.scoring.scores import Measure, Traces


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
    measure: Measure,
    gamma: float,
    most: int,
    seed: int,
) -> None:
    """Write the report of a run.

    Args:
        path: The file to write.
        dataset: Where the questions, their images and the knowledge base are.
        questions: The questions asked.
        traces: By pipeline or stage, then by question id.
        metrics: The content of metrics.json.
        title: What was run, in a few words.
        facts: What was run, on what: name to value, shown as a table.
        notices: Sentences that a reader must see first.
        measure: What an answer is worth.
        gamma: The gate's threshold.
        most: Questions to list; a random sample if there are more.
        seed: Seed of that sample.
    """
    listed = sample(questions, most, seed)
    shown = {name: found for name, found in traces.items() if find_recipe(name).form}
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
        charts=charts.charts(questions, traces, gamma, measure),
        facts=tables.facts(facts),
        browse_note=f"{note} Click a question to see what was retrieved, how each passage was judged, and the answer.",
        data=browser_data(dataset, listed, shown, gamma, measure),
    )
    write_atomically(path, page)


def fill(
    *,
    title: str,
    subtitle: str,
    notices: Sequence[str],
    scores: str,
    parts: str,
    rankings: str,
    charts: str,
    facts: str,
    browse_note: str,
    data: Mapping[str, Any],
) -> str:
    """The page from its parts. `scores`, `parts`, `rankings`, `charts` and `facts` are HTML; the others are text.

    The page's policy allows our own script and style by their hashes and images from data URIs; nothing else runs or
    loads, whatever a question or a passage may contain.
    """
    style, script = _asset("page.css"), _asset("page.js")
    return Template(_asset("page.html")).substitute(
        title=html.escape(title),
        subtitle=html.escape(subtitle),
        notices="".join(f'<p class="notice">{html.escape(notice)}</p>' for notice in notices),
        scores=scores,
        parts=parts,
        rankings=rankings,
        charts=charts,
        facts=facts,
        browse_note=html.escape(browse_note),
        data=script_json(data),
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
    )


def script_json(value: Any) -> str:
    """JSON that may stand in a `<script>` element: no text in it can close the element or open a comment."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def sample(questions: Sequence[Question], most: int, seed: int) -> list[Question]:
    """At most `most` questions, drawn at random, in the order of their ids."""
    chosen = list(questions) if len(questions) <= most else random.Random(seed).sample(list(questions), most)
    return sorted(chosen, key=lambda question: question.id)


def _asset(name: str) -> str:
    return resources.files("reflectune.inference.report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
