"""Find images of a knowledge base that are near-duplicates of test images, and leave them out of an index.

PMSR does so (appendix): if the test images are in the knowledge base, retrieval by image is too easy. Images are
compared by perceptual hashes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import faiss
import numpy as np
import numpy.typing as npt
from PIL import Image

from reflectune.core.durable import write_atomically
from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint, sha256_of
from reflectune.core.images import BadImage, load_image
from reflectune.core.paths import Roots
from reflectune.core.resumable import Logs, Row, run_chunks
from reflectune.core.rows import from_row
from reflectune.core.types import Entry
from reflectune.formats.dataset import Dataset
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.retrieval.indexes.settings import MANIFEST, UNFINISHED

BITS: Final = 64
"""Bits of a hash, the signs of an 8 × 8 block of an image's cosine transform."""
HASHES: Final = "hashes"
LIST: Final = "near_duplicates.jsonl"

Hashes = npt.NDArray[np.uint8]
"""Shape (images, BITS / 8)."""

_ENTRIES: Final = 256
"""Entries per write; a crash loses at most the hashes of these."""


@dataclass(frozen=True)
class NearDuplicate:
    """An image of the knowledge base that is nearly a test image.

    Attributes:
        entry: Id of the entry.
        image: Path of the image in the entry.
        of: Path of the nearest test image in the data set's questions.
        distance: Number of bits by which the two hashes differ.
    """

    entry: str
    image: str
    of: str
    distance: int


