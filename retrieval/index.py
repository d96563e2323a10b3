"""An index of a knowledge base: FAISS vectors of every image and title, tied to what they are of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from reflectune.core.durable import read_json
from reflectune.core.errors import UserError
from reflectune.retrieval.checksums import CHECKSUMS, check_files, say_unchecked
from reflectune.retrieval.encoders.encoder import ImageTextEncoder, Vectors
from reflectune.retrieval.knowledge_base import KnowledgeBase

MANIFEST = "manifest.json"
KINDS = ("image", "title")
ROWS = "rows.json"
FILES = (ROWS, *(f"{kind}.faiss" for kind in KINDS))


@dataclass(frozen=True)
class Index:
    """A loaded index.

    Attributes:
        manifest: What it was built from, and how many images were left out of it.
        entry_ids: Every entry that has a title, in the knowledge base's order.
        image: Vectors of all images, shape (images, d), those of one entry side by side.
        owner: For each row of `image`, the position of its entry in `entry_ids`; never decreasing.
        title: Vectors of titles, shape (entries, d), one per entry in order; their d may be another than the images'.
    """

    manifest: dict[str, Any]
    entry_ids: tuple[str, ...]
    image: Vectors
    owner: npt.NDArray[np.int64]
    title: Vectors


def left_out(index: Index) -> int:
    """How many images and entries without a title were left out when it was built."""
    return sum(index.manifest.get("left_out", {}).values())


def load_index(folder: str | Path, kb: KnowledgeBase, encoder: ImageTextEncoder, *, verify: bool = False) -> Index:
    """Load an index for searching this knowledge base with this encoder.

    Files of up to 64 MiB are compared with their checksums whole, larger ones by chunks spread over them.

    Args:
        folder: The index's.
        kb: The knowledge base that it must be of.
        encoder: The encoder that it must be built with.
        verify: Read large files whole for their checksums too.

    Raises:
        UserError: It was built from another knowledge base or with another encoder; or a file of it was swapped, cut or
            changed.
    """
    folder = Path(folder)
    manifest = _read_manifest(folder)
    check_origin(folder, manifest, origin_of(kb, encoder))
    if CHECKSUMS in manifest:
        check_files(folder, manifest[CHECKSUMS], FILES, verify=verify)
    elif not verify:
        how = f"--knowledge {kb.folder} --encoder {encoder.name} --output {folder}"
        say_unchecked(folder, f"`python -m reflectune.retrieval.build_index {how} --verify` adds them")
    rows = _read_rows(folder)
    vectors = {kind: _read_vectors(folder, kind, manifest) for kind in KINDS}
    for kind in KINDS:
        if len(rows[kind]) != len(vectors[kind]):
            raise UserError(
                f"{folder}: {ROWS} names {len(rows[kind]):,} {kind} rows, {kind}.faiss has {len(vectors[kind]):,}; "
                "delete the folder and build the index again"
            )
    places = {entry_id: place for place, entry_id in enumerate(rows["title"])}
    owner = np.array([places[entry_id] for entry_id in rows["image"]], dtype=np.int64)
    return Index(manifest, tuple(rows["title"]), vectors["image"], owner, vectors["title"])


def _read_manifest(folder: Path) -> dict[str, Any]:
    """What an index was built from, by name, with whole numbers wherever something is counted."""
    manifest = read_json(folder / MANIFEST, "the index's manifest")
    known = manifest if isinstance(manifest, dict) else {}
    vectors, left = known.get("vectors"), known.get("left_out", {})
    counts = [known.get("dimensions"), known.get("title_dimensions", 0)]
    counts += [vectors.get(kind) for kind in KINDS] if isinstance(vectors, dict) else [None]
    counts += left.values() if isinstance(left, dict) else [None]
    if not all(isinstance(count, int) for count in counts) or not isinstance(known.get("kb"), str):
        raise UserError(f"{folder / MANIFEST} is no index's manifest; delete the folder and build the index again")
    return known


def _read_rows(folder: Path) -> dict[str, list[str]]:
    """The entry of each vector: one id for each image, and one for each title."""
    rows = read_json(folder / ROWS, "the index's rows")
    is_whole = isinstance(rows, dict) and all(
        isinstance(rows.get(kind), list) and all(isinstance(entry_id, str) for entry_id in rows[kind]) for kind in KINDS
    )
    if not is_whole or not set(rows["image"]) <= set(rows["title"]):
        raise UserError(f"{folder / ROWS} is damaged; delete the folder and build the index again")
    return rows


def origin_of(kb: KnowledgeBase, encoder: ImageTextEncoder) -> dict[str, Any]:
    """What vectors depend on."""
    return {
        "kb": kb.name,
        "kb_fingerprint": kb.fingerprint,
        "encoder": encoder.name,
        "encoder_revision": encoder.revision,
        "encoder_fingerprint": encoder.fingerprint,
    }


def check_origin(folder: Path, recorded: dict[str, Any], expected: dict[str, Any]) -> None:
    """Refuse vectors of another knowledge base or encoder. Names may differ: content decides."""
    for side, name in (("kb", "knowledge base"), ("encoder", "encoder")):
        key = f"{side}_fingerprint"
        if recorded.get(key) != expected[key]:
            raise UserError(
                f"the index {folder} was built with the {name} `{recorded.get(side)}` ({recorded.get(key)}), but the "
                f"{name} now is `{expected[side]}` ({expected[key]}); use that one, or build the index in another "
                "folder"
            )


def _read_vectors(folder: Path, kind: str, manifest: dict[str, Any]) -> Vectors:
    """The vectors of a FAISS file, shape (rows, d), as its manifest says."""
    path = folder / f"{kind}.faiss"
    if not path.is_file():
        raise UserError(f"a part of the index is missing: {path}; delete the folder and build the index again")
    try:
        index = faiss.read_index(str(path))
    except RuntimeError as error:
        raise UserError(f"{path} is damaged: {error}; delete the folder and build the index again") from error
    dimensions = manifest.get("title_dimensions") if kind == "title" else None
    expected = (manifest["vectors"][kind], dimensions or manifest["dimensions"])
    if (index.ntotal, index.d) != expected:
        raise UserError(
            f"{path} holds {index.ntotal:,} vectors of {index.d} dimensions, its manifest says {expected[0]:,} of "
            f"{expected[1]}; delete the folder and build the index again"
        )
    return index.reconstruct_n(0, index.ntotal)
