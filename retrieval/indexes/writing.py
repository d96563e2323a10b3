"""Write an index: encoded entries become rows of a store, with files that map rows to entries."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from reflectune.core.durable import read_record, write_atomically, write_json
from reflectune.core.errors import UserError
from reflectune.core.progress import progress_bar
from reflectune.core.rejected import REJECTED
from reflectune.retrieval.encoders.base import ImageTextEncoder
from reflectune.retrieval.indexes.checksums import CHECKSUMS, checksums
from reflectune.retrieval.indexes.entry_index import (
    ENTRIES,
    OWNERS,
    WITHOUT_IMAGE,
    check_origin,
    collection_of,
    files_of,
)
from reflectune.retrieval.indexes.sections import UNIT
from reflectune.retrieval.indexes.settings import MANIFEST
from reflectune.retrieval.stores.base import Vectors
from reflectune.retrieval.stores.exact import SUFFIXES, ExactStore
from reflectune.retrieval.stores.ivf import CODES, MADE_OF_ROWS, FaissStore
from reflectune.retrieval.stores.opening import Choice, open_store

Positions = npt.NDArray[np.int64]

_QUERIES = 128
"""Number of queries that calibrate an approximate store."""


class Block(NamedTuple):
    """Encoded entries, in the knowledge base's order.

    Attributes:
        image: Vectors of images, grouped by entry, shape (images, dimensions).
        texts: Vectors by text field, `title` and perhaps `summary`, each of shape (entries, dimensions).
        owner: Position of each image's entry in the knowledge base, shape (images,).
        titled: Position of each title's entry, shape (entries,).
    """

    image: npt.NDArray[np.floating]
    texts: Mapping[str, npt.NDArray[np.floating]]
    owner: Positions
    titled: Positions


def write_index(
    folder: Path,
    record: Mapping[str, Any],
    fields: Mapping[str, int],
    choice: Choice,
    blocks: Callable[[], Iterator[Block]],
    *,
    encoder: ImageTextEncoder,
    progress: bool = False,
) -> None:
    """Write an index, the manifest last. Complete files of a killed process are reused.

    Args:
        folder: Folder of the index.
        record: Origin of the vectors and number of rows left out, for the manifest.
        fields: Dimensions of each field.
        choice: The store.
        blocks: Returns an iterator over the encoded entries in order; called twice.
        encoder: Encoder, which maps images to the space of titles for calibration queries.
        progress: Show a progress bar while an approximate store is filled.

    Raises:
        UserError: No entry has a title.
    """
    neutral, images, rows = _neutral_image(blocks(), fields["image"])
    if not rows:
        raise UserError(f"no entry has a title: there is nothing to index; see {folder / REJECTED}")
    vectors = open_rows(folder, fields, choice, rows)
    owners: list[Positions] = []
    entries: list[Positions] = []
    with_images: list[npt.NDArray[np.bool_]] = []
    first, is_complete = 0, len(vectors) == rows
    for block in blocks():
        image, owner, has_image = _rows(block, neutral)
        with_images.append(has_image)
        if not is_complete:
            texts = {name: np.asarray(array, dtype=np.float32)[owner] for name, array in block.texts.items()}
            vectors.add({"image": image, **texts})
        owners.append(owner + first)
        entries.append(block.titled)
        first += len(block.titled)
    write_array(folder / OWNERS, np.concatenate(owners).astype(np.int32))
    write_array(folder / ENTRIES, np.concatenate(entries).astype(np.int32))
    write_array(folder / WITHOUT_IMAGE, np.flatnonzero(~np.concatenate(with_images)).astype(np.int32))
    manifest = {
        **record,
        "fields": dict(fields),
        "precision": choice.precision,
        "store": choice.kind,
        **({"address": choice.address_from(folder)} if choice.address else {}),
        "rows": rows,
        "entries": first,
        "images": images,
    }
    names = files_of(choice, tuple(fields), UNIT in record)

    def queries(store: FaissStore) -> dict[str, Vectors]:
        return _queries(store, np.concatenate(with_images), encoder)

    finish_index(folder, manifest, fields, choice, names, queries, progress=progress)


def open_rows(folder: Path, fields: Mapping[str, int], choice: Choice, rows: int) -> ExactStore:
    """Open the rows of an index. Delete them if a killed build has not written all."""
    vectors = ExactStore(folder, fields, precision=choice.precision, repair=True)
    if len(vectors) != rows:
        clear_rows(folder)
        vectors = ExactStore(folder, fields, precision=choice.precision)
    return vectors


def finish_index(
    folder: Path,
    manifest: dict[str, Any],
    fields: Mapping[str, int],
    choice: Choice,
    names: Iterable[str],
    queries: Callable[[FaissStore], Mapping[str, Vectors]],
    *,
    progress: bool,
) -> None:
    """Fill the store of an index, calibrate an approximate one, and write the manifest."""
    manifest[CHECKSUMS] = checksums(folder / name for name in names if name != CODES)
    is_quiet = not progress or choice.kind == "exact"
    with progress_bar(total=manifest["rows"], unit=" rows", desc=choice.kind, disable=is_quiet) as bar:
        store = open_store(choice, folder, fields, collection=collection_of(manifest), progress=bar.update)
        store.finish()
    if isinstance(store, FaissStore):
        manifest["search"] = store.calibrate(queries(store))
        manifest[CHECKSUMS] |= checksums([folder / CODES])
    write_json(folder / MANIFEST, manifest)


def claim_shards(shards: Path, origin: dict[str, Any], settings: Mapping[str, Any], *, reopened: bool = False) -> None:
    """Write the settings of new shards, or refuse existing shards with other settings.

    Args:
        shards: Folder of the shards, in the index's folder.
        origin: Record of everything that vectors depend on.
        settings: Further settings of the shards.
        reopened: Keep the index's rows, from which the shards are made; else delete rows of a killed build.

    Raises:
        UserError: The folder's shards were built with other settings.
    """
    path = shards / "settings.json"
    if not path.is_file():
        if not reopened:
            clear_rows(shards.parent)
        write_json(path, {**origin, **settings})
        return
    recorded = read_record(path, "the unfinished index's settings")
    check_origin(shards.parent, recorded, origin)
    for key, value in settings.items():
        if recorded.get(key) != value:
            raise UserError(
                f"the unfinished index {shards.parent} was begun with {key} {recorded.get(key)}, now it is {value}; "
                f"go on with {recorded.get(key)}, or delete the folder to start again"
            )


def clear_rows(folder: Path) -> None:
    """Delete the vectors of an index and the files made of them, which a new build would take for its own."""
    made_of_rows = (folder / name for name in MADE_OF_ROWS)
    for path in (*(path for suffix in SUFFIXES.values() for path in folder.glob(f"*.{suffix}")), *made_of_rows):
        path.unlink(missing_ok=True)


def write_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write an array as .npy atomically."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    write_atomically(path, buffer.getvalue())


def _neutral_image(blocks: Iterator[Block], dimensions: int) -> tuple[Vectors, int, int]:
    """Return the mean of all images' vectors, shape (dimensions,), the number of images, and the number of rows."""
    total, images, rows = np.zeros(dimensions), 0, 0
    for block in blocks:
        total += np.asarray(block.image, dtype=np.float64).sum(0)
        images += len(block.image)
        rows += len(block.image) + len(block.titled) - len(np.unique(block.owner))
    return (total / max(images, 1)).astype(np.float32), images, rows


