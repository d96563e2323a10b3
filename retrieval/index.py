"""An index of a knowledge base: FAISS vectors of every image and title, built in shards, tied to what they are of."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from reflectune.core.durable import read_json, write_atomically, write_json
from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.core.types import Entry
from reflectune.retrieval.encoders import ImageTextEncoder, Vectors
from reflectune.retrieval.knowledge_base import KnowledgeBase

MANIFEST = "manifest.json"
KINDS = ("image", "title")

_ROWS = "rows.json"
_UNFINISHED = "unfinished"
_SETTINGS = "settings.json"
_PARTS = ("image", "title", "owner")


@dataclass(frozen=True)
class Index:
    """A loaded index.

    Attributes:
        manifest: What it was built from.
        entry_ids: Every entry, in the knowledge base's order.
        image: Vectors of all images, shape (images, d), those of one entry side by side.
        owner: For each row of `image`, the position of its entry in `entry_ids`; never decreasing.
        title: Vectors of titles, shape (entries, d), one per entry in order.
    """

    manifest: dict[str, Any]
    entry_ids: tuple[str, ...]
    image: Vectors
    owner: npt.NDArray[np.int64]
    title: Vectors


def build_index(
    kb: KnowledgeBase,
    encoder: ImageTextEncoder,
    folder: str | Path,
    *,
    batch_size: int = 64,
    shard_rows: int = 4096,
    progress: bool = False,
) -> Index:
    """Build an index, or go on with one that was cut off; a finished one is taken as it is.

    Args:
        kb: What to index.
        encoder: What to encode images and titles with.
        folder: Where to.
        batch_size: Entries that are encoded together.
        shard_rows: Entries whose vectors are put on the disk together: what a crash costs at most.
        progress: Show a progress bar.

    Raises:
        UserError: The folder holds an index of something else, an image is missing or bad, or an entry has no title.
    """
    folder = Path(folder)
    if not (folder / MANIFEST).is_file():
        if not len(kb):
            raise UserError(f"the knowledge base {kb.folder} has no entries: there is nothing to index")
        _encode_shards(kb, encoder, folder / _UNFINISHED, batch_size, shard_rows, progress)
        _assemble(kb, encoder, folder)
    index = load_index(folder, kb, encoder)
    shutil.rmtree(folder / _UNFINISHED, ignore_errors=True)
    return index


def load_index(folder: str | Path, kb: KnowledgeBase, encoder: ImageTextEncoder) -> Index:
    """Load an index for searching this knowledge base with this encoder.

    Raises:
        UserError: It was built from another knowledge base or with another encoder, or its files are damaged.
    """
    folder = Path(folder)
    manifest = read_json(folder / MANIFEST, "the index's manifest")
    _check_origin(folder, manifest, _origin(kb, encoder))
    rows = read_json(folder / _ROWS, "the index's rows")
    vectors = {kind: _read_vectors(folder, kind, manifest) for kind in KINDS}
    for kind in KINDS:
        if len(rows[kind]) != len(vectors[kind]):
            raise UserError(
                f"{folder}: {_ROWS} names {len(rows[kind]):,} {kind} rows, {kind}.faiss has {len(vectors[kind]):,}; "
                "delete the folder and build the index again"
            )
    places = {entry_id: place for place, entry_id in enumerate(rows["title"])}
    owner = np.array([places[entry_id] for entry_id in rows["image"]], dtype=np.int64)
    return Index(manifest, tuple(rows["title"]), vectors["image"], owner, vectors["title"])


def _origin(kb: KnowledgeBase, encoder: ImageTextEncoder) -> dict[str, Any]:
    """What vectors depend on."""
    return {
        "kb": kb.name,
        "kb_fingerprint": kb.fingerprint,
        "encoder": encoder.name,
        "encoder_revision": encoder.revision,
        "encoder_fingerprint": encoder.fingerprint,
    }


def _check_origin(folder: Path, found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Refuse vectors of another knowledge base or encoder. Names may differ: content decides."""
    for side, name in (("kb", "knowledge base"), ("encoder", "encoder")):
        key = f"{side}_fingerprint"
        if found.get(key) != expected[key]:
            raise UserError(
                f"the index {folder} was built with the {name} `{found.get(side)}` ({found.get(key)}), but the {name} "
                f"now is `{expected[side]}` ({expected[key]}); use that one, or build the index in another folder"
            )


