"""Retrieve passages by a text: a question, a generated query, or a caption."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reflectune.core.devices import find_device
from reflectune.formats.hits import PassageHit
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.retrieval.encoders.base import Vectors, scaled
from reflectune.retrieval.encoders.checkpoints import find_checkpoint
from reflectune.retrieval.encoders.settings import TextSettings
from reflectune.retrieval.encoders.text_encoder import TextEncoder
from reflectune.retrieval.indexes.text_index import FIELD, Cutting, TextIndex, load_text_index, read_text_manifest
from reflectune.retrieval.stores.base import VectorStore
from reflectune.retrieval.stores.opening import exact_store


class TextRetriever:
    """Rank all passages of a knowledge base by the similarity of their text to a query's.

    Args:
        index: Index of the passages.
        encoder: The encoder that the index was built with.
        store: Searches the index's vectors; the index's own store by default.

    Attributes:
        knowledge: The knowledge base.
    """

    def __init__(self, index: TextIndex, encoder: TextEncoder, store: VectorStore | None = None) -> None:
        self._index, self._encoder, self._store = index, encoder, store or index.store
        self.knowledge = index.kb

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return unit vectors of texts, encoded as queries; float32 of shape (texts, dimensions).

        Their inner product is the cosine, whatever the index's similarity. Zero vectors stay zero.
        """
        vectors = self._encoder.encode_queries(texts)
        return vectors if self._encoder.settings.similarity == "cosine" else scaled(vectors)

    def too_long(self, texts: Sequence[str]) -> list[bool]:
        """Return True for each query that the encoder truncates."""
        return self._encoder.too_long(texts)

    def search(self, queries: Sequence[str], top: int) -> list[list[PassageHit]]:
        """Return for each query the `top` best passages, best first; all of them if there are fewer.

        Raises:
            ValueError: `top` is less than 1.
        """
        if not queries:
            return []
        found = self._store.search({FIELD: self._encoder.encode_queries(queries)}, top)
        name = str(self._index.manifest["kb"])
        return [
            [
                PassageHit(self._index.passage(int(row)), float(score), rank, name, {FIELD: float(score)})
                for rank, (row, score) in enumerate(zip(rows, scores, strict=True), start=1)
                if row >= 0
            ]
            for rows, scores in zip(found.rows, found.scores, strict=True)
        ]

    def exactly(self) -> TextRetriever:
        """Return a retriever that searches the same rows exactly; itself if its store is exact."""
        if exact_store(self._store) is self._store:
            return self
        return TextRetriever(self._index, self._encoder, exact_store(self._store))


def open_text_retriever(folder: str | Path, kb: KnowledgeBase, *, device: str) -> TextRetriever:
    """Open the retriever of an index of passages, with the encoder that its manifest names.

    Args:
        folder: Folder of the index.
        kb: The knowledge base, which must be the index's.
        device: Device of the encoder: `cpu`, `cuda`, `auto`, …

    Raises:
        UserError: The index belongs to a different knowledge base, or its encoder is missing or has changed.
    """
    manifest = read_text_manifest(Path(folder))
    settings = TextSettings(**manifest["settings"])
    encoder = TextEncoder(find_checkpoint(manifest["encoder"]), settings, find_device(device), "")
    return TextRetriever(load_text_index(folder, kb, encoder, Cutting(**manifest["cutting"])), encoder)
