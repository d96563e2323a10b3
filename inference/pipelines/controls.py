"""Controls that isolate mR²AG's relevance-reflection: its checkpoint, gate and search, without its verdicts.

A difference from `mr2ag` is due to the verdicts: gates and direct answers are the same. Answers are decoded behind a
forced [Relevant], the one form in which this checkpoint learned to answer from a passage. Without a token it would
write its verdict first. The forced token is the same for all passages, so it carries no verdict.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from PIL import Image

from reflectune.core.types import Passage, Question
from reflectune.formats.hits import Hit
from reflectune.inference.pipelines.mr2ag import MR2AG, Mr2agSettings, Unjudged, make
from reflectune.inference.pipelines.recipe import CONTROLS, Recipe, every, needed
from reflectune.inference.pipelines.requirements import ENTRIES, RERANKER, Requirement
from reflectune.inference.reading.passage_reader import JudgedPassages
from reflectune.inference.reading.ranking import entry_shares
from reflectune.inference.reading.reader import OpenedQuestions
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

    def _judge(self, opened: OpenedQuestions, passages: Sequence[Sequence[Passage]]) -> JudgedPassages:
        judged, relevance = super()._judge(opened, passages), []
        ranked = needed(self._reranker).rank([question.text for question in opened.questions], judged.passages)
        for of_question, row in zip(judged.passages, ranked, strict=True):
            scores = {one.passage.id: one.score for one in row}
            shares = entry_shares([scores[passage.id] for passage in of_question], 1.0)
            relevance.append([(share, 0.0) for share in shares])
        return dataclasses.replace(judged, relevance=relevance)


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
    FirstPassage.name: _recipe(FirstPassage, "best passage of the first entry", RERANKER),
    TextScored.name: _recipe(TextScored, "judged by a text score", RERANKER),
}
