"""Retrieve entries by an image, a text or both: equation 3 of mR²AG (arXiv 2411.15041) and related scores."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.images import ImageKey, image_key
from reflectune.core.images_ahead import Prepare
from reflectune.core.paths import Roots
from reflectune.formats.hits import Hit
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.retrieval.config import RetrieverConfig
from reflectune.retrieval.encoders.base import ImageTextEncoder, TextSpace, Vectors
from reflectune.retrieval.indexes.entry_index import Index, check_captions, check_summaries, load_index, open_encoder
from reflectune.retrieval.retrievers.fusion import FUSED_FIELDS, check_fusion, fused_weights, weighted_sum
from reflectune.retrieval.retrievers.queries import PART_FIELDS, Fusion, Query, QueryKey, Weights, usual_weights
from reflectune.retrieval.retrievers.ranked_retriever import open_ranked
from reflectune.retrieval.stores.base import inner
from reflectune.retrieval.stores.opening import exact_store

_BATCH = 16
_ROWS_PER_ENTRY = 2
"""Rows that the first search requests per entry, since some entries have several images."""

_FIELDS = {**PART_FIELDS, **FUSED_FIELDS}
_LACKING: Final[Mapping[TextSpace, tuple[str, ...]]] = {
    "shared": (),
    "mapped": ("text_image",),
    "separate": ("title", "text_image", "summary"),
}
"""Parts of a score that an encoder can't compute, by the space of its texts."""
_TEXT_PARTS = ("text_image", "text_title", "text_summary")

_Item = TypeVar("_Item")
_Rows = npt.NDArray[np.int64]
_RowsOf = Callable[[Mapping[str, Vectors], int, int], list[_Rows]]
"""Maps a batch's query vectors by field, its size, and the number of hits to the rows of each query."""
_Parts = Mapping[str, npt.NDArray[np.float32]]
"""Query vectors by part of a score; see `PART_FIELDS` and `FUSED_FIELDS`."""


class Retriever(Protocol):
    """A retriever of entries for queries of images and texts."""

    def search(self, queries: Sequence[Query], top_n: int, *, weights: Weights | None = None) -> list[list[Hit]]:
        """Return for each query at most `top_n` distinct entries, best first."""
        ...


class SectionRetriever(Protocol):
    """A retriever of sections for queries of images and texts."""

    def search_sections(
        self, queries: Sequence[Query], top_n: int, *, weights: Weights | None = None
    ) -> list[list[tuple[Hit, int]]]:
        """Return for each query at most `top_n` sections, best first, each as its entry's hit and its index."""
        ...


