"""JSON data of the report's list of questions, with each image, entry and passage once."""

from __future__ import annotations

import base64
import dataclasses
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.core.paths import Roots
from reflectune.core.types import Passage, Question
from reflectune.formats.dataset import Dataset
from reflectune.inference.pipelines.mr2ag import MR2AG, ChoiceSettings
from reflectune.inference.pipelines.registry import find_recipe, reflecting
from reflectune.inference.reading.ranking import product
from reflectune.inference.report.trajectories import browsed
from reflectune.inference.scoring.losses import OUTCOMES, outcome
from reflectune.inference.scoring.scores import TraceScorer
from reflectune.inference.trace import PassageTrace, Trace
from reflectune.metrics.official.infoseek import normalize_answer
from reflectune.metrics.reporting.breakdown import headline
from reflectune.metrics.scoring.registry import is_wrong

REFLECTING = MR2AG.name
"""The pipeline whose choice among stored candidates the page can recompute."""

QUESTION_SIDE, ENTRY_SIDE = 224, 128
"""Longest sides of a question's and an entry's image, in pixels; larger ones are scaled down."""


def browser_data(
    dataset: Dataset,
    questions: Sequence[Question],
    traces: Mapping[str, Mapping[str, Trace]],
    measure: TraceScorer,
    *,
    gamma: float,
    names: Mapping[str, str],
    choice: ChoiceSettings | None = None,
    max_bytes: float = math.inf,
) -> dict[str, Any]:
    """Return the JSON that `page.js` reads.

    Args:
        dataset: The data set with images and entries.
        questions: The questions. The first ones that fit `max_bytes` are listed, sorted by id.
        traces: By pipeline, then by question id.
        measure: Scorer of answers.
        gamma: Threshold of the gate.
        names: Plain names of the pipelines.
        choice: Settings of mR²AG's choice, if the page can recompute it.
        max_bytes: Maximum size of the JSON.

    Returns:
        `images` (data URIs), `entries`, `passages` and `questions`, which refer to the others by position. Fields that
        are None, false or empty are left out.
    """
    tables, rows, size = _Tables(dataset), [], 0
    ordered = sorted(traces, key=lambda name: (name not in reflecting(), name))
    official = measure.official(questions)
    half = headline(measure.metric, official).half
    parts = dict(zip((q.id for q in official), [0] * len(official) if half is None else half.tolist(), strict=True))
    for question in questions:
        before = tables.lengths()
        asked = {name: traces[name][question.id] for name in ordered if question.id in traces[name]}
        row = _question(question, asked, tables, measure)
        if question.id in parts:
            row["part"] = parts[question.id]
            for name, shown in row["traces"].items():
                shown["outcome"] = outcome(question, asked[name], shown["correct"])
        if choice and REFLECTING in asked:
            row["traces"][REFLECTING]["again"] = _candidates(question, asked[REFLECTING], measure, choice)
        size += len(script_json(row).encode())
        if size + tables.bytes > max_bytes:
            tables.truncate(before)
            break
        rows.append(row)
    return {
        "gamma": gamma,
        "pipelines": [[name, names.get(name, name)] for name in ordered],
        "outcomes": OUTCOMES,
        "again": _again(choice, traces[REFLECTING]) if choice and rows else None,
        "images": tables.images,
        "entries": tables.entries,
        "passages": tables.passages,
        "questions": sorted(rows, key=lambda row: str(row["id"])),
    }


def script_json(value: Any) -> Markup:
    """Return JSON for a `<script>` element: no text in it can close the element or open a comment."""
    return htmlsafe_json_dumps(value, ensure_ascii=False, separators=(",", ":"))


