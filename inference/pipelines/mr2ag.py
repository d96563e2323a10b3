"""mR²AG (arXiv 2411.15041, §3.1): reflect on whether to retrieve, judge passages, choose by the product of scores."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence

from PIL import Image

from reflectune.core.types import Passage, Question
from reflectune.inference.config import Fallback
from reflectune.inference.pipelines.base import Clock
from reflectune.inference.pipelines.oracle import WithGoldEntries
from reflectune.inference.pipelines.recipe import Parts, Recipe, every, needed, with_entry
from reflectune.inference.pipelines.stages import passage_reader
from reflectune.inference.reading.passage_reader import Judged, PassageReader
from reflectune.inference.reading.reader import Answer, Opened
from reflectune.inference.selection.ranking import best
from reflectune.inference.trace import PassageTrace, Trace
from reflectune.retrieval.knowledge_base import KnowledgeBase
from reflectune.retrieval.passages import Lead, split_passages
from reflectune.retrieval.retriever import Retriever
from reflectune.retrieval.types import Hit


class MR2AG:
    """The gated loop: retrieve or not, judge every passage of the top entries, answer from those that are relevant.

    All passages of a question share its vision pass and its prefix; the gate and the relevance of a passage are
    probabilities read at one position; only relevant passages go on decoding.
    """

    name = "mr2ag"

    def __init__(
        self,
        reader: PassageReader,
        retriever: Retriever,
        knowledge: KnowledgeBase,
        *,
        top_n: int = 5,
        gamma: float = 0.5,
        fallback: Fallback = "best_product",
        lead: Lead = "first_sentence",
    ) -> None:
        """Bind the collaborators.

        Args:
            reader: The fine-tuned model, with its scheme.
            retriever: Finds entries for an image; equation 3.
            knowledge: The entries.
            top_n: Entries to retrieve; 5 in the paper.
            gamma: Retrieve if P([Retrieval]) / (P([Retrieval]) + P([No Retrieval])) is at least this.
            fallback: What to do when no passage is judged relevant (the paper is silent): `best_product` answers from
                the passage with the highest product, `random` from one that is drawn by the question's id,
                `closed_book` from the image alone, `abstain` not at all.
            lead: What stands before each passage.
        """
        self._reader, self._retriever, self._knowledge = reader, retriever, knowledge
        self._top_n, self._gamma, self._fallback, self._lead = top_n, gamma, fallback, lead

    def run(self, questions: Sequence[Question], images: Sequence[Image.Image]) -> list[Trace]:
        """One trace per question, in order; each step works on the questions that still need it."""
        clock = Clock()
        with clock.step("gate"):
            opened = self._reader.open(questions, images)
            gates = self._reader.gates(opened)
        looked_up = [i for i, gate in enumerate(gates) if gate >= self._gamma]
        with clock.step("retrieve"):
            hits = self._retrieve(images, looked_up)
        with clock.step("judge"):
            found = [[p for hit in hits.get(i, ()) for p in self._passages(hit)] for i in range(len(questions))]
            judged = self._reader.judge(opened, found)
        reads = [
            [_read(p, judged.relevance[i][k], hits[i]) for k, p in enumerate(own)]
            for i, own in enumerate(judged.passages)
        ]
        fallbacks = {i: self._fallback_for(reads[i]) for i in looked_up if not any(p.relevant for p in reads[i])}
        with clock.step("answer"):
            direct = self._answer_directly(opened, looked_up, fallbacks)
            self._answer_from_passages(opened, judged, reads, fallbacks)
        return [
            self._trace(
                Trace(
                    question_id=question.id,
                    pipeline=self.name,
                    gate=gates[i],
                    retrieved=i in hits,
                    hits=tuple(hits.get(i, ())),
                    passages=tuple(reads[i]),
                    fallback=fallbacks.get(i, ""),
                    seconds=clock.share(len(questions)),
                    tokens={"passages_read": len(reads[i]), "passages_left_out": len(found[i]) - len(reads[i])},
                ),
                direct.get(i),
            )
            for i, question in enumerate(questions)
        ]

    def _retrieve(self, images: Sequence[Image.Image], rows: Sequence[int]) -> dict[int, list[Hit]]:
        """The hits of the questions that the gate lets through, by position."""
        found = self._retriever.search([images[i] for i in rows], self._top_n) if rows else []
        return dict(zip(rows, found, strict=True))

    def _passages(self, hit: Hit) -> list[Passage]:
        return split_passages(self._knowledge.get(hit.entry_id), lead=self._lead)

    def _fallback_for(self, reads: Sequence[PassageTrace]) -> Fallback:
        """The fallback of a question without a relevant passage; with no passage at all there is none to choose."""
        return "closed_book" if self._fallback in ("best_product", "random") and not reads else self._fallback

    def _answer_directly(
        self, opened: Opened, looked_up: Sequence[int], fallbacks: Mapping[int, Fallback]
    ) -> dict[int, Answer]:
        """Answers without passages: where the gate says so, and where that is the fallback; by position."""
        rows = [i for i in range(len(opened.questions)) if i not in looked_up or fallbacks.get(i) == "closed_book"]
        return dict(zip(rows, self._reader.answer_directly(opened, rows), strict=True))

    def _answer_from_passages(
        self, opened: Opened, judged: Judged, reads: list[list[PassageTrace]], fallbacks: Mapping[int, Fallback]
    ) -> None:
        """Answer from every relevant passage, and from those that the fallback takes; in place."""
        rows = [(i, k) for i, own in enumerate(reads) for k, passage in enumerate(own) if passage.relevant]
        for i, fallback in fallbacks.items():
            places = range(len(reads[i]))
            drawn = [drawn_place(opened.questions[i], len(reads[i]))] if fallback == "random" else []
            rows += [(i, k) for k in (places if fallback == "best_product" else drawn)]
        rows.sort()
        for (i, k), answer in zip(rows, self._reader.answer_from(judged, rows), strict=True):
            reads[i][k] = dataclasses.replace(reads[i][k], answer=answer.text, s_ans=answer.score)

    def _trace(self, trace: Trace, direct: Answer | None) -> Trace:
        """Add the answer: the direct one if there is one, else that of the passage with the highest product."""
        if direct is not None:
            counts = {**trace.tokens, "generated": direct.tokens}
            return dataclasses.replace(trace, answer=direct.text, confidence=direct.score, tokens=counts)
        candidates = [(k, p.scores) for k, p in enumerate(trace.passages) if p.scores is not None]
        if not candidates:
            return trace
        chosen = candidates[best([scores for _, scores in candidates])][0]
        return dataclasses.replace(trace, answer=trace.passages[chosen].answer or "", chosen=chosen)


def _read(passage: Passage, relevance: tuple[float, float], hits: Sequence[Hit]) -> PassageTrace:
    """A judged passage, with the retrieval score of its entry (equation 3)."""
    score = next(hit.score for hit in hits if hit.entry_id == passage.entry_id)
    return PassageTrace(passage, s_ret=score, s_rel=relevance[0], s_irr=relevance[1])


def drawn_place(question: Question, count: int) -> int:
    """The place of one of so many passages, drawn by the question's id: the same in every run."""
    return random.Random(question.id).randrange(count)


def _make(parts: Parts, retriever: Retriever) -> MR2AG:
    config = parts.config
    return MR2AG(
        passage_reader(parts),
        retriever,
        parts.knowledge,
        top_n=config.top_n,
        gamma=config.gamma,
        fallback=config.fallback,
        lead=config.lead,
    )


def _answer_each(parts: Parts) -> MR2AG:
    always = dataclasses.replace(parts, config=dataclasses.replace(parts.config, gamma=-1.0), judging=False)
    return _make(always, needed(parts.retriever))


_READ_BY = ("gamma", "fallback")

RECIPES = {
    "mr2ag": Recipe(
        lambda name, parts: _make(parts, needed(parts.retriever)),
        "model",
        True,
        every,
        ("top_n", *_READ_BY),
        form="mr2ag",
        scheme="mr2ag",
        measured_by="relevance",
        answer_each=_answer_each,
    ),
    "mr2ag_oracle": Recipe(
        lambda name, parts: WithGoldEntries(name, lambda gold: _make(parts, gold)),
        "model",
        False,
        with_entry,
        _READ_BY,
        form="mr2ag_oracle",
        scheme="mr2ag",
    ),
}
