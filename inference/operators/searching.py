"""Knowledge bases of iterative pipelines: passages searched by text, image-text pairs by both, entries."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from PIL import Image

from reflectune.core.config import setting
from reflectune.core.images import Images, first_image
from reflectune.core.types import Entry, Passage
from reflectune.formats.hits import Hit, PassageHit
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.formats.passages import Lead, split_passages
from reflectune.inference.operators.pair_images import PairImages
from reflectune.inference.operators.requests import Box, RerankReply, RerankRequest, SearchReply, SearchRequest
from reflectune.inference.operators.trajectory import Embed, TooLong, none_too_long
from reflectune.retrieval.config import SummarySettings
from reflectune.retrieval.rerankers.base import ImageReranker, Reranker
from reflectune.retrieval.retrievers.joint import JointHits, JointSearch, Searcher, Texts
from reflectune.retrieval.retrievers.queries import Fusion, Query, Weights, equation_7
from reflectune.retrieval.retrievers.ranked_retriever import RankedRetriever
from reflectune.retrieval.retrievers.two_stage import BestPassages, PassagesInside, SectionPairs, Summaries, article_of
from reflectune.retrieval.retrievers.web import Pages, SearchTool

if TYPE_CHECKING:  # slow to import
    from reflectune.retrieval.retrievers.entry_retriever import EntryRetriever, Retriever
    from reflectune.retrieval.retrievers.text_retriever import TextRetriever

Found = TypeVar("Found")
PAIRS: Final = "pairs"
"""Name of the base of image-text pairs."""
ENTRIES: Final = "entries"
"""Name of the base whose entries are documents."""


class FusionSettings(SummarySettings):
    """Fusion of a query's image and text."""

    fusion: Fusion = setting(
        "scores", "query of image and text: add up scores, or one vector: their sum, or the encoder's own (features)"
    )


class SearchSettings(FusionSettings):
    """Weights of searches with an image and a text."""

    text_weight: float = setting(
        0.5,
        "MI-RAG, PMSR, WikiSeeker, MM-R2: λ, weight of the text in a pair's score; the rest is the image's",
        ge=0,
        le=1,
    )


PairText = Literal["section", "summary", "passages"]
"""Text of an image-text pair: the entry's passage that fits the query best (MI-RAG), the entry's summary (PMSR), or all
passages of the first `top_n` entries, ranked by words."""


@dataclass(frozen=True)
class KnowledgeBases:
    """The search of a pipeline, and the encoder that compares its queries.

    Attributes:
        joint: Searches the bases `texts` and `pairs`, as far as they exist.
        embed: Unit vectors of texts.
        too_long: Finds queries that the encoder of a base doesn't read whole.
        embed_too_long: Finds texts that `embed` doesn't read whole.
        images: Images of pairs, if they are shown.
    """

    joint: JointSearch
    embed: Embed
    too_long: TooLong = none_too_long
    embed_too_long: TooLong = none_too_long
    images: PairImages | None = None

    def search(self, searches: Sequence[tuple[Images, SearchRequest]]) -> list[SearchReply]:
        """Run the searches of several questions, with all queries in one call to each base.

        A passage found by an image alone gets its entry's score: it was compared with no text.
        """
        queries = [query for image, request in searches for query in _queries(image, request)]
        tops = {
            base: [top for _, request in searches for top in request.tops.get(base, (0,) * len(request.queries))]
            for base in self.joint.names
        }
        query_hits = iter(self.joint.search(queries, tops))
        return [
            dataclasses.replace(
                self._with_images(_retrieved(request, list(itertools.islice(query_hits, len(request.queries))))),
                cut=sum(self.too_long(request.queries)),
            )
            for _, request in searches
        ]

    def _with_images(self, found: SearchReply) -> SearchReply:
        """Return a reply with the paths of the pairs' images."""
        if (images := self.images) is None:
            return found
        hits = tuple(
            {
                base: tuple(dataclasses.replace(hit, image=images.path_of(hit.passage.entry_id)) for hit in by_base)
                if base == PAIRS
                else by_base
                for base, by_base in of_query.items()
            }
            for of_query in found.hits
        )
        return dataclasses.replace(found, hits=hits)


def _retrieved(request: SearchRequest, query_hits: Sequence[JointHits]) -> SearchReply:
    return SearchReply(
        tuple(
            {base: tuple(_scored(hit, text) for hit in by_base[base]) for base in request.tops}
            for text, by_base in zip(request.queries, query_hits, strict=True)
        )
    )


