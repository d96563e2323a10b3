"""Stages that only measure decisions: the retriever alone, the tuned model's eye for evidence, and RET with SRT."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from PIL import Image

from reflectune.core.types import Question
from reflectune.inference.pipelines.base import Clock
from reflectune.inference.pipelines.diagnostics import GOLD, STATING, DiagnosticPassages, is_stating
from reflectune.inference.pipelines.documents import DocumentFinder, Found
from reflectune.inference.reading.prompted_reader import PromptedReader
from reflectune.inference.reading.reader import Reader
from reflectune.inference.trace import PassageTrace, Trace
from reflectune.retrieval.retriever import Retriever


class Retrieval:
    """What the retriever finds for every question, whatever a gate would say."""

    name = "retrieval"

    def __init__(self, retriever: Retriever, top_n: int) -> None:
        """Bind the retriever; `top_n` entries are recorded."""
        self._retriever, self._top_n = retriever, top_n

    def run(self, questions: Sequence[Question], images: Sequence[Image.Image]) -> list[Trace]:
        """One trace with hits per question, in order."""
        clock = Clock()
        with clock.step("retrieve"):
            found = self._retriever.search(images, self._top_n)
        return [
            Trace(question.id, self.name, retrieved=True, hits=tuple(hits), seconds=clock.share(len(questions)))
            for question, hits in zip(questions, found, strict=True)
        ]


class Relevance:
    """How the tuned model judges evidence, the rest of the article, and look-alikes; and its answer from evidence."""

    name = "relevance"

    def __init__(self, reader: Reader, probes: DiagnosticPassages) -> None:
        """Bind the fine-tuned model, and where probes come from."""
        self._reader, self._probes = reader, probes

    def run(self, questions: Sequence[Question], images: Sequence[Image.Image]) -> list[Trace]:
        """One trace per question with evidence, in order; its answer is read from the first gold passage."""
        clock = Clock()
        probes = [self._probes.build(question) for question in questions]
        with clock.step("judge"):
            opened = self._reader.open(questions, images)
            judged = self._reader.judge(opened, [[probe.passage for probe in own] for own in probes])
        probes = [
            [probe for probe in own if probe.passage in read] for own, read in zip(probes, judged.passages, strict=True)
        ]
        rows = [(i, 0) for i, own in enumerate(probes) if own and own[0].source == GOLD]
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
                passages[0] = dataclasses.replace(passages[0], answer=answer.text, s_ans=answer.score)
                trace = dataclasses.replace(trace, answer=answer.text, chosen=0)
            traces.append(dataclasses.replace(trace, passages=tuple(passages)))
        return traces


class ReflectionScores:
    """Score_RET of every question and Score_SRT of the knowledge-based ones, whatever RET decides; no answers."""

    name = "reflection"

    def __init__(self, reader: PromptedReader, finder: DocumentFinder) -> None:
        """Bind the fine-tuned model, and what finds documents."""
        self._reader, self._finder = reader, finder

    def run(self, questions: Sequence[Question], images: Sequence[Image.Image]) -> list[Trace]:
        """One trace per question, in order; a document that states an accepted answer has the source `stating`."""
        clock = Clock()
        with clock.step("gate"):
            opened = self._reader.open(questions, images)
            gates = self._reader.gates(opened)
        with clock.step("retrieve"):
            rows = [i for i, question in enumerate(questions) if question.requires_retrieval is not False]
            made = self._finder.find([questions[i] for i in rows], [images[i] for i in rows])
            by_row = dict(zip(rows, made, strict=True))
            found = [by_row.get(i, Found()) for i in range(len(questions))]
        with clock.step("judge"):
            scores = self._reader.judge(opened, [own.documents for own in found])
        return [
            Trace(
                question.id,
                self.name,
                gate=gates[i],
                retrieved=bool(found[i].hits),
                hits=found[i].hits,
                passages=tuple(_labelled(question, passage) for passage in found[i].traces(scores[i])),
                seconds=clock.share(len(questions)),
            )
            for i, question in enumerate(questions)
        ]


def _labelled(question: Question, passage: PassageTrace) -> PassageTrace:
    stating = is_stating(question, passage.passage)
    return dataclasses.replace(passage, source=STATING) if stating else passage
