"""Controls that isolate mR²AG's relevance-reflection: its checkpoint, gate and search, without its verdicts.

A difference from `mr2ag` is due to the verdicts: gates and direct answers are the same. Answers are decoded after a
forced [Relevant], the one form in which this checkpoint learned to answer from a passage. Without a token it would
write its verdict first. The forced token is the same for all passages, so it carries no verdict.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from PIL import Image

from reflectune.core.types import Passage, Question
from reflectune.formats.hits import Hit
from reflectune.inference.pipelines.mr2ag import MR2AG, Mr2agSettings, Unjudged, choose, make
from reflectune.inference.pipelines.recipe import CONTROLS, PipelineParts, Recipe, every, needed
from reflectune.inference.pipelines.requirements import ENTRIES, TEXT_RERANKER, Requirement
from reflectune.inference.reading.passage_reader import JudgedPassages
from reflectune.inference.reading.ranking import entry_shares
from reflectune.inference.reading.reader import OpenedQuestions
from reflectune.inference.trace import Trace
from reflectune.inference.trace_files.columns import StoredTraces, with_texts
from reflectune.retrieval.contexts import ContextBuilder


class FirstPassage(Unjudged):
    """Answers from the reranker's best passage of the first entry."""

    name = "mr2ag_first_passage"

    def _passages(
        self, questions: Sequence[Question], images: Sequence[Image.Image], hits: Sequence[Sequence[Hit]]
    ) -> list[list[Passage]]:
        contexts = ContextBuilder(self._knowledge, self._reranker, top_n=1, lead=self._settings.lead)
        return contexts.build("passage", [question.text for question in questions], hits, images)


class TextScored(MR2AG):
    """mR²AG with S_rel replaced by the passage's share of a softmax over the reranker's scores.

    A share has no threshold, so every passage is answered from. Its exponent is the softmax's inverse temperature.
    """

    name = "mr2ag_text_scored"
    answered: StoredTraces = MappingProxyType({})
    """Traces of `Unjudged` by question id, with the same answers; the model reads nothing again for their questions."""

    def run(self, questions: Sequence[Question], images: Sequence[Image.Image]) -> list[Trace]:
        """Return one trace per question, in order: from `answered`, or like `MR2AG`."""
        stored = with_texts(self.answered, [question.id for question in questions])
        answered = [stored[question.id] for question in questions if question.id in stored]
        if len(answered) < len(questions):
            return super().run(questions, images)
        passages = self._passages(questions, images, [trace.hits for trace in answered])
        ids = [{passage.passage.id for passage in trace.passages} for trace in answered]
        read = [[p for p in row if p.id in known] for row, known in zip(passages, ids, strict=True)]
        shares = self._shares([question.text for question in questions], read)
        return [self._scored(trace, row) for trace, row in zip(answered, shares, strict=True)]

    def _scored(self, trace: Trace, shares: Sequence[float]) -> Trace:
        """Give a trace's passages their shares, and choose among its answers."""
        judged = [
            dataclasses.replace(passage, s_rel=share, s_irr=0.0)
            for passage, share in zip(trace.passages, shares, strict=True)
        ]
        scored = tuple(p if p.relevant else dataclasses.replace(p, answer=None, s_ans=None, cut=False) for p in judged)
        return choose(dataclasses.replace(trace, pipeline=self.name, passages=scored), self._settings)

    def _judge(self, opened: OpenedQuestions, passages: Sequence[Sequence[Passage]]) -> JudgedPassages:
        judged = super()._judge(opened, passages)
        shares = self._shares([question.text for question in opened.questions], judged.passages)
        return dataclasses.replace(judged, relevance=[[(share, 0.0) for share in row] for row in shares])

    def _shares(self, texts: Sequence[str], passages: Sequence[Sequence[Passage]]) -> list[list[float]]:
        """Return the share of each question's passages, in their order."""
        rows = []
        for of_question, ranked in zip(passages, needed(self._reranker).rank(texts, passages), strict=True):
            scores = {one.passage.id: one.score for one in ranked}
            rows.append(entry_shares([scores[passage.id] for passage in of_question], 1.0))
        return rows


def _text_scored(name: str, settings: Mr2agSettings, parts: PipelineParts) -> TextScored:
    made = make(TextScored, settings, parts)
    made.answered = parts.earlier.get(Unjudged.name, made.answered)
    return made


def _recipe(kind: type[MR2AG], title: str, *parts: Requirement) -> Recipe[Any]:
    return Recipe(
        lambda name, settings, parts: make(kind, settings, parts),
        Mr2agSettings,
        "model",
        every,
        requires=(ENTRIES, *parts),
        title=f"mR²AG, {title}",
        form=CONTROLS,
        scheme="mr2ag",
    )


RECIPES = {
    Unjudged.name: _recipe(Unjudged, "passages not judged"),
    FirstPassage.name: _recipe(FirstPassage, "best passage of the first entry", TEXT_RERANKER),
    TextScored.name: dataclasses.replace(
        _recipe(TextScored, "judged by a text score", TEXT_RERANKER), make=_text_scored
    ),
}
