"""Build contexts of retrieved entries: whole articles or the best passages, together or one at a time."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from PIL import Image

from reflectune.core.types import Passage
from reflectune.formats.hits import Hit, describe_ranks
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.formats.passages import Lead, sentences, split_passages
from reflectune.retrieval.rerankers.base import ImageReranker, Reranker
from reflectune.retrieval.rerankers.words import WordReranker

ContextForm = Literal["article", "articles", "passage", "passages"]
CONTEXT_FORMS: tuple[ContextForm, ...] = ("article", "articles", "passage", "passages")
PICKED: tuple[ContextForm, ...] = ("passage", "passages")
"""Forms whose passages are selected by a reranker."""


@dataclass(frozen=True)
class ContextBuilder:
    """Build the context of naive multimodal RAG from retrieved entries, in training and inference.

    Attributes:
        knowledge: The entries.
        reranker: Reranker of passages; only the forms of `PICKED` need one.
        top_n: Number of entries to read.
        passages: Number of passages to read, for the form `passages`.
        lead: Text before each passage.
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
        """Return each question's passages in reading order.

        Args:
            form: `article`: the whole first entry; `articles`: the whole first `top_n` entries (naive mRAG, §3 of
                mR²AG); `passages`: the best passages of the first `top_n` entries (LLaVA-SFR in its Table 1);
                `passage`: only the best one.
            questions: The questions' texts.
            hits: Retrieved entries of each question, best first.
            images: The questions' images, for an `ImageReranker`.
        """
        depth = 1 if form == "article" else self.top_n
        articles = [
            [p for hit in row[:depth] for p in split_passages(self.knowledge.get(hit.entry_id), lead=self.lead)]
            for row in hits
        ]
        if form not in PICKED:
            return articles
        count = 1 if form == "passage" else self.passages
        if self.reranker is None:
            raise ValueError(f"the form `{form}` needs a reranker")
        if isinstance(self.reranker, ImageReranker) and images:
            scores = [{hit.entry_id: hit.score for hit in row} for row in hits]
            ranked = self.reranker.rank_with_images(questions, images, articles, scores, count)
        else:
            ranked = self.reranker.rank(questions, articles, count)
        return [[scored.passage for scored in row] for row in ranked]


@dataclass(frozen=True)
class Document:
    """Retrieved passage to answer a question with.

    Attributes:
        passage: The passage.
        score: Its entry's S_ret, equation 3.
        rank: Rank among the question's documents, from 1.
        cut: True if it was truncated to fit.
        found: Place of its entry in the search results (`describe_ranks`); "" if it was not retrieved.
    """

    passage: Passage
    score: float
    rank: int
    cut: bool = False
    found: str = ""


def find_documents(
    questions: Sequence[str],
    hits: Sequence[Sequence[Hit]],
    passages_of: Callable[[str], Sequence[Passage]],
    count: int,
    reranker: Reranker | None = None,
) -> list[list[Document]]:
    """Return the best passages of each question's retrieved entries, best first.

    Args:
        questions: The questions' texts.
        hits: Retrieved entries of each question.
        passages_of: Returns the passages of an entry by its id.
        count: Maximum passages per question: K of Algorithm 2.
        reranker: Reranker of the passages; None: BM25.
    """
    articles = [[passage for hit in row for passage in passages_of(hit.entry_id)] for row in hits]
    found = []
    for row, ranked in zip(hits, (reranker or WordReranker()).rank(questions, articles, count), strict=True):
        scores, where = {hit.entry_id: hit.score for hit in row}, describe_ranks(row)
        passages = [scored.passage for scored in ranked]
        found.append([Document(p, scores[p.entry_id], i, found=where[p.entry_id]) for i, p in enumerate(passages, 1)])
    return found


def shorten(document: Document, max_tokens: int, count: Callable[[Passage], int]) -> Document | None:
    """Truncate a document to as many whole sentences as fit; return None if not even the first one fits.

    Args:
        document: The document.
        max_tokens: Maximum tokens of the prompt.
        count: Returns the tokens of the prompt with a passage.
    """
    if count(document.passage) <= max_tokens:
        return document
    texts = list(sentences(document.passage.text))

    def first(sentence_count: int) -> Passage:
        return dataclasses.replace(document.passage, text=" ".join(texts[:sentence_count]))

    fitting = bisect_right(range(1, len(texts)), max_tokens, key=lambda sentence_count: count(first(sentence_count)))
    return dataclasses.replace(document, passage=first(fitting), cut=True) if fitting else None