class EntryRetriever:
    """Rank the entries of a knowledge base by equation 3, or by its parts with other weights.

    S_ret(I, k) = (1 - w) · sim(I, I_k) + w · sim(I, T_k), with the cosine between the question's image I and an entry's
    image I_k and title T_k; equation 3 has w = 1/2. A query with a text q also has sim(q, I_k) and sim(q, T_k); see
    `Weights`. An entry with several images is scored by the best one. For an entry without images sim(I, I_k) and
    sim(q, I_k) are the means over all images of the knowledge base, which neither favours nor penalizes it. If the
    encoder has a separate space for titles, sim(I, T_k) compares T_k with the encoder's map of I into that space.
    Scores lie in [-1, 1]. Entries with equal scores keep the order of the knowledge base.

    The vectors of batches of images are cached, since the next pipeline mostly searches with the same batches. The key
    is the batch, not the image, since the last digits of vectors depend on the batch.

    Args:
        index: Index of the knowledge base.
        encoder: The encoder that the index was built with.
        title_weight: w, from 0 (images only) to 1 (titles only). The index is the same for all values.
        summary_share: Share of w for the entry's summary instead of its title; above 0 the index needs summaries.

    Attributes:
        max_cached: Maximum batches of images whose vectors are cached. The default, 2^14 batches of 16 images, takes
            800 MB at 768 dimensions.

    Example:
        >>> retriever = EntryRetriever(load_index(folder, knowledge, encoder), encoder)
        >>> retriever.search([Query(photo)], top_n=5)[0][0].entry_id
        'Q42'
        >>> retriever.search([Query(photo, "Which bird is this?")], top_n=5, weights=equation_7(0.3))
    """

    def __init__(
        self, index: Index, encoder: ImageTextEncoder, *, title_weight: float = 0.5, summary_share: float = 0.0
    ) -> None:
        self._index, self._encoder = index, encoder
        self._title_weight, self._summary_share = title_weight, summary_share
        self._cache: dict[tuple[ImageKey, ...], Vectors] = {}
        self._cached_images: set[ImageKey] = set()  # images in `_cache`
        self.max_cached = 2**14

    def prepare(self, image: Image.Image) -> None:
        """Prepare an image for the encoder, if its vector isn't cached. Any thread may call this."""
        if image_key(image) not in self._cached_images:
            self._encoder.prepare_ahead(image)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return unit vectors of texts, encoded as queries; float32 of shape (texts, dimensions)."""
        return self._encoder.encode_texts(texts)

    def too_long(self, texts: Sequence[str]) -> list[bool]:
        """Return True for each text that the encoder truncates."""
        return self._encoder.too_long(texts)

    def search(self, queries: Sequence[Query], top_n: int, *, weights: Weights | None = None) -> list[list[Hit]]:
        """Return the `top_n` best entries for each query, best first; all entries if there are fewer.

        Args:
            queries: Images, texts, or both, in any mixture.
            top_n: Number of entries per query, at least 1.
            weights: Weights of the parts of a score; parts that a query lacks are ignored (`Weights.of`). None:
                `usual_weights` with the retriever's `title_weight` and `summary_share`.

        Raises:
            ValueError: `top_n` is less than 1, or a query has none of the weighted parts.
            UserError: The weights compare or fuse texts and images, and the encoder has no common space; or they
                include summaries, and the index has none; or the encoder can't read an image and a text together.
        """
        return [hits for hits, _ in self._search(queries, top_n, weights, self._best_rows)]

    @property
    def has_sections(self) -> bool:
        """True if the index has a row for each section, which `search_sections` finds."""
        return self._index.sections is not None

    def search_sections(
        self, queries: Sequence[Query], top_n: int, *, weights: Weights | None = None
    ) -> list[list[tuple[Hit, int]]]:
        """Return the `top_n` best sections for each query, best first; several may be of one entry.

        Takes the arguments of `search`. A section is a hit of its entry with the section's index.

        Raises:
            ValueError: The index is of entries.
        """
        if (sections := self._index.sections) is None:
            raise ValueError("the index has entries, not sections; build one with `rows: sections`")
        found = self._search(queries, top_n, weights, self._nearest_rows)
        return [list(zip(hits, sections[rows].tolist(), strict=True)) for hits, rows in found]

    def _search(
        self, queries: Sequence[Query], top_n: int, weights: Weights | None, rows_of: _RowsOf
    ) -> list[tuple[list[Hit], _Rows]]:
        """Return the hits and the rows of each query; `rows_of` selects the rows."""
        if top_n < 1:
            raise ValueError(f"top_n must be at least 1, found {top_n}")
        keys = [query.key for query in queries]
        distinct = dict(zip(keys, queries, strict=True))
        weights_of: dict[QueryKey, Mapping[str, float]] = {}
        for key, query in distinct.items():
            query_weights = weights or usual_weights(query, self._title_weight, self._summary_share)
            self.check(query_weights)
            weights_of[key] = self._parts(query_weights, query)
        rule: Fusion = "scores" if weights is None else weights.fusion
        fused = {} if rule == "scores" else {key: query for key, query in distinct.items() if query.is_both}
        read_together = fused if rule == "features" else {}
        vectors = self._encode({key: query for key, query in distinct.items() if key not in read_together})
        for key, vector in self._fuse(fused, rule, weights_of, vectors).items():
            weights_of[key] = fused_weights(weights_of[key])
            vectors[key] = dict.fromkeys(weights_of[key], vector)
        hits: dict[QueryKey, tuple[list[Hit], _Rows]] = {}
        for batch in _batches_of_equal_weights(weights_of):
            batch_weights = weights_of[batch[0]]
            rows = rows_of(_weighted(vectors, batch, batch_weights), len(batch), top_n)
            for key, own_rows in zip(batch, rows, strict=True):
                hits[key] = self._hits(distinct[key].kind, vectors[key], batch_weights, own_rows), own_rows
        return [hits[key] for key in keys]

    def check(self, weights: Weights, *, captions: bool = False) -> None:
        """Refuse weights that the index or its encoder doesn't support.

        Args:
            weights: Weights of the parts of a score.
            captions: True if the index's summaries must be captions of images.

        Raises:
            UserError: See `search`; or the index has no captions.
        """
        if captions:
            check_captions(self._index)
        if weights.summary or weights.text_summary:
            check_summaries(self._index)
        if self._encoder.text_space == "mapped" and weights.text_image:
            raise UserError(
                f"the encoder {self._encoder.name} has a separate space for texts, which can't be compared with the "
                "index's images; set the weight of `text_image` to 0"
            )
        if self._encoder.text_space == "separate" and (weights.title or weights.summary or weights.text_image):
            raise UserError(
                f"the encoder {self._encoder.name} compares only images with images and texts with texts, and the "
                "weights compare images with texts; set `title_weight: 0`, or search with a text too"
            )
        check_fusion(self._encoder, weights.fusion)

    def exactly(self) -> EntryRetriever:
        """Return a retriever that searches the same rows exactly; itself if its store is exact.

        The two share the cache of encoded images.
        """
        if exact_store(self._index.store) is self._index.store:
            return self
        index = dataclasses.replace(self._index, store=exact_store(self._index.store))
        return self._sharing_cache(index, title_weight=self._title_weight, summary_share=self._summary_share)

    def weighted(self, *, title_weight: float, summary_share: float = 0.0) -> EntryRetriever:
        """Return the same retriever with other default weights. The two share the cache of encoded images.

        Raises:
            UserError: `summary_share` is above 0, and the index has no summaries.
        """
        if summary_share:
            check_summaries(self._index)
        return self._sharing_cache(self._index, title_weight=title_weight, summary_share=summary_share)

    def _sharing_cache(self, index: Index, **weights: float) -> EntryRetriever:
        """Return a retriever with the same encoder and cache."""
        retriever = EntryRetriever(index, self._encoder, **weights)
        retriever._cache, retriever._cached_images = self._cache, self._cached_images
        retriever.max_cached = self.max_cached
        return retriever

    def _parts(self, weights: Weights, query: Query) -> Mapping[str, float]:
        """Return the weights of a query's parts that the encoder can compute."""
        lacking = _LACKING[self._encoder.text_space]
        return {part: weight for part, weight in weights.of(query).items() if part not in lacking}

    def _fuse(
        self,
        queries: Mapping[QueryKey, Query],
        rule: Fusion,
        weights_of: Mapping[QueryKey, Mapping[str, float]],
        vectors: Mapping[QueryKey, _Parts],
    ) -> dict[QueryKey, Vectors]:
        """Fuse the image and the text of each query into one vector, by the rule `vectors` or `features`."""
        if rule == "vectors":
            return {
                key: weighted_sum(weights_of[key], vectors[key]["image"], vectors[key]["text_image"]) for key in queries
            }
        pairs = [(query.image, query.text) for query in queries.values() if query.image is not None]
        encoded = [self._encoder.encode_pairs(*zip(*batch, strict=True)) for batch in _batches(pairs)]
        return dict(zip(queries, itertools.chain.from_iterable(encoded), strict=True))

    def _encode(self, queries: Mapping[QueryKey, Query]) -> dict[QueryKey, _Parts]:
        """Return each query's vectors by part of a score."""
        images = {key.image: query.image for key, query in queries.items() if query.image is not None}
        by_image: dict[ImageKey, _Parts] = {}
        for batch in _batches(list(images)):
            encoded = self._encode_images({key: images[key] for key in batch})
            titles = self._encoder.to_title_space(encoded)
            for key, vector, title in zip(batch, encoded, titles, strict=True):
                by_image[key] = {"image": vector, "title": title, "summary": title}
        by_text: dict[str, _Parts] = {}
        for texts in _batches(list(dict.fromkeys(query.text for query in queries.values() if query.has_text))):
            for text, vector in zip(texts, self._encoder.encode_texts(texts), strict=True):
                by_text[text] = dict.fromkeys(_TEXT_PARTS, vector)
        return {key: {**by_image.get(key.image, {}), **by_text.get(key.text, {})} for key in queries}

    def _encode_images(self, images: Mapping[ImageKey, Image.Image]) -> Vectors:
        """Return the vectors of a batch of images, from the cache if possible."""
        key = tuple(images)
        if (cached := self._cache.get(key)) is not None:
            return cached
        vectors = self._encoder.encode_images(list(images.values()))
        self._cache[key] = vectors
        self._cached_images.update(images)
        if len(self._cache) > self.max_cached:
            oldest = next(iter(self._cache))
            del self._cache[oldest]
            self._cached_images.difference_update(oldest)
        return vectors

    def _best_rows(self, query: Mapping[str, Vectors], count: int, entries: int) -> list[_Rows]:
        """Return the best row of each of a query's best entries, best first; an approximate store may find fewer.

        Only queries that lack entries are searched again with more rows. An approximate store's results depend on the
        number of rows requested, so that searching all again would let one query change another's results.
        """
        entries = min(entries, len(self._index.entry_ids))
        rows, top = len(self._index.store), _ROWS_PER_ENTRY * entries
        best_rows: dict[int, _Rows] = {}
        pending = list(range(count))
        while pending:
            vectors_of_pending = {field: vectors[pending] for field, vectors in query.items()}
            found = self._index.store.search(vectors_of_pending, min(top, rows)).rows
            for index, padded in zip(pending, found, strict=True):
                nearest = padded[padded >= 0]
                first = nearest[np.sort(np.unique(self._index.owner[nearest], return_index=True)[1])][:entries]
                is_exhausted = top >= rows or len(nearest) < len(padded)
                if is_exhausted or len(first) == entries:
                    best_rows[index] = first
            pending = [index for index in pending if index not in best_rows]
            top *= 4
        return [best_rows[index] for index in range(count)]

    def _nearest_rows(self, query: Mapping[str, Vectors], count: int, top: int) -> list[_Rows]:
        """Return each query's best rows, best first; an approximate store may find fewer."""
        found = self._index.store.search(dict(query), min(top, len(self._index.store))).rows
        return [rows[rows >= 0] for rows in found]

    def _hits(self, kind: str, query: _Parts, weights: Mapping[str, float], rows: _Rows) -> list[Hit]:
        """Return the hits of one query from its rows, with unweighted parts.

        With titles only, all rows of an entry score equally, and the image's part is that of its first image.
        """
        vectors = self._index.store.get(rows)
        parts = {part: inner(vectors[_FIELDS[part]], query[part]) for part in weights}
        scores = sum((weights[part] * parts[part] for part in parts), start=np.zeros(len(rows)))
        return [
            Hit(
                entry_id=self._index.entry_ids[int(self._index.owner[row])],
                score=float(scores[index]),
                rank=index + 1,
                query=kind,
                kb=str(self._index.manifest["kb"]),
                parts={name: float(part[index]) for name, part in parts.items()},
            )
            for index, row in enumerate(rows)
        ]


