"""JSON data of the report's list of questions, with each image, entry and passage once."""

from __future__ import annotations

import base64
import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.core.paths import Roots
from reflectune.core.types import Passage, Question
from reflectune.data_builders.probing.labels import Rule
from reflectune.formats.dataset import Dataset
from reflectune.inference.pipelines.registry import find_recipe, reflecting
from reflectune.inference.reading.ranking import product
from reflectune.inference.report.trajectories import browsed
from reflectune.inference.scoring.scores import Traces, TraceScorer
from reflectune.inference.trace import PassageTrace, Trace

LONGEST_SIDE = 288
"""Pixels; larger images are scaled down to this."""


def browser_data(
    dataset: Dataset, questions: Sequence[Question], traces: Traces, gamma: float, measure: TraceScorer
) -> dict[str, Any]:
    """Return the JSON that `page.js` reads.

    Args:
        dataset: The data set with images and entries.
        questions: The questions to list.
        traces: By pipeline, then by question id.
        measure: Scorer of answers.

    Returns:
        `images` (data URIs), `entries`, `passages` and `questions`; the latter refer to the former by position.
    """
    tables = _Tables(dataset)
    names = sorted(traces, key=lambda name: (name not in reflecting(), name))
    rows = [
        _question(
            question,
            {name: traces[name][question.id] for name in names if question.id in traces[name]},
            tables,
            measure,
        )
        for question in questions
    ]
    return {
        "gamma": gamma,
        "pipelines": names,
        "images": tables.images,
        "entries": tables.entries,
        "passages": tables.passages,
        "questions": rows,
    }


class _Tables:
    """Images, entries and passages, each stored at its first use and referred to by position."""

    def __init__(self, dataset: Dataset) -> None:
        self.images: list[str] = []
        self.entries: list[dict[str, Any]] = []
        self.passages: list[dict[str, Any]] = []
        self._dataset = dataset
        self._places: dict[tuple[object, ...], int] = {}

    def image(self, path: str | Path, roots: Roots) -> int:
        """Return the position of an image below `roots`; -1 if it can't be read, which the evaluation has reported."""
        key = ("image", str(Path(self._dataset.root, path).resolve()))
        if key not in self._places:
            try:
                self.images.append(data_uri(load_image(path, root=roots)))
                self._places[key] = len(self.images) - 1
            except UserError:
                self._places[key] = -1
        return self._places[key]

    def entry(self, entry_id: str, kb: str = "", title: str = "") -> int:
        """Return the position of an entry. Of entries outside the data set's knowledge base only the title is known."""
        home = self._dataset.knowledge.name
        key = ("entry", entry_id if kb in ("", home) else f"{kb}: {entry_id}")
        if key not in self._places and kb not in ("", home):
            self._places[key] = len(self.entries)
            self.entries.append({"id": entry_id, "title": title or entry_id, "image": -1})
        elif key not in self._places:
            entry = self._dataset.knowledge.get(entry_id)
            roots = (self._dataset.knowledge.image_root, *self._dataset.image_roots)
            image = self.image(self._dataset.knowledge.image_path(entry), roots) if entry.images else -1
            self._places[key] = len(self.entries)
            self.entries.append({"id": entry.id, "title": entry.title, "image": image})
        return self._places[key]

    def passage(self, passage: Passage, kb: str = "") -> int:
        """Return the position of a passage as it was read.

        A page's passage is a summary for one question, so it differs between questions.
        """
        key = ("passage", kb, passage)
        if key not in self._places:
            self._places[key] = len(self.passages)
            self.passages.append(
                {
                    "entry": self.entry(passage.entry_id, kb, passage.title),
                    "place": f"{passage.entry_id}#{passage.section}",
                    "heading": passage.heading,
                    "text": " ".join(filter(None, [passage.lead, passage.text])),
                }
            )
        return self._places[key]


def data_uri(image: Image.Image) -> str:
    """Return a small copy of an image as a data URI. It is made from the pixels, without the file's metadata."""
    small = image.copy()
    small.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
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
        "image": tables.image(question.image, tables._dataset.image_roots) if question.image else -1,
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
    return {
        "answer": trace.answer,
        "correct": measure.correctness(question, trace) if measure.has_truth(question) else 0,
        "gate": _round(trace.gate),
        "retrieved": trace.retrieved,
        "hits": [
            [tables.entry(hit.entry_id, hit.kb, titles.get(hit.entry_id, "")), _round(hit.score)] for hit in trace.hits
        ],
        "passages": [_passage(read, tables, bases.get(read.passage.entry_id, "")) for read in trace.passages],
        "chosen": trace.chosen,
        "confidence": _round(trace.confidence),
        "kept": list(trace.kept),
        "used": list(trace.used),
        "mct": None if trace.mct is None else dataclasses.asdict(trace.mct),
        "fallback": trace.fallback,
        "error": trace.error,
        **({"steps": browsed(trace, question.entity_ids), "ended": trace.ended} if trace.steps else {}),
    }


def _should_look_up(name: str, question: Question, traces: Mapping[str, Trace], measure: TraceScorer) -> bool | None:
    """Return the gate's right decision or None; in MMKB-RAG True if the base model is wrong by RET's labels."""
    if not find_recipe(name).may_use_base:
        return question.is_knowledge_based
    base = traces.get("closed_book")
    return (
        None
        if base is None or base.error or not measure.has_truth(question)
        else Rule().is_wrong(measure.correctness(question, base))
    )


def _passage(read: PassageTrace, tables: _Tables, kb: str) -> dict[str, Any]:
    scores = read.scores
    return {
        "passage": tables.passage(read.passage, kb),
        "ret": _round(read.s_ret),
        "rel": _round(read.s_rel),
        "relevant": read.relevant,
        "answer": read.answer,
        "ans": _round(read.s_ans),
        "product": None if scores is None else _round(product(scores)),
    }


def _round(value: float | None) -> float | None:
    """Round to four significant digits, to keep the page small."""
    return None if value is None else float(f"{value:.4g}")
