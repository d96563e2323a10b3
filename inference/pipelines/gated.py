"""First steps of pipelines that reflect turn by turn: read the gate, retrieve if it opens, judge every passage."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from PIL import Image

from reflectune.core.config import setting
from reflectune.core.types import Passage, Question
from reflectune.formats.hits import Hit
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.formats.passages import split_passages
from reflectune.inference.pipelines.base import Clock
from reflectune.inference.pipelines.settings import EntrySettings, GateSettings
from reflectune.inference.reading.passage_reader import JudgedPassages
from reflectune.inference.reading.ranking import entry_scores
from reflectune.inference.reading.reader import OpenedQuestions
from reflectune.inference.trace import PassageTrace, Trace, publish
from reflectune.retrieval.retrievers.queries import image_queries

if TYPE_CHECKING:  # slow to import
    from reflectune.retrieval.rerankers.base import Reranker
    from reflectune.retrieval.retrievers.entry_retriever import Retriever

Fallback = Literal["best_product", "random", "closed_book", "abstain"]


class GatedSettings(GateSettings, EntrySettings):
    """Settings of pipelines that reflect turn by turn."""

    fallback: Fallback = setting("best_product", "answer if no passage is judged relevant")


@dataclass(frozen=True)
class Gated:
    """A batch of questions whose gates are read and whose passages are judged, before the answers.

    Attributes:
        opened: The questions.
        judged: Their passages.
        traces: One per question, in order: gate, hits, passages with S_ret and S_rel, and their number.
    """

    opened: OpenedQuestions
    judged: JudgedPassages
    traces: list[Trace]


class GatedPipeline:
    """Base of pipelines that reflect turn by turn.

    Args:
        reader: The fine-tuned model, with its scheme.
        retriever: Finds entries for an image; equation 3 of mR²AG.
        settings: The settings. mR²AG's paper doesn't publish its `fallback`. `best_product` answers from the passage
            with the highest product (ReflectiVA: highest p([Relevant])), `random` from one drawn by the question's id,
            `closed_book` from the image alone, `abstain` gives no answer. ReflectiVA's released code uses `random`.
        reranker: Scores passages, for controls.
    """

    name = ""

    def __init__(
        self,
        reader: Any,
        retriever: Retriever,
        knowledge: KnowledgeBase,
        settings: Any,
        reranker: Reranker | None = None,
    ) -> None:
        self._reader, self._retriever, self._knowledge, self._settings = reader, retriever, knowledge, settings
        self._reranker = reranker

    def _gate_and_judge(
        self, questions: Sequence[Question], images: Sequence[Image.Image], clock: Clock, s_ret_temperature: float = 0.0
    ) -> Gated:
        """Read the gates, and judge every passage of the top entries of the questions whose gate opens."""
        settings, reader = self._settings, self._reader
        with clock.step("gate"):
            opened = reader.open(questions, images)
            gates = reader.gates(opened)
        rows = [i for i, gate in enumerate(gates) if reader.scheme.retrieves(gate, settings.gamma)]
        traces = [
            Trace(question.id, self.name, gate=gates[i], retrieved=i in rows) for i, question in enumerate(questions)
        ]
        publish(traces)
        with clock.step("retrieve"):
            queries = image_queries([questions[i] for i in rows], [images[i] for i in rows])
            ranked = self._retriever.search(queries, settings.top_n) if rows else []
            hits = dict(zip(rows, ranked, strict=True))
        traces = [dataclasses.replace(trace, hits=tuple(hits.get(i, ()))) for i, trace in enumerate(traces)]
        publish(traces)
        with clock.step("judge"):
            passages = self._passages(questions, images, [hits.get(i, []) for i in range(len(questions))])
            judged = self._judge(opened, passages)
        for i, trace in enumerate(traces):
            s_ret = entry_scores(trace.hits, s_ret_temperature)
            read = tuple(
                PassageTrace(passage, s_ret=s_ret[passage.entry_id], s_rel=relevance[0], s_irr=relevance[1])
                for passage, relevance in zip(judged.passages[i], judged.relevance[i], strict=True)
            )
            tokens = {"passages_read": len(read), "passages_left_out": len(passages[i]) - len(read)}
            traces[i] = dataclasses.replace(trace, passages=read, tokens=tokens)
        publish(traces)
        return Gated(opened, judged, traces)

    def _passages(
        self, questions: Sequence[Question], images: Sequence[Image.Image], hits: Sequence[Sequence[Hit]]
    ) -> list[list[Passage]]:
        """Return the passages to read of each question: all of its entries'."""
        return [
            [p for hit in row for p in split_passages(self._knowledge.get(hit.entry_id), lead=self._settings.lead)]
            for row in hits
        ]

    def _judge(self, opened: OpenedQuestions, passages: Sequence[Sequence[Passage]]) -> JudgedPassages:
        """Judge the passages of each question."""
        judged: JudgedPassages = self._reader.judge(opened, passages)
        return judged


def fallback_of(trace: Trace, fallback: Fallback, *, judging: bool = True) -> Fallback | None:
    """Return the fallback of a question; None if it has a relevant passage or did not retrieve.

    A fallback that needs a passage becomes `closed_book` if there is none.

    Args:
        judging: False to count every passage as relevant.
    """
    if not trace.retrieved or any(passage.relevant or not judging for passage in trace.passages):
        return None
    return "closed_book" if fallback in ("best_product", "random") and not trace.passages else fallback


def random_position(question_id: str, count: int) -> int:
    """Draw one of `count` positions by the question's id."""
    return random.Random(question_id).randrange(count)