class _Tables:
    """Images, entries and passages, each stored at its first use and referred to by position."""

    def __init__(self, dataset: Dataset) -> None:
        self.images: list[str] = []
        self.entries: list[dict[str, Any]] = []
        self.passages: list[dict[str, Any]] = []
        self._dataset = dataset
        self._places: dict[tuple[object, ...], int] = {}
        self.bytes = 0

    def image(self, path: str | Path, roots: Roots, side: int) -> int:
        """Return the position of an image below `roots`; -1 if it can't be read (the evaluation reported that)."""
        key = ("image", side, str(Path(self._dataset.root, path).resolve()))
        if key not in self._places:
            try:
                self._places[key] = self._add(self.images, data_uri(load_image(path, root=roots), side))
            except UserError:
                self._places[key] = -1
        return self._places[key]

    def entry(self, entry_id: str, kb: str = "", title: str = "") -> int:
        """Return the position of an entry; with its title alone if it is from another knowledge base."""
        home = self._dataset.knowledge.name
        key = ("entry", entry_id if kb in ("", home) else f"{kb}: {entry_id}")
        if key not in self._places and kb not in ("", home):
            self._places[key] = self._add(self.entries, {"id": entry_id, "title": title or entry_id, "image": -1})
        elif key not in self._places:
            entry = self._dataset.knowledge.get(entry_id)
            roots = (self._dataset.knowledge.image_root, *self._dataset.image_roots)
            path = self._dataset.knowledge.image_path(entry) if entry.images else ""
            image = self.image(path, roots, ENTRY_SIDE) if path else -1
            self._places[key] = self._add(self.entries, {"id": entry.id, "title": entry.title, "image": image})
        return self._places[key]

    def passage(self, passage: Passage, kb: str = "") -> int:
        """Return the position of a passage as it was read.

        A page's passage is a summary for one question, so it differs between questions.
        """
        key = ("passage", kb, passage)
        if key not in self._places:
            row = {
                "entry": self.entry(passage.entry_id, kb, passage.title),
                "place": f"{passage.entry_id}#{passage.section}",
                "heading": passage.heading,
                "text": " ".join(filter(None, [passage.lead, passage.text])),
            }
            self._places[key] = self._add(self.passages, row)
        return self._places[key]

    def lengths(self) -> tuple[int, ...]:
        """Return the number of images, entries and passages."""
        return len(self.images), len(self.entries), len(self.passages)

    def truncate(self, lengths: tuple[int, ...]) -> None:
        """Remove the last rows. Nothing may be added afterwards."""
        tables: tuple[list[Any], ...] = (self.images, self.entries, self.passages)
        for rows, length in zip(tables, lengths, strict=True):
            del rows[length:]

    def _add(self, rows: list[Any], row: Any) -> int:
        """Append a row, count its bytes in the page, and return its position."""
        rows.append(row)
        self.bytes += len(script_json(row).encode()) + 1
        return len(rows) - 1


def data_uri(image: Image.Image, side: int) -> str:
    """Return a small copy of an image as a data URI, without the file's metadata."""
    small = image.copy()
    small.thumbnail((side, side))
    buffer = io.BytesIO()
    small.save(buffer, format="WEBP", quality=82)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()


def _question(question: Question, traces: Mapping[str, Trace], tables: _Tables, measure: TraceScorer) -> dict[str, Any]:
    return {
        "id": question.id,
        "split": question.split,
        "type": question.answer_type,
        "text": question.text,
        "answers": list(question.answers),
        "range": list(question.range) if question.range else None,
        "images": [tables.image(path, tables._dataset.image_roots, QUESTION_SIDE) for path in question.images],
        "knowledge": question.is_knowledge_based,
        "entities": list(question.entity_ids),
        "evidence": [f"{evidence.entry_id}#{evidence.section}" for evidence in question.evidence],
        "traces": {
            name: {
                **_trace(question, trace, tables, measure),
                "lookup": _should_look_up(name, question, traces, measure),
            }
            for name, trace in traces.items()
        },
    }


