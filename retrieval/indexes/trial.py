"""Speed of encoding on this machine, by a trial of the first images, titles or passages; nothing is stored."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice

from reflectune.core.launching import ALONE, Processes
from reflectune.core.progress import duration
from reflectune.core.types import Entry
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.formats.passages import summary_text
from reflectune.models.rendering.turns import passage_text
from reflectune.retrieval.encoders.base import ImageTextEncoder
from reflectune.retrieval.encoders.text_encoder import TextEncoder
from reflectune.retrieval.indexes.images import ImagePlace, encode_images, has_title, places_of
from reflectune.retrieval.indexes.text_index import Cutting

_BATCHES = 3
"""Batches of images in a trial; the first one warms up and isn't counted."""
_PASSAGES = 256


@dataclass(frozen=True)
class Part:
    """Encoding work of one kind.

    Attributes:
        what: `images`, `titles`, `summaries` or `passages`.
        count: Number of them.
        rate: Number that one process encodes a second; 0 without any to try.
    """

    what: str
    count: int
    rate: float

    @property
    def seconds(self) -> float:
        """Seconds of one process; 0 if there is nothing to encode."""
        return self.count / self.rate if self.rate else 0.0


def describe_time(parts: Sequence[Part], processes: Processes = ALONE) -> str:
    """Return a line with the time of encoding by a trial's rates, with the launch's processes; "" without rates."""
    if not (tried := [part for part in parts if part.rate]):
        return ""
    seconds = sum(part.seconds for part in tried) / processes.count
    rates = ", ".join(f"{part.rate:,.1f} {part.what}/s" for part in tried)
    launch = f"{processes.count} processes" if processes.count > 1 else "one process"
    each = " each" if processes.count > 1 else ""
    return f"encoding takes {duration(seconds)} on {launch} of this kind: {rates}{each}, by a trial here"


def try_entries(
    kb: KnowledgeBase, encoder: ImageTextEncoder, *, batch_size: int, workers: int, summaries: bool = False
) -> list[Part]:
    """Measure how fast a knowledge base's images, titles and summaries are encoded by `build_index`.

    Unreadable images are left out. The first batch warms up, while the next images are read.

    Args:
        kb: The knowledge base.
        encoder: The encoder.
        batch_size: Entries, and images, to encode together.
        workers: Threads that read images.
        summaries: Encode summaries too.
    """
    images = sum(kb.image_counts())
    entries = [entry for entry in islice(kb, batch_size) if has_title(entry)]
    texts = {"titles": [entry.title for entry in entries]}
    if summaries:
        texts["summaries"] = [summary_text(entry) for entry in entries]
    parts = []
    if images:
        batches = list(islice(_batches(kb, batch_size), _BATCHES))
        parts.append(Part("images", images, _image_rate(kb, encoder, batches, workers)))
    for what, some in texts.items() if entries else ():
        parts.append(Part(what, len(kb), _rate(functools.partial(encoder.encode_entry_texts, some), len(some))))
    return parts


def try_passages(kb: KnowledgeBase, encoder: TextEncoder, cutting: Cutting, rows: int) -> Part:
    """Measure how fast a knowledge base's passages are encoded, by the first ones.

    Args:
        kb: The knowledge base.
        encoder: The encoder.
        cutting: Rule by which articles are split.
        rows: Number of passages.
    """
    passages = (passage_text(passage) for entry in kb for passage in cutting.passages(entry))
    texts = list(islice(passages, _PASSAGES))
    return Part("passages", rows, _rate(lambda: encoder.encode_passages(texts), len(texts)) if texts else 0.0)


def _batches(kb: KnowledgeBase, batch_size: int) -> Iterator[list[ImagePlace]]:
    """Yield the knowledge base's images in batches."""
    entries: Iterator[tuple[int, Entry]] = enumerate(kb)
    images = (place for pair in entries for places in places_of(kb, [pair], 1) for place in places)
    yield from iter(lambda: list(islice(images, batch_size)), [])


def _image_rate(
    kb: KnowledgeBase, encoder: ImageTextEncoder, batches: Sequence[Sequence[ImagePlace]], workers: int
) -> float:
    """Return readable images encoded per second, without the first of several batches; 0 if none is readable."""
    warm = len(batches) > 1
    with closing(encode_images(kb, encoder, batches if warm else [*batches, *batches], workers)) as encoded:
        next(encoded)
        start = time.perf_counter()
        good = sum(len(images.owners) for images in encoded)
    return good / (time.perf_counter() - start)


def _rate(encode: Callable[[], object], count: int) -> float:
    """Return texts encoded a second; a first pass warms up and isn't counted."""
    encode()
    start = time.perf_counter()
    encode()
    return count / (time.perf_counter() - start)
