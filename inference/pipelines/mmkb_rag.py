"""MMKB-RAG (arXiv 2504.10074, §3.1): decide whether to retrieve, re-rank documents, check consistency, and answer."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from PIL import Image
from pydantic import BeforeValidator

from reflectune.core.config import cross_check, setting
from reflectune.core.types import Passage, Question
from reflectune.formats.hits import Hit, describe_ranks
from reflectune.inference.pipelines.base import Clock
from reflectune.inference.pipelines.diagnostics import STATING, is_stating
from reflectune.inference.pipelines.documents import DocumentFinder, DocumentFinderSettings, FoundDocuments
from reflectune.inference.pipelines.recipe import PipelineParts, Recipe, every, needed
from reflectune.inference.pipelines.requirements import DOCUMENT_RERANKER, ENTRIES
from reflectune.inference.pipelines.settings import EntryShareSettings, GateSettings
from reflectune.inference.reading.document_choice import (
    Mct,
    apply_mct,
    fuse,
    keep_entry,
    keep_first,
    keep_relevant,
)
from reflectune.inference.reading.prompted_reader import PromptedReader
from reflectune.inference.reading.ranking import document_shares
from reflectune.inference.reading.reader import OpenedQuestions, Reader, ReaderAnswer
from reflectune.inference.trace import PassageTrace, Trace, publish


def read_count(value: Any) -> Any:
    """Read `k`: `auto` or a number."""
    if isinstance(value, bool) or not re.fullmatch(r"auto|[1-9]\d{0,8}", str(value)):
        raise ValueError(f"must be auto or a number of documents, at least 1, found {value!r}")
    return value if value == "auto" else int(value)


class MmkbRagSettings(EntryShareSettings, GateSettings, DocumentFinderSettings):
    """Settings of MMKB-RAG. SRT orders by Score_SRT (equation 6); with `s_ret_temperature`, times S_ret."""

    ret: bool = setting(True, "MMKB-RAG: let RET decide whether to retrieve; else always")
    srt: bool = setting(True, "MMKB-RAG: let SRT order the documents; else as retrieved")
    k: Annotated[int | Literal["auto"], BeforeValidator(read_count)] = setting(
        "auto", "MMKB-RAG: documents to keep; auto: those that reach threshold, and at least 1 (5 without SRT)"
    )
    threshold: float = setting(0.5, "MMKB-RAG: minimum [Rel] score of documents that `k: auto` keeps", ge=0, le=1)
    mct: Mct = setting(
        "filter",
        "MMKB-RAG: answer from the documents that MCT names, from its summary alone (merge), or from all, the named "
        "ones first (rerank); entry: a control without MCT, the kept documents of the entry with the highest scores",
    )
    answer_model: Literal["base", "tuned"] = setting("base", "MMKB-RAG: base_model answers, or the checkpoint itself")
    max_reply_tokens: int = setting(128, "MMKB-RAG: maximum tokens of MCT's reply", ge=1)
    srt_fusion: list[float] = setting(
        [],
        "MMKB-RAG: a, b and c: documents are chosen by sigmoid(a · logit SRT + b · log S_ret + c), with S_ret as the "
        "share of `s_ret_temperature` among the documents' entries; none: by SRT",
    )

    @property
    def keep(self) -> int:
        """Number of documents to keep; 0 for `auto`."""
        return 0 if self.k == "auto" else self.k

    @cross_check
    def k_problems(self) -> Iterator[str]:
        """Yield the problem of keeping more documents than are taken."""
        if self.k != "auto" and self.k > self.documents:
            yield f"`k` can be at most `documents`, {self.documents}, found {self.k}"
        if self.srt_fusion and not (len(self.srt_fusion) == 3 and self.s_ret_temperature):
            yield f"`srt_fusion` is three numbers and needs an `s_ret_temperature`; found {self.srt_fusion}"


class MMKBRAG:
    """RET, SRT and MCT by the tuned model, each on or off, and an answer by the base model or the tuned one.

    All prompts of the tuned model share the question's vision pass and prefix. A malformed reply to P_MCT keeps SRT's
    order, and the trace names the defect.
    """

    name = "mmkb_rag"

    def __init__(
        self, reader: PromptedReader, finder: DocumentFinder, settings: MmkbRagSettings, base: Reader | None = None
    ) -> None:
        """Bind the parts.

        Args:
            reader: The fine-tuned model, with its scheme.
            finder: Finds documents.
            base: The model that answers, without reflection; None: the tuned model answers.
        """
        self._reader, self._finder, self._settings, self._base = reader, finder, settings, base

    def run(self, questions: Sequence[Question], images: Sequence[Image.Image]) -> list[Trace]:
        """Return one trace per question, in order; each step runs on the questions that still need it."""
        clock, settings = Clock(), self._settings
        with clock.step("gate"):
            opened = self._reader.open(questions, images)
            gates = self._reader.gates(opened) if settings.ret else [None] * len(questions)
        rows = [
            i for i, gate in enumerate(gates) if gate is None or self._reader.scheme.retrieves(gate, settings.gamma)
        ]
        traces = [
            Trace(question.id, self.name, gate=gates[i], retrieved=i in rows) for i, question in enumerate(questions)
        ]
        publish(traces)
        with clock.step("retrieve"):
            found = self._finder.find([questions[i] for i in rows], [images[i] for i in rows])
        retrieved = dict(zip(rows, found, strict=True))
        for i in rows:
            traces[i] = dataclasses.replace(traces[i], hits=retrieved[i].hits)
        publish(traces)
        with clock.step("judge"):
            scores = self._judge(opened, retrieved)
        for i in rows:
            traces[i] = self._select_documents(traces[i], retrieved[i], scores[i])
        publish(traces)
        with clock.step("agree"):
            traces = self._agree(opened, traces)
        with clock.step("answer"):
            contexts = {i: _context(trace) for i, trace in enumerate(traces)}
            answers = self._answer(opened, images, contexts)
        seconds = clock.share(len(questions))
        return [
            dataclasses.replace(_answered(trace, answers[i], len(contexts[i]), opened.usage.of(i)), seconds=seconds)
            for i, trace in enumerate(traces)
        ]

    def _judge(self, opened: OpenedQuestions, retrieved: Mapping[int, FoundDocuments]) -> list[list[float | None]]:
        """Compute Score_SRT of the documents of each question; all None without SRT."""
        documents = [retrieved[i].documents if i in retrieved else () for i in range(len(opened.questions))]
        if self._settings.srt:
            hits = [retrieved[i].hits if i in retrieved else () for i in range(len(opened.questions))]
            return self._reader.judge(opened, documents, [describe_ranks(question_hits) for question_hits in hits])
        return [[None] * len(question_documents) for question_documents in documents]

    def _select_documents(self, trace: Trace, retrieved: FoundDocuments, scores: Sequence[float | None]) -> Trace:
        """Return the trace of a question after SRT selected documents."""
        settings = self._settings
        passages = retrieved.traces(scores, settings.s_ret_temperature)
        kept, below = keep_documents(passages, retrieved.hits, settings)
        left_out = sum(score is None for score in scores) if settings.srt else 0
        return dataclasses.replace(
            trace,
            passages=passages,
            kept=tuple(kept),
            used=tuple(kept),
            fallback="best_relevance" if below else "",
            tokens={"passages_judged": len(scores) - left_out if settings.srt else 0, "passages_left_out": left_out},
        )

    def _agree(self, opened: OpenedQuestions, traces: Sequence[Trace]) -> list[Trace]:
        """Return the traces after MCT, which runs for questions with at least two kept documents."""
        mode = self._settings.mct
        if mode == "entry":
            share = bool(self._settings.s_ret_temperature)
            return [dataclasses.replace(trace, used=tuple(_best_entry_documents(trace, share))) for trace in traces]
        kept_passages = {i: [t.passages[k].passage for k in t.kept] for i, t in enumerate(traces) if len(t.kept) >= 2}
        replies = self._reader.agree(opened, kept_passages) if mode != "none" else {}
        agreed = list(traces)
        for i, reply in replies.items():
            used, mct = apply_mct(traces[i].kept, reply.text, reply.shown, mode)
            mct = dataclasses.replace(mct, reply=reply.raw, finished=reply.finished)
            tokens = {**traces[i].tokens, "mct_generated": reply.tokens}
            agreed[i] = dataclasses.replace(traces[i], used=tuple(used), mct=mct, tokens=tokens)
        return agreed

    def _answer(
        self, opened: OpenedQuestions, images: Sequence[Image.Image], contexts: Mapping[int, Sequence[Passage]]
    ) -> Mapping[int, ReaderAnswer]:
        if self._base is None:
            return self._reader.answer(opened, contexts)
        answers = self._base.answer_plainly(opened.questions, images, [contexts[i] for i in range(len(images))])
        for i, answer in enumerate(answers):
            opened.usage.add(i, **answer.usage)
        return dict(enumerate(answers))


def _best_entry_documents(trace: Trace, is_share: bool) -> list[int]:
    """Return the kept documents of the entry with the highest sum of Score_SRT, times S_ret if `is_share`."""
    scores = [
        (p.s_rel if p.s_rel is not None else 1.0) * (p.s_ret if is_share and p.s_ret is not None else 1.0)
        for p in trace.passages
    ]
    return keep_entry(trace.kept, [p.passage.entry_id for p in trace.passages], scores)


def keep_documents(
    passages: Sequence[PassageTrace], hits: Sequence[Hit], settings: MmkbRagSettings
) -> tuple[list[int], bool]:
    """Select judged documents by SRT, or the first ones without SRT.

    Returns:
        Positions, best first; and True if no score reached the threshold and the best one was kept.
    """
    if not settings.srt:
        return keep_first(len(passages), settings.keep), False
    scores = [passage.s_rel for passage in passages]
    shares = [passage.s_ret or 0.0 for passage in passages] if settings.s_ret_temperature else None
    if settings.srt_fusion:
        scores, shares = _fused(passages, hits, settings), None
    return keep_relevant(scores, settings.keep, settings.threshold, shares)


def _fused(passages: Sequence[PassageTrace], hits: Sequence[Hit], settings: MmkbRagSettings) -> list[float | None]:
    """Return the probability of each document by `srt_fusion`; None for one without a score."""
    similarity = {hit.entry_id: hit.score for hit in hits}
    entries = [passage.passage.entry_id for passage in passages]
    shares = document_shares(entries, [similarity[entry] for entry in entries], settings.s_ret_temperature)
    return [
        None if passage.s_rel is None else fuse(passage.s_rel, share, settings.srt_fusion)
        for passage, share in zip(passages, shares, strict=True)
    ]


def _context(trace: Trace) -> list[Passage]:
    """Return the answer's documents, or the summary as one; none for a closed-book answer."""
    if trace.mct is not None and trace.mct.merged:
        return [Passage(entry_id="", section=0, index=0, title="", lead="", heading="", text=trace.mct.summary)]
    return [trace.passages[k].passage for k in trace.used]


