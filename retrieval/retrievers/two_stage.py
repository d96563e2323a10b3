"""Two-stage retrieval: entries first, then passages of these entries, or their summaries."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from reflectune.core.types import Entry, Passage
from reflectune.formats.hits import Hit, PassageHit
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.formats.passages import Lead, lead_sentences, split_passages
from reflectune.retrieval.rerankers.base import ScoredPassage, best_first
from reflectune.retrieval.rerankers.words import bm25_scores
from reflectune.retrieval.retrievers.queries import Query, Weights

if TYPE_CHECKING:  # slow to import
    from reflectune.retrieval.retrievers.entry_retriever import Retriever, SectionRetriever

SUMMARY: Final = -1
"""Section of a passage that is its entry's summary."""
ARTICLE: Final = -2
"""Section of a passage that is its entry's whole article."""
WHOLE: Final = -2
"""Index of a passage that is its whole section; a section's summary has the index `SUMMARY`."""

PassagesOf = Callable[[str], Sequence[Passage]]
"""Returns the passages of an entry by its id."""


@dataclass
class PassagesInside:
    """Multimodal knowledge base searched in two stages: entries by the whole query, then their passages by BM25.

    A hit's score is its passage's BM25; its parts are `passage`, `entry` and those of the entry's score.

    Attributes:
        name: Name in results and errors.
        retriever: Finds entries.
        passages_of: Returns the passages of an entry, by its id.
        entries: Number of entries per query whose passages are ranked.
        weights: Weights of the parts of an entry's score; None for the defaults.
    """

    name: str
    retriever: Retriever
    passages_of: PassagesOf
    entries: int = 5
    weights: Weights | None = None

    def search(self, queries: Sequence[Query], top: int) -> list[list[PassageHit]]:
        """Return for each query the `top` best passages of its entries, best first."""
        hits = self.retriever.search(queries, self.entries, weights=self.weights)
        return passages_inside(queries, hits, self.passages_of, top)


@dataclass
class BestPassages:
    """Multimodal knowledge base of pairs of an image and a section (MI-RAG, §3.4): the best passage of each entry.

    Entries keep their ranking; BM25 only chooses one passage per entry. A hit's score is its entry's; its parts are
    `passage` (BM25), `entry` and those of the entry's score.

    Attributes:
        name: Name in results and errors.
        retriever: Finds entries.
        passages_of: Returns the passages of an entry, by its id.
        weights: Weights of the parts of an entry's score; None for the defaults.
    """

    name: str
    retriever: Retriever
    passages_of: PassagesOf
    weights: Weights | None = None

    def search(self, queries: Sequence[Query], top: int) -> list[list[PassageHit]]:
        """Return for each query a passage of each of the `top` best entries, best entry first; none without text."""
        hits = self.retriever.search(queries, top, weights=self.weights)
        query_of_hit = [query for query, row in zip(queries, hits, strict=True) for _ in row]
        single_hits = [[hit] for row in hits for hit in row]
        best = iter(passages_inside(query_of_hit, single_hits, functools.cache(self.passages_of), 1))
        return [
            [dataclasses.replace(pair, score=hit.score, rank=hit.rank) for hit in row for pair in next(best)]
            for row in hits
        ]


@dataclass
class Summaries:
    """Multimodal knowledge base of pairs of an image and a summary (PMSR): the summaries of retrieved entries.

    A hit's score is its entry's; its parts are those of the entry's score.

    Attributes:
        name: Name in results and errors.
        retriever: Finds entries.
        knowledge: The entries.
        weights: Weights of the parts of an entry's score; None for the defaults.
    """

    name: str
    retriever: Retriever
    knowledge: KnowledgeBase
    weights: Weights | None = None

    def search(self, queries: Sequence[Query], top: int) -> list[list[PassageHit]]:
        """Return for each query the summaries of the `top` best entries, best first; none without text."""
        return [
            [
                PassageHit(summary, hit.score, hit.rank, hit.kb, hit.parts)
                for hit in hits
                if (summary := summary_of(self.knowledge.get(hit.entry_id))) is not None
            ]
            for hits in self.retriever.search(queries, top, weights=self.weights)
        ]


