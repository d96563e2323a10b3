"""Retrieval by equation 3 of mR²AG (arXiv 2411.15041): an image against every entry's images and title."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from reflectune.retrieval.encoders.encoder import ImageTextEncoder, TwoSpaceEncoder, Vectors, load_encoder
from reflectune.retrieval.index import Index, load_index
from reflectune.retrieval.knowledge_base import KnowledgeBase
from reflectune.retrieval.types import Hit

Scores = npt.NDArray[np.float32]

_BATCH = 16
_KEPT_BATCHES = 2**14
"""Encoded batches of pictures that a retriever keeps: 800 MB of 768 dimensions, if ever so many are searched for."""


class Retriever(Protocol):
    """Whatever finds entries for images."""

    def search(self, images: Sequence[Image.Image], top_n: int) -> list[list[Hit]]:
        """For each image at most `top_n` entries, each once, best first."""
        ...


class EntryRetriever:
    """Ranks all entries of a knowledge base by equation 3, exhaustively.

    S_ret(I, k) = (sim(I, I_k) + sim(I, T_k)) / 2, with the cosine between the question's image I and an entry's image
    I_k and title T_k. An entry with several images takes the one that is nearest to I. An entry without any has
    sim(I, I_k) = 0. Where the encoder has a space of its own for titles, sim(I, T_k) is between T_k and what the
    encoder maps I to in that space. Scores lie in [-1, 1]; nothing is clamped here. Entries with the same score keep
    the order of the knowledge base.

    The vectors of a batch of pictures are kept: what the next pipeline searches for is mostly the same batch. They are
    kept by batch and not by picture, since an encoder's last digits depend on what is encoded together.

    Args:
        index: Of the knowledge base to search.
        encoder: The one that the index was built with.

    Example:
        >>> retriever = EntryRetriever(load_index(folder, knowledge, encoder), encoder)
        >>> retriever.search([photo], top_n=5)[0][0].entry_id
        'Q42'
    """

    def __init__(self, index: Index, encoder: ImageTextEncoder) -> None:
        self._index, self._encoder = index, encoder
        self._kept: dict[tuple[bytes, ...], Vectors] = {}
        self._pictured, self._first_rows = np.unique(index.owner, return_index=True)

    def search(self, images: Sequence[Image.Image], top_n: int) -> list[list[Hit]]:
        """For each image the `top_n` best entries, each once, best first; all entries if there are fewer.

        Raises:
            ValueError: `top_n` is less than 1.
        """
        if top_n < 1:
            raise ValueError(f"top_n must be at least 1, found {top_n}")
        contents = [_content(image) for image in images]
        different = dict(zip(contents, images, strict=True))  # several questions are asked about one picture
        pictures = list(different.items())
        batches = [dict(pictures[start : start + _BATCH]) for start in range(0, len(pictures), _BATCH)]
        found = [hits for batch in batches for hits in self._search(self._encode(batch), top_n)]
        by_content = dict(zip(different, found, strict=True))
        return [by_content[content] for content in contents]

    def _encode(self, pictures: Mapping[bytes, Image.Image]) -> Vectors:
        """Vectors of a batch of pictures, by what tells them apart."""
        key = tuple(pictures)
        if key not in self._kept:
            self._kept[key] = self._encoder.encode_images(list(pictures.values()))
            if len(self._kept) > _KEPT_BATCHES:
                del self._kept[next(iter(self._kept))]
        return self._kept[key]

    def _search(self, queries: Vectors, top_n: int) -> list[list[Hit]]:
        as_titles = self._encoder.to_title_space(queries) if isinstance(self._encoder, TwoSpaceEncoder) else queries
        image, title = self._image_similarities(queries), as_titles @ self._index.title.T
        return [self._hits(*row, top_n) for row in zip(image, title, strict=True)]

    def _image_similarities(self, queries: Vectors) -> Scores:
        """sim(I, I_k) of the best image of each entry, shape (queries, entries)."""
        similarities = np.zeros((len(queries), len(self._index.entry_ids)), dtype=np.float32)
        if len(self._pictured):
            rows = queries @ self._index.image.T
            similarities[:, self._pictured] = np.maximum.reduceat(rows, self._first_rows, axis=1)
        return similarities

    def _hits(self, image: Scores, title: Scores, top_n: int) -> list[Hit]:
        """The best entries of one query from its similarities, each of shape (entries,)."""
        scores = (image.astype(np.float64) + title) / 2
        return [
            Hit(
                entry_id=self._index.entry_ids[place],
                score=float(scores[place]),
                rank=rank,
                kb=str(self._index.manifest["kb"]),
                parts={"image": float(image[place]), "title": float(title[place])},
            )
            for rank, place in enumerate(best(scores, top_n), start=1)
        ]


def _content(image: Image.Image) -> bytes:
    """What tells pictures apart: a hash of their pixels."""
    return hashlib.sha256(f"{image.mode} {image.size} ".encode() + image.tobytes()).digest()


def open_retriever(index: str | Path, encoder: str, knowledge: KnowledgeBase, *, device: str) -> EntryRetriever:
    """The retriever over an index, which must have been built from this knowledge base and encoder.

    Args:
        index: The index's folder.
        encoder: Name of the encoder; see `load_encoder`.
        knowledge: The knowledge base.
        device: Where the encoder runs: `cpu`, `cuda`, `auto`, …

    Raises:
        UserError: The index is of another knowledge base or encoder.
    """
    loaded = load_encoder(encoder, device=device)
    return EntryRetriever(load_index(index, knowledge, loaded), loaded)


def best(scores: npt.NDArray[np.float64], top_n: int) -> npt.NDArray[np.int64]:
    """Positions of the `top_n` highest scores, highest first, equal ones in order of position."""
    if top_n >= len(scores):
        return np.argsort(-scores, kind="stable")
    threshold = np.partition(scores, -top_n)[-top_n]
    candidates = np.flatnonzero(scores >= threshold)
    return candidates[np.argsort(-scores[candidates], kind="stable")][:top_n]
