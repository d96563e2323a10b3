"""mR²AG (arXiv 2411.15041, §3.1): decide whether to retrieve, judge passages, choose by the product of scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from PIL import Image

from reflectune.core.types import Question
from reflectune.inference.pipelines.base import Clock
from reflectune.inference.pipelines.gated import Fallback, GatedPipeline, GatedSettings, drawn_place, fallback_of
from reflectune.inference.pipelines.oracle import WithGoldEntries
from reflectune.inference.pipelines.recipe import PipelineParts, Recipe, every, needed, with_entry
from reflectune.inference.pipelines.requirements import ENTRIES
from reflectune.inference.pipelines.settings import EntryShareSettings
from reflectune.inference.pipelines.stages import passage_reader
from reflectune.inference.reading.passage_reader import JudgedPassages
from reflectune.inference.reading.ranking import best
from reflectune.inference.reading.reader import OpenedQuestions, ReaderAnswer
from reflectune.inference.trace import PassageTrace, Trace

if TYPE_CHECKING:  # slow to import
    from reflectune.retrieval.retrievers.entry_retriever import Retriever


class Mr2agSettings(EntryShareSettings, GatedSettings):
    """Settings of mR²AG. As in the paper: `top_n: 5`, and `s_ret_temperature: 0`, the similarity of equation 3."""


class MR2AG(GatedPipeline):
    """The gated loop: retrieve or not, judge every passage of the top entries, answer from the relevant ones.

    All passages of a question share its vision pass and its prefix; gate and relevance are probabilities read at one
    position; only relevant passages are decoded from.
    """

    name = "mr2ag"

    def run(self, questions: Sequence[Question], images: Sequence[Image.Image]) -> list[Trace]:
        """Return one trace per question, in order; each step runs on the questions that still need it."""
        clock = Clock()
        gated = self._gate_and_judge(questions, images, clock, self._settings.s_ret_temperature)
        traces, reads = gated.traces, [list(trace.passages) for trace in gated.traces]
        fallbacks = {i: used for i, trace in enumerate(traces) if (used := fallback_of(trace, self._settings.fallback))}
        with clock.step("answer"):
            direct = self._answer_directly(gated.opened, traces, fallbacks)
            self._answer_from_passages(gated.opened, gated.judged, reads, fallbacks)
        seconds = clock.share(len(questions))
        return [
            self._trace(
                dataclasses.replace(
                    trace,
                    passages=tuple(reads[i]),
                    fallback=fallbacks.get(i, ""),
                    tokens={**trace.tokens, **gated.opened.usage.of(i)},
                    seconds=seconds,
                ),
                direct.get(i),
            )
            for i, trace in enumerate(traces)
        ]

    def _answer_directly(
        self, opened: OpenedQuestions, traces: Sequence[Trace], fallbacks: Mapping[int, Fallback]
    ) -> dict[int, ReaderAnswer]:
        """Answer without passages if the gate is closed, or as the fallback; by position."""
        rows = [i for i, trace in enumerate(traces) if not trace.retrieved or fallbacks.get(i) == "closed_book"]
        return dict(zip(rows, self._reader.answer_directly(opened, rows), strict=True))

    def _answer_from_passages(
        self,
        opened: OpenedQuestions,
        judged: JudgedPassages,
        reads: list[list[PassageTrace]],
        fallbacks: Mapping[int, Fallback],
    ) -> None:
        """Answer from every relevant passage, and from the fallback's passages, in place."""
        rows = [(i, k) for i, passages in enumerate(reads) for k, passage in enumerate(passages) if passage.relevant]
        for i, fallback in fallbacks.items():
            positions = range(len(reads[i]))
            drawn = [drawn_place(opened.questions[i], len(reads[i]))] if fallback == "random" else []
            rows += [(i, k) for k in (positions if fallback == "best_product" else drawn)]
        rows.sort()
        for (i, k), answer in zip(rows, self._reader.answer_from(judged, rows), strict=True):
            reads[i][k] = dataclasses.replace(reads[i][k], answer=answer.text, s_ans=answer.score)

    def _trace(self, trace: Trace, direct: ReaderAnswer | None) -> Trace:
        """Add the answer: the direct one if there is one, else that of the passage with the highest product."""
        if direct is not None:
            return dataclasses.replace(trace, answer=direct.text, confidence=direct.score)
        candidates = [(k, p.scores) for k, p in enumerate(trace.passages) if p.scores is not None]
        if not candidates:
            return trace
        chosen = candidates[best([scores for _, scores in candidates])][0]
        return dataclasses.replace(trace, answer=trace.passages[chosen].answer or "", chosen=chosen)


def _make(settings: Mr2agSettings, parts: PipelineParts, retriever: Retriever) -> MR2AG:
    return MR2AG(passage_reader(settings, parts), retriever, parts.knowledge, settings)


def _answer_each(settings: Mr2agSettings, parts: PipelineParts) -> MR2AG:
    always = settings.model_copy(update={"gamma": -1.0})
    return _make(always, dataclasses.replace(parts, judging=False), needed(parts.retriever))


RECIPES = {
    "mr2ag": Recipe(
        lambda name, settings, parts: _make(settings, parts, needed(parts.retriever)),
        Mr2agSettings,
        "model",
        every,
        requires=(ENTRIES,),
        form="mr2ag",
        scheme="mr2ag",
        measured_by="relevance",
        choices=("relevance", "entries", "ranking"),
        answer_each=_answer_each,
    ),
    "mr2ag_oracle": Recipe(
        lambda name, settings, parts: WithGoldEntries(name, lambda gold: _make(settings, parts, gold)),
        Mr2agSettings,
        "model",
        with_entry,
        form="mr2ag_oracle",
        scheme="mr2ag",
    ),
}
