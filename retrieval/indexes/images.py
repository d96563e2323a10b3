"""The images of entries as vectors: read and made ready by several threads, ahead of the model that encodes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from PIL import Image

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
        vectors: Vectors of the readable ones, shape (readable, dimensions).
        owners: Position of each one's entry.
        bad: The others, with their problems.
    """

    vectors: Vectors
    owners: list[int]
    bad: list[tuple[ImagePlace, BadImage]]


@dataclass(frozen=True)
class _Opened:
    """Some images that are ready to be encoded: `inputs` are None if none is good; each is used `repeats` times."""

    inputs: Any
    owners: list[int]
    bad: list[tuple[ImagePlace, BadImage]]
    repeats: list[int]


def has_title(entry: Entry) -> bool:
    """Return True if an entry has a title; one without is not indexed."""
    return bool(entry.title.strip())


def places_of(kb: KnowledgeBase, entries: Sequence[tuple[int, Entry]], most: int) -> list[list[ImagePlace]]:
    """Return the images of entries that have titles, in order, in groups of at most `most`."""
    places = [
        ImagePlace(path, position, entry)
        for position, entry in entries
        if has_title(entry)
        for path in kb.image_paths(entry)
    ]
    return [places[start : start + most] for start in range(0, len(places), most)]


def encode_images(
    kb: KnowledgeBase, encoder: ImageTextEncoder, batches: Iterable[Sequence[ImagePlace]], workers: int
) -> Generator[Images, None, None]:
    """Encode batches of images in order; vectors don't depend on the number of workers.

    An image that is repeated directly, as those of one entry's sections are, is encoded once.

    Args:
        kb: The knowledge base of the images.
        encoder: The encoder. Work outside its model is done by the workers.
        batches: Images to encode together, without the bad ones.
        workers: Threads; 0: none.
    """
    roots = (kb.image_root, kb.folder.parent)

    def make(places: Sequence[ImagePlace]) -> tuple[Sequence[ImagePlace], Any]:
        try:
            image: Image.Image = load_image(places[0].path, root=roots)
            return places, encoder.prepare(image)
        except BadImage as error:
            return places, error

    def join(made: Sequence[tuple[Sequence[ImagePlace], Any]]) -> _Opened:
        bad = [(place, one) for places, one in made if isinstance(one, BadImage) for place in places]
        good = [(places, one) for places, one in made if not isinstance(one, BadImage)]
        ready = [one for _, one in good]
        inputs = encoder.join(ready) if ready else None
        owners = [place.position for places, _ in good for place in places]
        return _Opened(inputs, owners, bad, [len(places) for places, _ in good])

    grouped = ([list(same) for _, same in groupby(batch, key=_path)] for batch in batches)
    with closing(ahead(grouped, make, join, workers=workers)) as ready_batches:
        for opened in ready_batches:
            if opened.inputs is None:
                vectors = no_vectors(encoder.dimensions)
            else:
                vectors = np.repeat(encoder.encode_prepared(opened.inputs), opened.repeats, axis=0)
            yield Images(vectors, opened.owners, opened.bad)


def _path(place: ImagePlace) -> Path:
    return place.path


Item = TypeVar("Item")
Made = TypeVar("Made")
Joined = TypeVar("Joined")

_BATCHES = 3
"""Batches in work or ready, in addition to the one that was yielded last."""


def ahead(
    batches: Iterable[Sequence[Item]],
    make: Callable[[Item], Made],
    join: Callable[[Sequence[Made]], Joined],
    *,
    workers: int,
) -> Generator[Joined, None, None]:
    """Apply `make` to the items and `join` to the batches in threads, and yield the results in order.

    Pillow and numpy release Python's lock while they work on pixels, so that several images are decoded at a time.
    An error is raised in its batch's place. Closing the iterator drops batches that haven't begun.

    Args:
        batches: Batches of items.
        make: Function of an item.
        join: Function of a batch of `make`'s results.
        workers: Number of threads; 0: each batch is made when it is requested.
    """
    if not workers:
        for batch in batches:
            yield join([make(item) for item in batch])
        return
    left, running = iter(batches), deque[Future[Joined]]()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="ahead")

    def begin(batch: Sequence[Item]) -> Future[Joined]:
        made = [pool.submit(make, item) for item in batch]
        # when a thread gets to this all of `made` have begun, so that it can't wait for a task that waits for a thread
        return pool.submit(lambda: join([future.result() for future in made]))

    try:
        running.extend(begin(batch) for batch in islice(left, _BATCHES))
        while running:
            joined = running.popleft().result()
            running.extend(begin(batch) for batch in islice(left, 1))
            yield joined
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
