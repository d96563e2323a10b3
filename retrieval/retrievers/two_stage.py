"""Two stages: first the entries, then passages inside the entries found, or their summaries."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from reflectune.core.errors import UserError
from reflectune.core.types import Entry, Passage
from reflectune.formats.hits import Hit, PassageHit
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.formats.passages import Lead, split_passages
from reflectune.retrieval.rerankers.base import Reranker, ScoredPassage, best_first
from reflectune.retrieval.rerankers.words import WordReranker
from reflectune.retrieval.retrievers.queries import Query, Weights
from reflectune.retrieval.stores.base import inner

if TYPE_CHECKING:  # slow to import
    from reflectune.retrieval.encoders.base import ImageTextEncoder, Vectors
    from reflectune.retrieval.retrievers.entry_retriever import QueryRetriever

SUMMARY: Final = -1
"""The section of a passage that is its entry's summary: no section of the article."""

ARTICLE: Final = -2
"""The section of a passage that is its entry's whole article."""

PassagesOf = Callable[[str], Sequence[Passage]]
"""The passages of an entry, by its id."""


class PassageRanker(Protocol):
    """Chooses among the passages of the entries that a query found."""

    def rank(
        self, queries: Sequence[Query], passages: Sequence[Sequence[Passage]], top: int
    ) -> list[list[ScoredPassage]]:
        """The `top` best passages of each query, best first; equal ones in the order of their entries."""
        ...


class TextRanker:
    """Chooses by a query's text. Without a text the first passages are taken, with score 0, in the order of entries.

    Args:
        reranker: Compares texts with passages; BM25 if nothing is said.
    """

    def __init__(self, reranker: Reranker | None = None) -> None:
        self._reranker = reranker or WordReranker()

    def rank(
        self, queries: Sequence[Query], passages: Sequence[Sequence[Passage]], top: int
    ) -> list[list[ScoredPassage]]:
        """See `PassageRanker`."""
        worded = [place for place, query in enumerate(queries) if query.has_text]
        texts, choices = [queries[place].text for place in worded], [passages[place] for place in worded]
        ranked = dict(zip(worded, self._reranker.rank(texts, choices, top), strict=True))
        return [
            ranked[place] if place in ranked else [ScoredPassage(passage, 0.0) for passage in choice[:top]]
            for place, choice in enumerate(passages)
        ]


class SimilarityRanker:
    """Chooses by similarities to a passage's text p: (1 - w) · sim(I, p) + w · sim(q, p).

    A query has an image I and a text q; where one is lacking, the other alone is compared. Passages are encoded when
    they are asked about.

    Args:
        encoder: Of images and texts; a passage too long for it is cut.
        text_weight: w, from 0 to 1.
    """

    def __init__(self, encoder: ImageTextEncoder, *, text_weight: float = 0.5) -> None:
        if not 0 <= text_weight <= 1:
            raise ValueError(f"text_weight must be from 0 to 1, found {text_weight}")
        self._encoder, self._text_weight = encoder, text_weight

    def rank(
        self, queries: Sequence[Query], passages: Sequence[Sequence[Passage]], top: int
    ) -> list[list[ScoredPassage]]:
        """See `PassageRanker`."""
        return [
            best_first(choice, self._scores(query, choice), top)
            for query, choice in zip(queries, passages, strict=True)
        ]

    def _scores(self, query: Query, passages: Sequence[Passage]) -> list[float]:
        if not passages:
            return []
        rows = self._encoder.encode_texts([f"{passage.heading} {passage.text}".strip() for passage in passages])
        weights = {"image": 1 - self._text_weight, "text": self._text_weight}
        parts: dict[str, Vectors] = {}
        if query.image is not None:
            from reflectune.retrieval.encoders.base import TwoSpaceEncoder  # slow to import

            image = self._encoder.encode_images([query.image])
            mapped = self._encoder.to_title_space(image) if isinstance(self._encoder, TwoSpaceEncoder) else image
            parts["image"] = mapped[0]
        if query.has_text:
            parts["text"] = self._encoder.encode_texts([query.text])[0]
        if len(parts) == 1:
            weights = dict.fromkeys(parts, 1.0)
        scores = sum((weights[name] * inner(rows, vector) for name, vector in parts.items()), np.zeros(len(rows)))
        return [float(score) for score in scores]


class _TwoStages:
    """Base of searchers that find entries by the whole query, then choose among their passages."""

    def __init__(
        self,
        name: str,
        retriever: QueryRetriever,
        passages_of: PassagesOf,
        *,
        ranker: PassageRanker | None = None,
        weights: Weights | None = None,
    ) -> None:
        self.name = name
        self._retriever, self._passages_of, self._ranker = retriever, passages_of, ranker or TextRanker()
        self._weights = weights


class PassagesInside(_TwoStages):
    """Multimodal knowledge base searched in two stages: entries by the whole query, then passages inside them.

    A hit's score is the ranker's; its parts are `passage`, `entry` (the entry's score) and those of the entry's score.

    Args:
        name: Name in results and errors.
        retriever: Finds entries.
        passages_of: Returns the passages of an entry, by its id.
        ranker: Chooses among the passages; BM25 with the query's text by default.
        entries: Number of entries a query to look into.
        weights: Weights of the parts of an entry's score; None for the defaults.
    """

    def __init__(
        self,
        name: str,
        retriever: QueryRetriever,
        passages_of: PassagesOf,
        *,
        ranker: PassageRanker | None = None,
        entries: int = 5,
        weights: Weights | None = None,
    ) -> None:
        super().__init__(name, retriever, passages_of, ranker=ranker, weights=weights)
        self._entries = entries

    def search(self, queries: Sequence[Query], top: int) -> list[list[PassageHit]]:
        """For each query the `top` best passages of its entries, best first."""
        hits = self._retriever.search_queries(queries, self._entries, weights=self._weights)
        return passages_inside(queries, hits, self._passages_of, self._ranker, top)


