"""What a reader without reflection is given of what was retrieved: one article, several, or the best passages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from PIL import Image

from reflectune.core.types import Passage
from reflectune.retrieval.hits import Hit
from reflectune.retrieval.knowledge_base import KnowledgeBase
from reflectune.retrieval.passages import Lead, split_passages
from reflectune.retrieval.rerankers.base import PictureReranker, Reranker

ContextForm = Literal["article", "articles", "passages"]
CONTEXT_FORMS: tuple[ContextForm, ...] = ("article", "articles", "passages")


@dataclass(frozen=True)
class ContextBuilder:
    """Makes the context of naive multimodal RAG from retrieved entries; training and inference share it.

    Attributes:
        knowledge: The entries.
        reranker: Orders passages by the question; only `passages` needs one.
        top_n: Entries to read.
        passages: Passages to read of them, for `passages`.
        lead: What stands before each passage.
    """

    knowledge: KnowledgeBase
    reranker: Reranker | None = None
    top_n: int = 5
    passages: int = 5
    lead: Lead = "first_sentence"

    def build(
        self,
        form: ContextForm,
        questions: Sequence[str],
        hits: Sequence[Sequence[Hit]],
        images: Sequence[Image.Image] = (),
    ) -> list[list[Passage]]:
        """The passages that each question is answered from, in the order of reading.

        Args:
            form: `article`: the first entry whole; `articles`: the first `top_n` entries whole, one after the other
                (naive mRAG, §3 of mR²AG); `passages`: the best passages of the first `top_n` entries by the reranker
                (LLaVA-SFR of its Table 1).
            questions: The questions' texts.
            hits: The retrieved entries of each, best first.
            images: The questions' pictures, for a reranker that reads them.
        """
        depth = 1 if form == "article" else self.top_n
        articles = [
            [p for hit in row[:depth] for p in split_passages(self.knowledge.get(hit.entry_id), lead=self.lead)]
            for row in hits
        ]
        if form != "passages":
            return articles
        if self.reranker is None:
            raise ValueError("the best passages are asked for without a reranker")
        if isinstance(self.reranker, PictureReranker) and images:
            scores = [{hit.entry_id: hit.score for hit in row} for row in hits]
            ranked = self.reranker.rank_pictured(questions, images, articles, scores, self.passages)
        else:
            ranked = self.reranker.rank(questions, articles, self.passages)
        return [[scored.passage for scored in row] for row in ranked]
