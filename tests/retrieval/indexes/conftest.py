"""Counting encoders and comparisons for tests of indexes."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from reflectune.core.launching import Processes
from reflectune.retrieval.encoders.base import ImageTextEncoder
from reflectune.retrieval.indexes.entry_index import Index


class Counting(ImageTextEncoder):
    """An encoder that counts its batches of texts, and is cut off before the batch numbered `until`."""

    def __init__(self, encoder: Any, until: int = 1000) -> None:
        self._encoder, self._until, self.batches = encoder, until, 0
        self.name, self.revision, self.fingerprint = encoder.name, encoder.revision, encoder.fingerprint
        self.longest = encoder.longest
        self.dimensions, self.settings = encoder.dimensions, getattr(encoder, "settings", None)

    @property
    def cut(self) -> int:
        return self._encoder.cut

    def encode_images(self, images: Sequence[Any]) -> Any:
        return self._encoder.encode_images(images)

    def encode_texts(self, texts: Sequence[str]) -> Any:
        return self._count(self._encoder.encode_texts, texts)

    def too_long(self, texts: Sequence[str]) -> list[bool]:
        return self._encoder.too_long(texts)

    def encode_passages(self, texts: Sequence[str]) -> Any:
        return self._count(self._encoder.encode_passages, texts)

    def _count(self, encode: Callable[[Sequence[str]], Any], texts: Sequence[str]) -> Any:
        if self.batches == self._until:
            raise KeyboardInterrupt
        self.batches += 1
        return encode(texts)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def vectors(index: Index, field: str) -> np.ndarray:
    """All vectors of a field."""
    return index.store.get(np.arange(len(index.store)))[field]


def two_processes(work: Callable[[Processes], Any]) -> list[Any]:
    """Return what each of the two processes of a launch does, which run as threads."""
    meeting = threading.Barrier(2)
    launch = [Processes(number, 2, lambda: meeting.wait(30) and None) for number in range(2)]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(work, launch))
