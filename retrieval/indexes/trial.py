"""Measure the speed of encoding on this machine with the first images, titles or passages; nothing is stored."""

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
"""Batches of images in a trial; the first one is a warm-up."""
_PASSAGES = 256


@dataclass(frozen=True)
class Part:
    """Encoding work of one kind.

    Attributes:
        kind: `images`, `titles`, `summaries` or `passages`.
        count: Number of items to encode.
        rate: Items that one process encodes per second; 0 if there were none to try.
    """

    kind: str
    count: int
    rate: float


def describe_time(parts: Sequence[Part], processes: Processes = ALONE) -> str:
    """Describe the estimated time of encoding with the launch's processes; return "" if nothing was tried."""
    if not (tried := [part for part in parts if part.rate]):
        return ""
    seconds = sum(part.count / part.rate for part in tried) / processes.count
    rates = ", ".join(f"{part.rate:,.1f} {part.kind}/s" for part in tried)
    launch = f"{processes.count} processes" if processes.count > 1 else "one process"
    each = " each" if processes.count > 1 else ""
    return f"encoding takes {duration(seconds)} on {launch} of this kind: {rates}{each}, by a trial here"


def try_entries(
    kb: KnowledgeBase, encoder: ImageTextEncoder, *, batch_size: int, workers: int, summaries: bool = False
) -> list[Part]:
    """Measure how fast `build_index` encodes a knowledge base's images, titles and summaries.

    Unreadable images are left out. The first batch is a warm-up.

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
    if entries:
        for kind, sample in texts.items():
            parts.append(Part(kind, len(kb), _rate(functools.partial(encoder.encode_entry_texts, sample), len(sample))))
    return parts


def try_passages(kb: KnowledgeBase, encoder: TextEncoder, cutting: Cutting, rows: int) -> Part:
    """Measure how fast a knowledge base's passages are encoded.

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
    """Return readable images encoded per second, after a warm-up batch; 0 if none is readable."""
    batches = batches if len(batches) > 1 else [*batches, *batches]
    with closing(encode_images(kb, encoder, batches, workers)) as encoded:
        next(encoded)
        start = time.perf_counter()
        readable = sum(len(images.owners) for images in encoded)
    return readable / (time.perf_counter() - start)


def _rate(encode: Callable[[], object], count: int) -> float:
    """Return texts encoded per second, after a warm-up pass."""
    encode()
    start = time.perf_counter()
    encode()
    return count / (time.perf_counter() - start)
