"""Contexts from retrieved entries: whole articles or the best passages, or one document at a time."""

from __future__ import annotations

import dataclasses
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
"""Forms whose passages a reranker picks."""


@dataclass(frozen=True)
class ContextBuilder:
    """Build the context of naive multimodal RAG from retrieved entries, in training and inference.

    Attributes:
        knowledge: The entries.
        reranker: Orders passages by the question; only the forms of `PICKED` need one.
        top_n: Number of entries to read.
        passages: Number of their passages to read, for `passages`.
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
        """Return the passages that each question is answered from, in the order of reading.

        Args:
            form: `article`: the first entry whole; `articles`: the first `top_n` entries whole, one after the other
                (naive mRAG, §3 of mR²AG); `passages`: the best passages of the first `top_n` entries by the reranker
                (LLaVA-SFR of its Table 1); `passage`: the best one of them, of the first entry if `top_n` is 1.
            questions: The questions' texts.
            hits: The retrieved entries of each, best first.
            images: The questions' images, for a reranker that reads them.
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
            raise ValueError("the best passages are asked for without a reranker")
        if isinstance(self.reranker, ImageReranker) and images:
            scores = [{hit.entry_id: hit.score for hit in row} for row in hits]
            ranked = self.reranker.rank_with_images(questions, images, articles, scores, count)
        else:
            ranked = self.reranker.rank(questions, articles, count)
        return [[scored.passage for scored in row] for row in ranked]


@dataclass(frozen=True)
class Document:
    """Passage to ask a model with.

    Attributes:
        passage: The passage.
        score: Its entry's S_ret, equation 3.
        rank: Rank among the question's documents, from 1.
        cut: True if sentences are missing at its end.
        found: Place of its entry in the search results (`places`); "" if it was not searched for.
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
    most: int,
    reranker: Reranker | None = None,
) -> list[list[Document]]:
    """Return the `most` passages of each question's retrieved entries that a reranker puts first, best first.

    Args:
        questions: Their texts.
        hits: The entries of each.
        passages_of: The passages of an entry, by its id.
        most: K of Algorithm 2.
        reranker: Ranks the passages; None: BM25.
    """
    articles = [[passage for hit in row for passage in passages_of(hit.entry_id)] for row in hits]
    found = []
    for row, ranked in zip(hits, (reranker or WordReranker()).rank(questions, articles, most), strict=True):
        scores, where = {hit.entry_id: hit.score for hit in row}, describe_ranks(row)
        passages = [scored.passage for scored in ranked]
        found.append([Document(p, scores[p.entry_id], i, found=where[p.entry_id]) for i, p in enumerate(passages, 1)])
    return found


def shorten(document: Document, room: int, count: Callable[[Passage], int]) -> Document | None:
    """Return the document if it fits, else with as many of its first sentences as fit; None if not even one does.

    Args:
        document: The document.
        room: Maximum tokens.
        count: Tokens of the prompt that asks with a passage.
    """
    if count(document.passage) <= room:
        return document
    texts = list(sentences(document.passage.text))
    fits, too_many = 0, len(texts)  # bisect: more sentences are more tokens
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if count(_first(document.passage, texts, middle)) <= room:
            fits = middle
        else:
            too_many = middle
    return dataclasses.replace(document, passage=_first(document.passage, texts, fits), cut=True) if fits else None


def _first(passage: Passage, texts: Sequence[str], count: int) -> Passage:
    return dataclasses.replace(passage, text=" ".join(texts[:count]))