def _answered(trace: Trace, answer: ReaderAnswer, given: int, usage: Mapping[str, int]) -> Trace:
    """Add the answer to a trace, and the number of documents that fit the answering model's context."""
    read = answer.passages_read
    mct = trace.mct
    if mct is not None and mct.merged and not read:
        mct = dataclasses.replace(mct, merged=False)
    return dataclasses.replace(
        trace,
        answer=answer.text,
        confidence=answer.score,
        cut=answer.cut,
        used=trace.used[:read],
        mct=mct,
        fallback="closed_book" if trace.retrieved and not read else trace.fallback,
        tokens={**trace.tokens, **usage, "passages_read": read, "passages_not_read": given - read},
    )


class ReflectionScores:
    """Computes Score_RET of all questions and Score_SRT of all knowledge-based ones, independent of RET."""

    name = "reflection"

    def __init__(self, reader: PromptedReader, finder: DocumentFinder) -> None:
        """Bind the fine-tuned model and the finder of documents."""
        self._reader, self._finder = reader, finder

    def run(self, questions: Sequence[Question], images: Sequence[Image.Image]) -> list[Trace]:
        """Return one trace per question, in order; a document that states an accepted answer has source `stating`."""
        clock = Clock()
        with clock.step("gate"):
            opened = self._reader.open(questions, images)
            gates = self._reader.gates(opened)
        with clock.step("retrieve"):
            rows = [i for i, question in enumerate(questions) if question.requires_retrieval is not False]
            found = self._finder.find([questions[i] for i in rows], [images[i] for i in rows])
            by_row = dict(zip(rows, found, strict=True))
            retrieved = [by_row.get(i, FoundDocuments()) for i in range(len(questions))]
        with clock.step("judge"):
            documents = [retrieval.documents for retrieval in retrieved]
            scores = self._reader.judge(opened, documents, [describe_ranks(retrieval.hits) for retrieval in retrieved])
        return [
            Trace(
                question.id,
                self.name,
                gate=gates[i],
                retrieved=bool(retrieved[i].hits),
                hits=retrieved[i].hits,
                passages=tuple(_labelled(question, passage) for passage in retrieved[i].traces(scores[i])),
                seconds=clock.share(len(questions)),
            )
            for i, question in enumerate(questions)
        ]