def _batches_of_equal_weights(weights_of: Mapping[QueryKey, Mapping[str, float]]) -> list[list[QueryKey]]:
    """Return batches of queries with the same weights, which are searched together."""
    groups: dict[tuple[tuple[str, float], ...], list[QueryKey]] = {}
    for key, weights in weights_of.items():
        groups.setdefault(tuple(weights.items()), []).append(key)
    return [batch for group in groups.values() for batch in _batches(group)]


def _weighted(
    vectors: Mapping[QueryKey, _Parts], batch: Sequence[QueryKey], weights: Mapping[str, float]
) -> dict[str, Vectors]:
    """Return a batch of query vectors for a store: the weighted sum of each field's parts, shape (n, dimensions)."""
    query: dict[str, Vectors] = {}
    for part, weight in weights.items():
        if weight:
            term = np.stack([vectors[key][part] for key in batch]) * np.float32(weight)
            field = _FIELDS[part]
            query[field] = query[field] + term if field in query else term
    return query


def _batches(items: list[_Item]) -> list[list[_Item]]:
    return [items[start : start + _BATCH] for start in range(0, len(items), _BATCH)]


def open_retriever(config: RetrieverConfig, knowledge: KnowledgeBase, *, image_roots: Roots, device: str) -> Retriever:
    """Open the retriever of a config's ranked entities or index.

    Args:
        config: The settings.
        knowledge: The knowledge base, which the index must belong to.
        image_roots: Folders that the data set's image paths may lie in.
        device: Device of the encoder: `cpu`, `cuda`, `auto`, …

    Raises:
        UserError: The index belongs to a different knowledge base, or its encoder is missing or has changed; it has no
            summaries and `summary_share` is above 0; or the ranked entities can't be used.
    """
    if config.ranked_entities:
        return open_ranked(config.ranked_entities, knowledge, image_roots, config.ranked_scores)
    encoder = open_encoder(config.index, device=device)
    retriever = EntryRetriever(load_index(config.index, knowledge, encoder), encoder)
    return retriever.weighted(title_weight=config.title_weight, summary_share=config.summary_share)


def search_preparers(retriever: Retriever | None) -> list[Prepare]:
    """Return the functions that prepare an image for a retriever's encoder; none if it has no encoder."""
    return [retriever.prepare] if isinstance(retriever, EntryRetriever) else []
