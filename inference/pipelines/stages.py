"""Stages that measure decisions alone: the retriever, and the tuned model's relevance judgements."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from PIL import Image

from reflectune.core.images import Images
from reflectune.core.types import Question
from reflectune.inference.pipelines.base import Clock
from reflectune.inference.pipelines.diagnostics import GOLD, DiagnosticPassages
from reflectune.inference.pipelines.recipe import PipelineParts, Recipe, needed, with_entry, with_evidence
from reflectune.inference.pipelines.requirements import ENTRIES, PROBES
from reflectune.inference.pipelines.settings import DepthSettings, LeadSettings
from reflectune.inference.reading.passage_reader import PassageReader
from reflectune.inference.trace import PassageTrace, Trace
from reflectune.retrieval.retrievers.queries import image_queries

if TYPE_CHECKING:  # slow to import
    from reflectune.retrieval.retrievers.entry_retriever import Retriever


class Retrieval:
    """The retriever's hits for every question, independent of any gate."""

    name = "retrieval"

    def __init__(self, retriever: Retriever, top_n: int) -> None:
        """Bind the retriever; `top_n` entries are recorded."""
        self._retriever, self._top_n = retriever, top_n

    def run(self, questions: Sequence[Question], images: Sequence[Images]) -> list[Trace]:
        """Return one trace with hits per question, in order."""
        clock = Clock()
        with clock.step("retrieve"):
            ranked = self._retriever.search(image_queries(questions, images), self._top_n)
        return [
            Trace(question.id, self.name, retrieved=True, hits=tuple(hits), seconds=clock.share(len(questions)))
            for question, hits in zip(questions, ranked, strict=True)
        ]


class Relevance:
    """The tuned model's judgements of evidence, the article's rest and look-alikes, and its answer from evidence."""

    name = "relevance"

    def __init__(self, reader: PassageReader, probes: DiagnosticPassages) -> None:
        """Bind the fine-tuned model, and the source of probes."""
        self._reader, self._probes = reader, probes

    def run(self, questions: Sequence[Question], images: Sequence[Image.Image]) -> list[Trace]:
        """Return one trace per question with evidence, in order; its answer is read from the first gold passage."""
        clock = Clock()
        probes = [self._probes.build(question) for question in questions]
        with clock.step("judge"):
            opened = self._reader.open(questions, images)
            judged = self._reader.judge(
                opened, [[probe.passage for probe in question_probes] for question_probes in probes]
            )
        probes = [
            [probe for probe in question_probes if probe.passage in read]
            for question_probes, read in zip(probes, judged.passages, strict=True)
        ]
        rows = [
            (i, 0) for i, question_probes in enumerate(probes) if question_probes and question_probes[0].source == GOLD
        ]
        with clock.step("answer"):
            answers = dict(zip(rows, self._reader.answer_from(judged, rows), strict=True))
        traces = []
        for i, question in enumerate(questions):
            passages = [
                PassageTrace(probe.passage, s_rel=s_rel, s_irr=s_irr, source=probe.source)
                for probe, (s_rel, s_irr) in zip(probes[i], judged.relevance[i], strict=True)
            ]
            trace = Trace(question.id, self.name, seconds=clock.share(len(questions)))
            if (i, 0) in answers:
                answer = answers[i, 0]
                passages[0] = dataclasses.replace(passages[0], answer=answer.text, s_ans=answer.score, cut=answer.cut)
                trace = dataclasses.replace(trace, answer=answer.text, cut=answer.cut, chosen=0)
            traces.append(dataclasses.replace(trace, passages=tuple(passages)))
        return traces


RECALL_DEPTH = 5
"""Minimum number of entries that the retrieval stage records, so that recall@5 can be computed."""


def _retrieval(name: str, settings: DepthSettings, parts: PipelineParts) -> Retrieval:
    return Retrieval(needed(parts.retriever), max(RECALL_DEPTH, settings.top_n))


def _relevance(name: str, settings: LeadSettings, parts: PipelineParts) -> Relevance:
    reader = PassageReader(needed(parts.engine), settings.max_new_tokens)
    return Relevance(reader, needed(parts.probes))


def _with_image_and_entry(question: Question) -> bool:
    """Return True if entries can be searched by the question's image, and its own entry is known."""
    return bool(question.image) and with_entry(question)


RECIPES = {
    "retrieval": Recipe(_retrieval, DepthSettings, None, _with_image_and_entry, requires=(ENTRIES,)),
    "relevance": Recipe(_relevance, LeadSettings, "model", with_evidence, reads_gold=True, requires=(PROBES,)),
}