class BestPassages(_TwoStages):
    """Multimodal knowledge base of pairs of an image and a section (MI-RAG, §3.4): one passage of each entry found.

    Pairs are ranked by their entries; the ranker only chooses inside an entry, so that none crowds out another. A hit's
    score is its entry's; its parts are `passage` (the ranker's score), `entry` and those of the entry's score.

    Args:
        name: Name in results and errors.
        retriever: Finds entries.
        passages_of: Returns the passages of an entry, by its id.
        ranker: Chooses the passage; BM25 with the query's text by default.
        weights: Weights of the parts of an entry's score; None for the defaults.
    """

    def search(self, queries: Sequence[Query], top: int) -> list[list[PassageHit]]:
        """For each query a passage of each of the `top` best entries, best entry first; one without text has none."""
        hits = self._retriever.search_queries(queries, top, weights=self._weights)
        asked = [query for query, row in zip(queries, hits, strict=True) for _ in row]
        alone = [[hit] for row in hits for hit in row]
        best = iter(passages_inside(asked, alone, functools.cache(self._passages_of), self._ranker, 1))
        return [
            [dataclasses.replace(pair, score=hit.score, rank=hit.rank) for hit in row for pair in next(best)]
            for row in hits
        ]


class Summaries:
    """Multimodal knowledge base of pairs of an image and a summary (PMSR): the summaries of the entries found.

    A hit's score is its entry's; its parts are those of the entry's score.

    Args:
        name: Name in results and errors.
        retriever: Finds entries.
        knowledge: The entries.
        weights: Weights of the parts of an entry's score; None for PMSR's, for an image and a text.
    """

    def __init__(
        self, name: str, retriever: QueryRetriever, knowledge: KnowledgeBase, *, weights: Weights | None = None
    ) -> None:
        self.name = name
        self._retriever, self._knowledge, self._weights = retriever, knowledge, weights

    def search(self, queries: Sequence[Query], top: int) -> list[list[PassageHit]]:
        """For each query the summaries of the `top` best entries, best first."""
        hits_by_query = self._retriever.search_queries(queries, top, weights=self._weights)
        return [
            [
                PassageHit(summary_of(self._knowledge.get(hit.entry_id)), hit.score, hit.rank, hit.kb, hit.parts)
                for hit in hits
            ]
            for hits in hits_by_query
        ]


def passages_inside(
    queries: Sequence[Query],
    hits: Sequence[Sequence[Hit]],
    passages_of: PassagesOf,
    ranker: PassageRanker,
    top: int,
) -> list[list[PassageHit]]:
    """Return the best passages of retrieved entries, at most `top` for each query, best first.

    Args:
        queries: The queries.
        hits: Entries of each query, best first; of a repeated entry the first counts.
        passages_of: Returns the passages of an entry, by its id.
        ranker: Chooses among them.
        top: At least 1.

    Raises:
        ValueError: `top` is less than 1, or the number of lists of entries differs from that of queries.
    """
    if top < 1 or len(queries) != len(hits):
        raise ValueError(f"{len(queries)} queries with {len(hits)} lists of entries ask for {top} passages each")
    by_id = [{hit.entry_id: hit for hit in reversed(row)} for row in hits]
    order = [list(dict.fromkeys(hit.entry_id for hit in row)) for row in hits]
    passages = [[passage for entry_id in ids for passage in passages_of(entry_id)] for ids in order]
    ranked = ranker.rank(queries, passages, top)
    return [
        [_inside(entry_hits[scored.passage.entry_id], scored, rank) for rank, scored in enumerate(row, start=1)]
        for entry_hits, row in zip(by_id, ranked, strict=True)
    ]


def _inside(hit: Hit, scored: ScoredPassage, rank: int) -> PassageHit:
    parts = {"passage": scored.score, "entry": hit.score, **hit.parts}
    return PassageHit(scored.passage, scored.score, rank, hit.kb, parts)


def summary_of(entry: Entry) -> Passage:
    """An entry's summary as a passage, `entry_id#-1.0`; its first passage where it has none.

    Raises:
        UserError: The entry has no text at all.
    """
    if text := " ".join(entry.summary.split()):
        return Passage(entry.id, SUMMARY, 0, entry.title, "", "", text)
    if passages := split_passages(entry):
        return passages[0]
    raise UserError(f"the entry `{entry.id}` has neither a summary nor a section with text; give it one, or drop it")


def article_of(entry: Entry, *, lead: Lead = "none") -> Passage | None:
    """Return an entry's whole article as a passage, `entry_id#-2.0`, a paragraph a line; None without text.

    Args:
        entry: The article.
        lead: Text before it.
    """
    passages = split_passages(entry, lead=lead)
    if not passages:
        return None
    lines = [f"{passage.heading.strip()}. {passage.text}".removeprefix(". ") for passage in passages]
    return Passage(entry.id, ARTICLE, 0, entry.title, passages[0].lead, "", "\n".join(lines))