def _labelled(question: Question, passage: PassageTrace) -> PassageTrace:
    stating = is_stating(question, passage.passage)
    return dataclasses.replace(passage, source=STATING) if stating else passage


def _scores(name: str, settings: DocumentFinderSettings, parts: PipelineParts) -> ReflectionScores:
    reader = PromptedReader(needed(parts.engine), settings.max_new_tokens, settings.max_new_tokens)  # MCT isn't asked
    return ReflectionScores(reader, _finder(settings, parts))


def _finder(settings: DocumentFinderSettings, parts: PipelineParts) -> DocumentFinder:
    return DocumentFinder(needed(parts.retriever), parts.knowledge, settings, parts.reranker)


def _reader(settings: MmkbRagSettings, parts: PipelineParts) -> PromptedReader:
    return PromptedReader(needed(parts.engine), settings.max_new_tokens, settings.max_reply_tokens)


def _base(settings: MmkbRagSettings, parts: PipelineParts) -> Reader | None:
    return Reader(needed(parts.base), settings.max_new_tokens) if settings.answer_model == "base" else None


RECIPES = {
    "mmkb_rag": Recipe(
        lambda name, settings, parts: MMKBRAG(
            _reader(settings, parts), _finder(settings, parts), settings, _base(settings, parts)
        ),
        MmkbRagSettings,
        "model",
        every,
        requires=(ENTRIES, DOCUMENT_RERANKER),
        base_answers=lambda settings: settings.answer_model == "base",
        title="MMKB-RAG",
        form="mmkb_rag",
        scheme="mmkb_rag",
        measured_by="reflection",
        choices=("entries",),
        answer_each=lambda settings, parts: DocumentAnswers(
            _reader(settings, parts), _finder(settings, parts), _base(settings, parts)
        ),
    ),
    "reflection": Recipe(_scores, DocumentFinderSettings, "model", every, requires=(ENTRIES, DOCUMENT_RERANKER)),
}


