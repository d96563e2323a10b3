"""Encode the images of entries, which threads read and prepare ahead of the model."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from reflectune.core.images import BadImage, load_image
from reflectune.core.types import Entry
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.retrieval.encoders.base import ImageTextEncoder, Vectors, no_vectors


class ImagePlace(NamedTuple):
    """Path of an image, its entry's position in the knowledge base, and the entry."""

    path: Path
    position: int
    entry: Entry


@dataclass(frozen=True)
class Images:
    """Encoded images.

    Attributes:
        vectors: Vectors of readable images, shape (readable, dimensions).
        owners: Position of each readable image's entry.
        bad: Unreadable images with their problems.
    """

    vectors: Vectors
    owners: list[int]
    bad: list[tuple[ImagePlace, BadImage]]


@dataclass(frozen=True)
class _Opened:
    """Prepared images. `inputs` is None if none is readable; each readable one is repeated `repeats` times."""

    inputs: Any
    owners: list[int]
    bad: list[tuple[ImagePlace, BadImage]]
    repeats: list[int]


def has_title(entry: Entry) -> bool:
    """Return True if an entry has a title; one without is not indexed."""
    return bool(entry.title.strip())


def places_of(kb: KnowledgeBase, entries: Sequence[tuple[int, Entry]], batch_size: int) -> list[list[ImagePlace]]:
    """Return the images of entries with titles, in order, in batches of at most `batch_size`."""
    places = [
        ImagePlace(path, position, entry)
        for position, entry in entries
        if has_title(entry)
        for path in kb.image_paths(entry)
    ]
    return [places[start : start + batch_size] for start in range(0, len(places), batch_size)]


def encode_images(
    kb: KnowledgeBase, encoder: ImageTextEncoder, batches: Iterable[Sequence[ImagePlace]], workers: int
) -> Generator[Images, None, None]:
    """Encode batches of images in order; vectors don't depend on the number of workers.

    Consecutive repetitions of an image, as in the sections of one entry, are encoded once.

    Args:
        kb: The images' knowledge base.
        encoder: The encoder. Workers prepare its inputs.
        batches: Images to encode together.
        workers: Number of threads; 0: none.
    """
    roots = (kb.image_root, kb.folder.parent)

    def make(places: Sequence[ImagePlace]) -> tuple[Sequence[ImagePlace], Any]:
        try:
            return places, encoder.prepare(load_image(places[0].path, root=roots))
        except BadImage as error:
            return places, error

    def join(made: Sequence[tuple[Sequence[ImagePlace], Any]]) -> _Opened:
        bad = [(place, result) for places, result in made if isinstance(result, BadImage) for place in places]
        readable = [(places, result) for places, result in made if not isinstance(result, BadImage)]
        inputs = encoder.join([result for _, result in readable]) if readable else None
        owners = [place.position for places, _ in readable for place in places]
        return _Opened(inputs, owners, bad, [len(places) for places, _ in readable])

    grouped = ([list(places) for _, places in groupby(batch, key=attrgetter("path"))] for batch in batches)
    with closing(ahead(grouped, make, join, workers=workers)) as ready_batches:
        for opened in ready_batches:
            if opened.inputs is None:
                vectors = no_vectors(encoder.dimensions)
            else:
                vectors = np.repeat(encoder.encode_prepared(opened.inputs), opened.repeats, axis=0)
            yield Images(vectors, opened.owners, opened.bad)


Item = TypeVar("Item")
Made = TypeVar("Made")
Joined = TypeVar("Joined")

_BATCHES = 3
"""Batches in work or ready, besides the one yielded last."""


def ahead(
    batches: Iterable[Sequence[Item]],
    make: Callable[[Item], Made],
    join: Callable[[Sequence[Made]], Joined],
    *,
    workers: int,
) -> Generator[Joined, None, None]:
    """Apply `make` to items and `join` to batches in threads, and yield the results in order.

    Pillow and numpy release the GIL while they work on pixels, so that several images are decoded at a time. An error
    is raised when its batch is due. Closing the iterator drops batches that haven't begun.

    Args:
        batches: Batches of items.
        make: Called with each item.
        join: Called with the list of a batch's results of `make`.
        workers: Number of threads; 0: each batch is made when it is requested.
    """
    if not workers:
        for batch in batches:
            yield join([make(item) for item in batch])
        return
    remaining, running = iter(batches), deque[Future[Joined]]()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="ahead")

    def begin(batch: Sequence[Item]) -> Future[Joined]:
        made = [pool.submit(make, item) for item in batch]
        # no deadlock: tasks start in order, so all of `made` have started when a thread waits for them
        return pool.submit(lambda: join([future.result() for future in made]))

    try:
        running.extend(begin(batch) for batch in islice(remaining, _BATCHES))
        while running:
            joined = running.popleft().result()
            running.extend(begin(batch) for batch in islice(remaining, 1))
            yield joined
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