@dataclass(frozen=True)
class Omission:
    """Images to leave out of an index.

    Attributes:
        images: Ids of entries and paths of their images.
        fingerprint: Hash of the list.
    """

    images: frozenset[tuple[str, str]] = frozenset()
    fingerprint: str = ""

    def without(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Yield the entries without these images."""
        for entry in entries:
            images = tuple(image for image in entry.images if (entry.id, image) not in self.images)
            yield entry if images == entry.images else dataclasses.replace(entry, images=images)


NOTHING: Final = Omission()


def perceptual_hash(image: Image.Image) -> str:
    """Return an image's perceptual hash (ImageHash's `phash`), 16 hexadecimal digits.

    It hardly changes when an image is resized or compressed. All images of a single colour have the same hash.
    """
    import imagehash  # an extra

    return str(imagehash.phash(image))


def find_near_duplicates(
    kb: KnowledgeBase, images: Sequence[str], image_roots: Roots, folder: Path, *, distance: int = 0
) -> tuple[list[NearDuplicate], dict[str, int]]:
    """Find the images of a knowledge base within `distance` of a test image, in the knowledge base's order.

    Hashes are stored in the folder, so that an interrupted run resumes, and the knowledge base is read only once for
    different test images and distances.

    Args:
        kb: The knowledge base.
        images: Paths of the test images, as in the data set's questions.
        image_roots: Folders that test images may lie in; relative paths start at the first.
        folder: Folder of the hashes.
        distance: Maximum number of different bits, of 64; 0: equal hashes, as in PMSR.

    Returns:
        The near-duplicates, and the numbers of the knowledge base's `images`, of its `unreadable` images, and of
        `test_images`.

    Raises:
        UserError: A test image is unreadable, or there is none.
    """
    if not images:
        raise UserError("no question has an image: there is nothing to compare the knowledge base with")
    with ThreadPoolExecutor() as pool:  # images are decoded outside the GIL
        test_hashes = list(pool.map(lambda path: perceptual_hash(load_image(path, root=image_roots)), images))
        rows = _hashed(kb, folder, pool)
    index = faiss.IndexBinaryFlat(BITS)
    index.add(_bytes(test_hashes))
    duplicates: list[NearDuplicate] = []
    counts = {"images": 0, "unreadable": 0, "test_images": len(images)}
    for row in rows:
        hashed = [(entry, image, bits) for entry, image, bits in row["images"] if bits is not None]
        counts["images"] += len(row["images"])
        counts["unreadable"] += len(row["images"]) - len(hashed)
        if not hashed:
            continue
        distances, nearest = index.search(_bytes([bits for _, _, bits in hashed]), 1)
        duplicates += [
            NearDuplicate(entry, image, images[int(test_image)], int(different_bits))
            for (entry, image, _), test_image, different_bits in zip(
                hashed, nearest[:, 0], distances[:, 0], strict=True
            )
            if different_bits <= distance
        ]
    return duplicates, counts


def list_near_duplicates(
    kb: KnowledgeBase, dataset: Dataset, splits: Iterable[str], folder: Path, distance: int
) -> None:
    """Write the near-duplicates of the images of a data set's splits to `LIST` in a folder, and print their number.

    Raises:
        UserError: See `find_near_duplicates`; or the folder has an index with a different list.
    """
    images = sorted({question.image for split in splits for question in dataset.stream(split)} - {""})
    duplicates, counts = find_near_duplicates(kb, images, dataset.image_roots, folder, distance=distance)
    path, lines = folder / LIST, as_lines(duplicates)
    has_index = any((folder / name).exists() for name in (MANIFEST, UNFINISHED))
    if has_index and path.is_file() and path.read_text(encoding="utf-8") != lines:
        raise UserError(
            f"{path} lists other near-duplicates than are found now: the knowledge base, the test images or "
            "`distance` changed, and the folder's index depends on the list; build the index in another folder"
        )
    write_atomically(path, lines)
    test_images, entries = len({found.of for found in duplicates}), len({found.entry for found in duplicates})
    print(
        f"{path}: {len(duplicates):,} of {counts['images']:,} images, of {entries:,} entries, are within "
        f"{distance} bits of {test_images:,} of {counts['test_images']:,} test images"
    )
    if counts["unreadable"]:
        print(f"  {counts['unreadable']:,} images of the knowledge base can't be read and were not compared")


def read_omission(path: str | Path, kb: KnowledgeBase) -> Omission:
    """Read the images to leave out of an index from a list of near-duplicates.

    Raises:
        UserError: The file is missing, a row is not a near-duplicate, or the knowledge base lacks its image.
    """
    images: set[tuple[str, str]] = set()
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} can't be read: {error}; `build_index` writes it if `test_images` is set") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = from_row(NearDuplicate, json.loads(line))
        except ValueError as error:
            raise UserError(f"{path}:{number} is not a near-duplicate ({error}); write the list again") from error
        if row.entry not in kb or row.image not in kb.get(row.entry).images:
            raise UserError(
                f"{path}:{number}: the knowledge base {kb.name} has no image {row.image} of entry {row.entry}; the "
                "list belongs to a different one, so write it again"
            )
        images.add((row.entry, row.image))
    return Omission(frozenset(images), sha256_of(Path(path))[:16])


def _hashed(kb: KnowledgeBase, folder: Path, pool: Executor) -> Iterator[Row]:
    """Hash the images that the log lacks, and yield rows of `[entry, image, hash or null]` of several entries."""
    key = fingerprint([kb.fingerprint, BITS, _ENTRIES])
    logs = Logs(folder, f"{HASHES}.{key}.jsonl", key)  # an extended knowledge base has another log
    hash_one = partial(_hash_of, root=(kb.image_root, kb.folder.parent))

    def make(numbers: Sequence[int]) -> Row:
        entries = [kb.get(kb.id_at(number)) for number in numbers]
        places = [(entry.id, image) for entry in entries for image in entry.images]
        hashes = pool.map(hash_one, (path for entry in entries for path in kb.image_paths(entry)))
        return {"images": [[*place, bits] for place, bits in zip(places, hashes, strict=True)]}

    rows = run_chunks(range(len(kb)), _ENTRIES, make, logs, desc="hashing")

    def read_again(row: Row) -> Row:
        """Hash images that were unreadable: they may have been replaced."""
        hashes = [(entry, image, bits or hash_one(kb.image_root / image)) for entry, image, bits in row["images"]]
        return {"images": hashes}

    return map(read_again, rows)


def _hash_of(path: Path, root: Roots) -> str | None:
    """Return the hash of an image; None if it is unreadable, which `build_index` reports."""
    try:
        return perceptual_hash(load_image(path, root=root))
    except BadImage:
        return None


def _bytes(hashes: Sequence[str]) -> Hashes:
    return np.frombuffer(bytes.fromhex("".join(hashes)), dtype=np.uint8).reshape(len(hashes), BITS // 8)


def as_lines(duplicates: Iterable[NearDuplicate]) -> str:
    """Return near-duplicates as JSON lines."""
    rows = map(dataclasses.asdict, duplicates)
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
