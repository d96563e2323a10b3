"""The oracle setting: the gold article (as in the paper), or the gold passage, is given instead of retrieved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from PIL import Image

from reflectune.core.types import Passage, Question
from reflectune.inference.pipelines.base import Clock
from reflectune.inference.pipelines.with_context import answer_with_context
from reflectune.inference.probes import gold_passages
from reflectune.inference.reader import Reader
from reflectune.inference.trace import Trace
from reflectune.retrieval.knowledge_base import KnowledgeBase
from reflectune.retrieval.passages import Lead, split_passages

Given = Literal["article", "passage"]


class Oracle:
    """Answers from the right article, whole, or from the evidence passage of it."""

    def __init__(
        self, reader: Reader, knowledge: KnowledgeBase, given: Given, *, lead: Lead = "first_sentence"
    ) -> None:
        """Bind the base model and the entries; choose what is given."""
        self.name = f"oracle_{given}"
        self._reader, self._knowledge, self._given, self._lead = reader, knowledge, given, lead

    def run(self, questions: Sequence[Question], images: Sequence[Image.Image]) -> list[Trace]:
        """One trace per question, in order. A question needs entity ids (`article`) or evidence (`passage`)."""
        passages = [self._gold(question) for question in questions]
        hits: list[tuple[()]] = [()] * len(questions)
        return answer_with_context(self.name, self._reader, questions, images, hits, passages, Clock())

    def _gold(self, question: Question) -> list[Passage]:
        told = [evidence.entry_id for evidence in question.evidence] or question.entity_ids[:1]
        entries = [self._knowledge.get(entry_id) for entry_id in dict.fromkeys(told)]
        passages = [p for entry in entries for p in split_passages(entry, lead=self._lead)]
        return passages if self._given == "article" else gold_passages(question, passages)
