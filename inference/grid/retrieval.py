"""A retriever for grid points, which searches for an image once."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from reflectune.retrieval.retriever import Retriever
from reflectune.retrieval.types import Hit


class CachingRetriever:
    """Finds what its retriever finds, and keeps it until `forget`; images are told apart by identity."""

    def __init__(self, retriever: Retriever) -> None:
        """Bind the retriever."""
        self._retriever = retriever
        self._found: dict[tuple[int, int], tuple[Image.Image, list[Hit]]] = {}

    def search(self, images: Sequence[Image.Image], top_n: int) -> list[list[Hit]]:
        """As the retriever's; only what is new is searched for."""
        new = {(id(image), top_n): image for image in images if (id(image), top_n) not in self._found}
        if new:
            found = self._retriever.search(list(new.values()), top_n)
            self._found.update({key: (new[key], hits) for key, hits in zip(new, found, strict=True)})
        return [self._found[id(image), top_n][1] for image in images]

    def forget(self) -> None:
        """Drop what was found."""
        self._found.clear()