DocumentPosition = tuple[int, int]
"""Positions of a question in its batch, and of a document in the question's list."""


class DocumentAnswers:
    """Answers every question once from each of its documents; a document that doesn't fit the context has no answer.

    Args:
        reader: The fine-tuned model.
        finder: Finds documents.
        base: The model that answers, without reflection; None: the tuned model answers.
    """

    name = "document_answers"

    def __init__(self, reader: PromptedReader, finder: DocumentFinder, base: Reader | None = None) -> None:
        self._reader, self._finder, self._base = reader, finder, base

    def run(self, questions: Sequence[Question], images: Sequence[Image.Image]) -> list[Trace]:
        """Return one trace per question, in order."""
        clock = Clock()
        with clock.step("retrieve"):
            retrieved = self._finder.find(questions, images)
        with clock.step("answer"):
            answers = self._answers(questions, images, retrieved)
        return [
            Trace(
                question.id,
                self.name,
                retrieved=True,
                hits=retrieved[i].hits,
                passages=tuple(
                    dataclasses.replace(passage, answer=answers[i, k].text, s_ans=answers[i, k].score)
                    if answers[i, k].passages_read
                    else passage
                    for k, passage in enumerate(retrieved[i].traces([None] * len(retrieved[i].documents)))
                ),
                seconds=clock.share(len(questions)),
            )
            for i, question in enumerate(questions)
        ]

    def _answers(
        self, questions: Sequence[Question], images: Sequence[Image.Image], retrieved: Sequence[FoundDocuments]
    ) -> dict[DocumentPosition, ReaderAnswer]:
        rows = [(i, k) for i, retrieval in enumerate(retrieved) for k in range(len(retrieval.documents))]
        contexts = [[retrieved[i].documents[k]] for i, k in rows]
        if self._base is not None:
            row_questions, row_images = [questions[i] for i, _ in rows], [images[i] for i, _ in rows]
            return dict(zip(rows, self._base.answer_plainly(row_questions, row_images, contexts), strict=True))
        opened = self._reader.open(questions, images)
        answers: dict[DocumentPosition, ReaderAnswer] = {}
        for position in range(max((k + 1 for _, k in rows), default=0)):
            batch = {i: context for (i, k), context in zip(rows, contexts, strict=True) if k == position}
            answers |= {(i, position): answer for i, answer in self._reader.answer(opened, batch).items()}
        return answers