def knowledge_bases(
    entries: EntryRetriever | RankedRetriever | None,
    texts: TextRetriever | None,
    knowledge: KnowledgeBase,
    pair_text: PairText,
    *,
    search: SearchSettings | None,
    top_n: int,
    lead: Lead,
    tool: SearchTool | None = None,
    images: PairImages | None = None,
) -> KnowledgeBases:
    """Build the bases of a config's indexes.

    Pairs are ranked by λ · sim(query, title) + (1 - λ) · sim(image, image), equation 7 of PMSR, and MI-RAG's mean at
    λ = 1/2. An image without a text is searched by itself at any λ. Titles serve as the pairs' texts, since every
    index of entries holds them; `summary_share: 1` uses the summaries, as PMSR does.

    Args:
        entries: Finds entries for an image and a text, or lists them for an image; None without.
        texts: Finds passages for a text; None without an index of passages.
        pair_text: Text of a pair.
        search: Weights of image and text; None to rank pairs by the image alone: equation 3 of mR²AG, as in
            pipelines that retrieve once.
        top_n: Number of entries whose passages `pair_text: passages` searches.
        lead: Text before each passage.
        tool: A search tool, added as the base `web`.
        images: Images of the pairs, if they are shown.
    """
    searchers: list[Searcher] = [] if texts is None else [Texts("texts", texts)]
    if entries is not None:
        weights: Weights | None = None
        finder: EntryRetriever | RankedRetriever | _OrByImage = entries
        if search is not None and not isinstance(entries, RankedRetriever):
            weights = equation_7(search.text_weight).with_summaries(search.summary_share).fused(search.fusion)
            entries.check(weights)
            finder = _OrByImage(entries) if search.text_weight == 1 else entries
        searchers.append(_pairs(finder, knowledge, pair_text, weights, top_n, lead))
    searchers += [Pages(tool)] if tool is not None else []
    indexed = None if isinstance(entries, RankedRetriever) else entries
    joint, encodes = JointSearch(searchers), texts or indexed
    if encodes is None:
        raise ValueError("there is neither an index of passages nor one of entries, and nothing that compares queries")
    read_by = [base for base in (texts, indexed if search is not None and search.text_weight else None) if base]

    def too_long(queries: Sequence[str]) -> list[bool]:
        return [any(cut) for cut in zip(*(base.too_long(queries) for base in read_by), strict=True)]

    return KnowledgeBases(joint, encodes.embed, too_long, encodes.too_long, images)


def _pairs(
    entries: EntryRetriever | RankedRetriever | _OrByImage,
    knowledge: KnowledgeBase,
    text: PairText,
    weights: Weights | None,
    top_n: int,
    lead: Lead,
) -> Searcher:
    """Build the base `pairs`: sections, or entries with a passage, their summary, or all of their passages."""
    if text != "passages" and not isinstance(entries, RankedRetriever) and entries.has_sections:
        return SectionPairs(PAIRS, entries, knowledge, text == "summary", weights, lead)
    if text == "summary":
        return Summaries(PAIRS, entries, knowledge, weights=weights)

    def passages_of(entry_id: str) -> list[Passage]:
        return split_passages(knowledge.get(entry_id), lead=lead)

    if text == "section":
        return BestPassages(PAIRS, entries, passages_of, weights=weights)
    return PassagesInside(PAIRS, entries, passages_of, entries=top_n, weights=weights)


@dataclass(frozen=True)
class _OrByImage:
    """Find entries as `entries` does; at λ = 1 find an image without a text by the image.

    At λ < 1 `entries` does so itself: a missing part of a query is left out, and the rest is scaled up.
    """

    entries: EntryRetriever

    @property
    def has_sections(self) -> bool:
        """True if `search_sections` finds sections."""
        return self.entries.has_sections

    def search(self, queries: Sequence[Query], top_n: int, *, weights: Weights | None = None) -> list[list[Hit]]:
        """Return at most `top_n` distinct entries for each query, best first."""
        return _by_kind(queries, lambda some, by: self.entries.search(some, top_n, weights=by), weights)

    def search_sections(
        self, queries: Sequence[Query], top_n: int, *, weights: Weights | None = None
    ) -> list[list[tuple[Hit, int]]]:
        """Return at most `top_n` sections for each query, best first."""
        return _by_kind(queries, lambda some, by: self.entries.search_sections(some, top_n, weights=by), weights)