@dataclass
class SectionPairs:
    """Multimodal knowledge base of pairs of an image and a section (MI-RAG, §3.4), searched in an index of sections.

    Several hits may be of one entry.

    Attributes:
        name: Name in results and errors.
        retriever: Finds sections.
        knowledge: The entries.
        is_summary: True: return the section's summary (PMSR); False: the whole section (MI-RAG).
        weights: Weights of the parts of a score; None for the defaults.
        lead: Text before a whole section.
    """

    name: str
    retriever: SectionRetriever
    knowledge: KnowledgeBase
    is_summary: bool = False
    weights: Weights | None = None
    lead: Lead = "none"

    def search(self, queries: Sequence[Query], top: int) -> list[list[PassageHit]]:
        """Return for each query the `top` best sections, best first."""
        return [
            [
                PassageHit(self._passage(hit.entry_id, section), hit.score, hit.rank, hit.kb, hit.parts)
                for hit, section in pairs
            ]
            for pairs in self.retriever.search_sections(queries, top, weights=self.weights)
        ]

    def _passage(self, entry_id: str, section: int) -> Passage:
        entry = self.knowledge.get(entry_id)
        passages = split_passages(entry, cut="sections", lead="none" if self.is_summary else self.lead)
        whole = next(passage for passage in passages if passage.section == section)
        if self.is_summary:
            return dataclasses.replace(whole, index=SUMMARY, text=lead_sentences(whole.text))
        return dataclasses.replace(whole, index=WHOLE)


def passages_inside(
    queries: Sequence[Query], hits: Sequence[Sequence[Hit]], passages_of: PassagesOf, top: int
) -> list[list[PassageHit]]:
    """Return the best passages of retrieved entries by BM25, at most `top` for each query, best first.

    A query without a text gets the first passages in the order of entries, with score 0.

    Args:
        queries: The queries.
        hits: Entries of each query, best first; the first hit of an entry counts.
        passages_of: Returns the passages of an entry, by its id.
        top: Maximum passages per query, at least 1.
    """
    found = []
    for query, row in zip(queries, hits, strict=True):
        by_id = {hit.entry_id: hit for hit in reversed(row)}
        candidates = [p for entry_id in dict.fromkeys(hit.entry_id for hit in row) for p in passages_of(entry_id)]
        text = query.inside or query.text
        scores = bm25_scores(text, candidates) if text.strip() else [0.0] * len(candidates)
        best = enumerate(best_first(candidates, scores, top), start=1)
        found.append([_inside(by_id[scored.passage.entry_id], scored, rank) for rank, scored in best])
    return found


def _inside(hit: Hit, scored: ScoredPassage, rank: int) -> PassageHit:
    parts = {"passage": scored.score, "entry": hit.score, **hit.parts}
    return PassageHit(scored.passage, scored.score, rank, hit.kb, parts)


def summary_of(entry: Entry) -> Passage | None:
    """Return an entry's summary as the passage `entry_id#-1.0`, or else its first passage; None without text."""
    if text := " ".join(entry.summary.split()):
        return Passage(entry.id, SUMMARY, 0, entry.title, "", "", text)
    return next(iter(split_passages(entry)), None)


def article_of(entry: Entry, *, lead: Lead = "none") -> Passage | None:
    """Return an entry's whole article as the passage `entry_id#-2.0`, one paragraph per line; None without text.

    Args:
        entry: The article.
        lead: Text before it.
    """
    passages = split_passages(entry, lead=lead)
    if not passages:
        return None
    lines = [f"{passage.heading.strip()}. {passage.text}".removeprefix(". ") for passage in passages]
    return Passage(entry.id, ARTICLE, 0, entry.title, passages[0].lead, "", "\n".join(lines))