def _rows(block: Block, neutral: Vectors) -> tuple[Vectors, Positions, npt.NDArray[np.bool_]]:
    """Return each row's image vector, (rows, dimensions), index of its title, and whether it has an image."""
    first, last = (np.searchsorted(block.owner, block.titled, side) for side in ("left", "right"))
    counts = last - first
    owner = np.repeat(np.arange(len(block.titled)), np.maximum(counts, 1))
    has_image = np.repeat(counts > 0, np.maximum(counts, 1))
    image = np.tile(neutral, (len(owner), 1))
    image[has_image] = block.image
    return image, owner, has_image


def _queries(store: FaissStore, with_images: npt.NDArray[np.bool_], encoder: ImageTextEncoder) -> dict[str, Vectors]:
    """Return calibration queries: images of the knowledge base, with title weights from 0 to 1.

    If the encoder can't compare images with texts, the titles' vectors are those of the images' own entries. If
    summaries are a field, a third of the queries give them half of the title's weight, and another third all of it.
    """
    rows = np.flatnonzero(with_images if with_images.any() else ~with_images)
    sample = np.sort(np.random.default_rng(0).choice(rows, min(_QUERIES, len(rows)), replace=False))
    drawn = store.get(sample)
    images = drawn["image"]
    titles = drawn["title"] if encoder.text_space == "separate" else encoder.to_title_space(images)
    weights = np.linspace(0, 1, len(images), dtype=np.float32)[:, None]
    query = {"image": images * (1 - weights), "title": titles * weights}
    if "summary" in store.fields:
        share = (np.arange(len(images), dtype=np.float32) % 3 / 2)[:, None]
        query |= {"title": titles * weights * (1 - share), "summary": titles * weights * share}
    return query