def _by_kind(
    queries: Sequence[Query],
    search: Callable[[Sequence[Query], Weights | None], list[list[Found]]],
    weights: Weights | None,
) -> list[list[Found]]:
    """Search with the queries that have a text by `weights`, and with the others by the image."""
    texts, images = ([query for query in queries if query.has_text is has_text] for has_text in (True, False))
    by_text, by_image = iter(search(texts, weights)), iter(search(images, equation_7(0.0)))
    return [next(by_text if query.has_text else by_image) for query in queries]


@dataclass
class EntryDocuments:
    """A base of entries that are one document each, as in mRAG (arXiv 2505.24073).

    Attributes:
        entries: Finds entries.
        knowledge: The entries.
        weights: Weights of an entry's score, by the modalities of both sides; see `modality_weights`.
        reranker: Selects a passage of each entry by the question; None: the document is the whole article.
        lead: Text before each document.
        name: Name in results and errors.
    """

    entries: Retriever
    knowledge: KnowledgeBase
    weights: Weights
    reranker: Reranker | None = None
    lead: Lead = "first_sentence"
    name: str = ENTRIES

    def search(self, queries: Sequence[Query], top: int) -> list[list[PassageHit]]:
        """Return for each query the documents of the `top` best entries that have text, best entry first."""
        found = self.entries.search(queries, top, weights=self.weights)
        return [
            list(self._documents(query.inside or query.text, hits)) for query, hits in zip(queries, found, strict=True)
        ]

    def _documents(self, question: str, hits: Sequence[Hit]) -> Iterator[PassageHit]:
        for hit in hits:
            document = document_of(question, self.knowledge.get(hit.entry_id), self.reranker, self.lead)
            if document is not None:
                yield PassageHit(document, hit.score, hit.rank, hit.kb, hit.parts)


def document_of(question: str, entry: Entry, reranker: Reranker | None, lead: Lead) -> Passage | None:
    """Return an entry's document: the whole article, or its best passage by a reranker; None without text."""
    if reranker is None:
        return article_of(entry, lead=lead)
    (ranked,) = reranker.rank([question], [split_passages(entry, lead=lead)], top_k=1)
    return ranked[0].passage if ranked else None


def _scored(hit: PassageHit, text: str) -> PassageHit:
    """Return a hit with its entry's score if its passage was compared with no text."""
    return hit if text.strip() else dataclasses.replace(hit, score=hit.parts.get("entry", hit.score))


def _queries(image: Images, request: SearchRequest) -> list[Query]:
    """Build the queries of a search: its texts with the question's first image, or with parts of it."""
    first = first_image(image)
    boxes = request.boxes or (None,) * len(request.queries)
    return [
        Query(None if first is None else cropped(first, box), text, request.question)
        for text, box in zip(request.queries, boxes, strict=True)
    ]


def cropped(image: Image.Image, box: Box | None) -> Image.Image:
    """Return a part of an image, of at least one pixel; the whole image without a box."""
    if box is None:
        return image
    (left, top, right, bottom), (width, height) = box, image.size
    start = math.floor(left * width), math.floor(top * height)
    return image.crop(
        (*start, max(math.ceil(right * width), start[0] + 1), max(math.ceil(bottom * height), start[1] + 1))
    )


def reranked(asked: Sequence[tuple[Images, RerankRequest]], reranker: Reranker) -> list[RerankReply]:
    """Return a reranker's scores of passages, in the order of the requests.

    One that reads images scores by the first one and the text alone, without the similarity of the passage's entry.
    """
    requests = [request for _, request in asked]
    queries, passages = [request.query for request in requests], [request.passages for request in requests]
    images = [first for shown, _ in asked if (first := first_image(shown)) is not None]
    if isinstance(reranker, ImageReranker) and len(images) == len(asked):
        entry_scores = [dict.fromkeys((passage.entry_id for passage in of_query), 0.0) for of_query in passages]
        ranked = reranker.rank_with_images(queries, images, passages, entry_scores)
    else:
        ranked = reranker.rank(queries, passages)
    scores = [{hit.passage: hit.score for hit in hits} for hits in ranked]
    return [
        RerankReply(tuple(by_passage[passage] for passage in request.passages))
        for request, by_passage in zip(requests, scores, strict=True)
    ]