def _encode_shards(
    kb: KnowledgeBase, encoder: ImageTextEncoder, folder: Path, batch_size: int, shard_rows: int, progress: bool
) -> None:
    """Encode every shard that is not on the disk yet; the progress bar's rate counts only these."""
    _claim(folder, _origin(kb, encoder), batch_size, shard_rows)
    entries = iter(kb)
    shards = {first: _shard_paths(folder, first // shard_rows) for first in range(0, len(kb), shard_rows)}
    finished = {first for first, paths in shards.items() if all(path.is_file() for path in paths.values())}
    before = sum(min(shard_rows, len(kb) - first) for first in finished)
    with tqdm(total=len(kb), initial=before, unit=" entries", desc="indexing", disable=not progress) as bar:
        for first, paths in shards.items():
            shard = list(islice(entries, shard_rows))
            if first not in finished:
                found = _encode_shard(kb, encoder, shard, first, batch_size, bar)
                for part, path in paths.items():
                    _write_array(path, found[part])


def _shard_paths(folder: Path, number: int) -> dict[str, Path]:
    return {part: folder / f"{part}-{number:05d}.npy" for part in _PARTS}


def _claim(folder: Path, origin: dict[str, Any], batch_size: int, shard_rows: int) -> None:
    """Note what the shards are of, or check that those which are there are of the same."""
    settings = {**origin, "batch_size": batch_size, "shard_rows": shard_rows}
    if not (folder / _SETTINGS).is_file():
        write_json(folder / _SETTINGS, settings)
        return
    found = read_json(folder / _SETTINGS, "the unfinished index's settings")
    _check_origin(folder, found, origin)
    for key in ("batch_size", "shard_rows"):
        if found[key] != settings[key]:
            raise UserError(
                f"the unfinished index {folder} was begun with {key} {found[key]}, now it is {settings[key]}; "
                f"go on with {found[key]}, or delete the folder to start again"
            )


def _encode_shard(
    kb: KnowledgeBase, encoder: ImageTextEncoder, entries: Sequence[Entry], first: int, batch_size: int, bar: tqdm
) -> dict[str, npt.NDArray[Any]]:
    """Vectors of a shard's images and titles, and which entry (counted from `first`) owns each image."""
    images, titles = [], []
    owner: list[int] = []
    for start in range(0, len(entries), batch_size):
        batch = entries[start : start + batch_size]
        titles.append(encoder.encode_texts([_title(entry) for entry in batch]))
        images.append(_encode_images(kb, encoder, batch, batch_size))
        owner += [first + start + i for i, entry in enumerate(batch) for _ in entry.images]
        bar.update(len(batch))
    return {"image": np.concatenate(images), "title": np.concatenate(titles), "owner": np.array(owner, dtype=np.int64)}


def _encode_images(kb: KnowledgeBase, encoder: ImageTextEncoder, entries: Sequence[Entry], batch_size: int) -> Vectors:
    """Vectors of all images of some entries, in order; only `batch_size` images are open at a time."""
    places = [(path, entry) for entry in entries for path in kb.image_paths(entry)]
    found = [np.zeros((0, encoder.dimensions), dtype=np.float32)]
    for start in range(0, len(places), batch_size):
        opened = [
            load_image(path, needed_by=f"entry {entry.id}, {entry.title}")
            for path, entry in places[start : start + batch_size]
        ]
        found.append(encoder.encode_images(opened))
    return np.concatenate(found)


def _title(entry: Entry) -> str:
    if not entry.title.strip():
        raise UserError(f"entry {entry.id} has no title, which equation 3 compares images with; give it one")
    return entry.title


def _assemble(kb: KnowledgeBase, encoder: ImageTextEncoder, folder: Path) -> None:
    """Join the shards into one index; the manifest comes last."""
    shards = folder / _UNFINISHED
    counts = {}
    for kind in KINDS:
        index = faiss.IndexFlatIP(encoder.dimensions)
        for path in sorted(shards.glob(f"{kind}-*.npy")):
            index.add(np.load(path))
        counts[kind] = index.ntotal
        _write_faiss(folder / f"{kind}.faiss", index)
    ids = list(kb.ids)
    owners = np.concatenate([np.load(path) for path in sorted(shards.glob("owner-*.npy"))])
    rows = {"image": [ids[owner] for owner in owners], "title": ids}
    write_atomically(folder / _ROWS, json.dumps(rows, ensure_ascii=False))
    manifest = {**_origin(kb, encoder), "dimensions": encoder.dimensions, "dtype": "float32", "vectors": counts}
    write_json(folder / MANIFEST, manifest)


def _write_array(path: Path, array: npt.NDArray[Any]) -> None:
    buffer = io.BytesIO()
    np.save(buffer, array)
    write_atomically(path, buffer.getvalue())


def _write_faiss(path: Path, index: faiss.IndexFlatIP) -> None:
    """Write an index whole or not at all, without a second copy in memory."""
    partial = path.with_name(f".{path.name}.partial")
    faiss.write_index(index, str(partial))
    os.replace(partial, path)


def _read_vectors(folder: Path, kind: str, manifest: dict[str, Any]) -> Vectors:
    """The vectors of a FAISS file, shape (rows, d), as its manifest says."""
    path = folder / f"{kind}.faiss"
    if not path.is_file():
        raise UserError(f"a part of the index is missing: {path}; delete the folder and build the index again")
    try:
        index = faiss.read_index(str(path))
    except RuntimeError as error:
        raise UserError(f"{path} is damaged: {error}; delete the folder and build the index again") from error
    expected = (manifest["vectors"][kind], manifest["dimensions"])
    if (index.ntotal, index.d) != expected:
        raise UserError(
            f"{path} holds {index.ntotal:,} vectors of {index.d} dimensions, its manifest says {expected[0]:,} of "
            f"{expected[1]}; delete the folder and build the index again"
        )
    return index.reconstruct_n(0, index.ntotal)