def _trace(question: Question, trace: Trace, tables: _Tables, measure: TraceScorer) -> dict[str, Any]:
    bases = {hit.entry_id: hit.kb for hit in trace.hits}
    titles = {read.passage.entry_id: read.passage.title for read in trace.passages}
    return _without_empty(
        {
            "answer": trace.answer,
            "correct": measure.correctness(question, trace) if measure.has_truth(question) else 0,
            "gate": trace.gate,
            "retrieved": trace.retrieved,
            "hits": [
                [tables.entry(hit.entry_id, hit.kb, titles.get(hit.entry_id, "")), _round(hit.score)]
                for hit in trace.hits
            ],
            "passages": [
                _passage(read, tables, bases.get(read.passage.entry_id, ""), trace.exponents) for read in trace.passages
            ],
            "chosen": trace.chosen,
            "confidence": _round(trace.confidence),
            "kept": list(trace.kept),
            "used": list(trace.used),
            "mct": None if trace.mct is None else dataclasses.asdict(trace.mct),
            "fallback": trace.fallback,
            "error": trace.error,
            "steps": browsed(trace, question.entity_ids),
            "ended": trace.ended,
        }
    )


def _without_empty(row: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out None, False and empty values, to keep the page small; 0 stays."""
    return {key: value for key, value in row.items() if not (value is None or value is False or value in ("", []))}


def _again(choice: ChoiceSettings, traces: Mapping[str, Trace]) -> dict[str, Any]:
    """Return the settings of mR²AG's choice, and the range of settings for which its candidates are stored."""
    is_answered = all(read.answer is not None for trace in traces.values() for read in trace.passages)
    return {
        "pipeline": REFLECTING,
        "threshold": 0.5,
        "least": 0.0 if is_answered else 0.5,
        "entries": max((len(trace.hits) for trace in traces.values()), default=0),
        "exponents": choice.exponents,
        "votes": choice.votes,
        "temperature": choice.s_ret_temperature,
    }


def _candidates(
    question: Question, trace: Trace, measure: TraceScorer, choice: ChoiceSettings
) -> dict[str, list[Any]] | None:
    """Return the entries' similarities and the answered passages: position, entry's rank, scores, worth and vote.

    Numbers aren't rounded, since rounding may change the choice.
    """
    ranks, read = {hit.entry_id: rank for rank, hit in enumerate(trace.hits)}, []
    for k, p in enumerate(trace.passages):
        if p.answer is not None and p.passage.entry_id in ranks:
            worth = measure.worth(p.answer, question) if measure.has_truth(question) else 0
            vote = [normalize_answer(p.answer)] if choice.votes else []
            read.append([k, ranks[p.passage.entry_id], p.s_rel, p.s_irr, p.s_ans, worth, *vote])
    return {"ret": [hit.score for hit in trace.hits], "read": read} if read and not trace.error else None


def _should_look_up(name: str, question: Question, traces: Mapping[str, Trace], measure: TraceScorer) -> bool | None:
    """Return the right decision of the gate; None if unknown. In MMKB-RAG, True if the base model is wrong."""
    if find_recipe(name).base_answers is None:
        return question.is_knowledge_based
    base = traces.get("closed_book")
    if base is None or base.error or not measure.has_truth(question):
        return None
    return is_wrong(measure.correctness(question, base))


def _passage(read: PassageTrace, tables: _Tables, kb: str, exponents: Sequence[float]) -> dict[str, Any] | int:
    """Return a passage's position and scores, or its position alone."""
    scores, position = read.scores, tables.passage(read.passage, kb)
    row = {
        "ret": _round(read.s_ret),
        "rel": _round(read.s_rel),
        "relevant": read.relevant,
        "ans": _round(read.s_ans),
        "product": None if scores is None else _round(product(scores, exponents=exponents)),
    }
    shown = _without_empty(row) | ({} if read.answer is None else {"answer": read.answer})
    return {"passage": position, **shown} if shown else position


def _round(value: float | None) -> float | None:
    """Round to four significant digits, to keep the page small."""
    return None if value is None else float(f"{value:.4g}")
