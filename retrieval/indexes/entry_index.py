"""Index of entries: vectors of every image and title in a store, with the entries that they belong to.

A row of the store has the vectors of an entry's image and title, in the fields `image` and `title`, and `summary` if
the index was built with summaries. Fields and weights are chosen by the query. An entry without images has one row,
with the mean of all images as its image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from reflectune.core.durable import read_json
from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.retrieval.encoders.base import ImageTextEncoder
from reflectune.retrieval.encoders.encoder import load_encoder
from reflectune.retrieval.indexes.captions import CAPTIONS
from reflectune.retrieval.indexes.checksums import CHECKSUMS, check_files
from reflectune.retrieval.indexes.sections import SECTION_ENTRIES, SECTIONS, UNIT, sections_fingerprint
from reflectune.retrieval.indexes.settings import MANIFEST
from reflectune.retrieval.stores.base import VectorStore
from reflectune.retrieval.stores.exact import SUFFIXES
from reflectune.retrieval.stores.ivf import CODES
from reflectune.retrieval.stores.milvus import MilvusStore
from reflectune.retrieval.stores.names import full_address
from reflectune.retrieval.stores.opening import Choice, open_store

OWNERS: Final = "owners.npy"
ENTRIES: Final = "entries.npy"
WITHOUT_IMAGE: Final = "without_image.npy"
"""Files of positions: each row's entry; each entry's position in the knowledge base; the rows without an image."""
PRECISION: Final = "encoder_dtype"
"""Key of the manifest for the precision of the encoder's weights; missing for float32."""
NEAR_DUPLICATES: Final = "near_duplicates"
LEFT_OUT_LIST: Final = "near_duplicates_fingerprint"
"""Keys of the manifest of an index without near-duplicates of test images: their number, and the list's hash."""
AGAIN: Final = "delete the folder and build the index again"

_FIELDS: Final = ({"image", "title"}, {"image", "title", "summary"})
_COUNTS = ("kb_entries", "rows", "entries", "images")


@dataclass(frozen=True)
class Index:
    """A loaded index.

    Attributes:
        manifest: Record of its build and of the images left out.
        entry_ids: Ids of the entries with titles, in the knowledge base's order.
        owner: Index in `entry_ids` of each row's entry; never decreasing, shape (rows,).
        store: Vectors of the fields `image` and `title`, and `summary` if it was built with summaries.
        sections: Each row's section in an index of sections, shape (rows,); None in an index of entries.
    """

    manifest: dict[str, Any]
    entry_ids: EntryIds
    owner: npt.NDArray[np.integer]
    store: VectorStore
    sections: npt.NDArray[np.integer] | None = None


class EntryIds:
    """Ids of entries by their positions in a knowledge base, read on demand."""

    def __init__(self, kb: KnowledgeBase, positions: npt.NDArray[np.integer]) -> None:
        self._kb, self._positions = kb, positions

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: int) -> str:
        return self._kb.id_at(int(self._positions[index]))


def left_out(manifest: Mapping[str, Any]) -> int:
    """Return the number of bad images and of entries without a title that an index lacks."""
    return sum(manifest.get("left_out", {}).values())


def recall_of(manifest: Mapping[str, Any]) -> str:
    """Describe the measured recall of an approximate search; "" for an exact one."""
    if not (search := manifest.get("search")):
        return ""
    return f", searching {search['cells']:,} cells: recall@{search['top']} {search['recall']:.3f} of an exact search"


def load_index(
    folder: str | Path, kb: KnowledgeBase, encoder: ImageTextEncoder, *, verify: bool = False, resend: bool = False
) -> Index:
    """Open an index of a knowledge base. Its files are mapped, not read.

    Checksums of files larger than 64 MiB are computed from samples.

    Args:
        folder: Folder of the index.
        kb: The knowledge base that the index must belong to.
        encoder: The encoder that the index must have been built with.
        verify: Compute the checksums of large files whole.
        resend: Send missing rows to a server, instead of refusing it.

    Raises:
        UserError: The index belongs to a different knowledge base or encoder; a file was replaced, truncated or
            changed; or the index's server doesn't answer or lacks rows.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    by_section = manifest.get(UNIT) == "sections"
    origin = origin_of(kb, encoder)
    check_origin(folder, manifest, {**origin, "kb_fingerprint": sections_fingerprint(kb)} if by_section else origin)
    choice = choice_of(folder, manifest)
    check_files(folder, manifest.get(CHECKSUMS), files_of(choice, manifest["fields"], by_section), verify=verify)
    owner, entries = (read_positions(folder / name) for name in (OWNERS, ENTRIES))
    search, collection = manifest.get("search"), collection_of(manifest)
    store = open_store(choice, folder, manifest["fields"], collection=collection, creates=resend, search=search)
    sizes, expected = (len(store), len(owner), len(entries)), (manifest["rows"], manifest["rows"], manifest["entries"])
    articles, sections = (
        (read_positions(folder / name) for name in (SECTION_ENTRIES, SECTIONS)) if by_section else (None, None)
    )
    units = len(kb) if articles is None else len(articles)
    if sizes != expected or not _are_below(owner, len(entries)) or not _are_below(entries, units):
        raise UserError(f"{folder} has other rows than its manifest says; {AGAIN}")
    check_server(store, resend=resend)
    if articles is not None and sections is not None:
        pairs = entries[owner]  # position of each row's pair
        entries, owner = np.unique(articles[pairs], return_inverse=True)
        sections = sections[pairs]
        if not _are_below(entries, len(kb)):
            raise UserError(f"{folder} has other sections than its manifest says; {AGAIN}")
    manifest["kb"] = kb.name  # the knowledge base may have been renamed
    return Index(manifest, EntryIds(kb, entries), owner, store, sections)


def check_server(store: VectorStore, *, resend: bool) -> None:
    """Refuse a server that lacks rows of an index, or with `resend` send them; ignore other stores.

    Raises:
        UserError: The server doesn't answer, lacks rows and `resend` is off, or has a different collection.
    """
    if not isinstance(store, MilvusStore):
        return
    if resend:
        store.finish()
    else:
        store.check()


def check_store(folder: Path, manifest: Mapping[str, Any], store: str) -> None:
    """Refuse a `store` other than `auto` that differs from the one that an index was built with."""
    choice = choice_of(folder, manifest)
    built = choice.address or choice.kind
    if store != "auto" and full_address(store) != built:
        raise UserError(
            f"the index {folder} was built with `store: {built}`, now it is `{store}`; go on with that, or build the "
            "index in another folder"
        )


def choice_of(folder: Path, manifest: Mapping[str, Any]) -> Choice:
    """Return the store that the index in `folder` was built with."""
    address = full_address(manifest.get("address", ""), folder)
    return Choice(manifest["store"], manifest["precision"], "the index was built with it", address)


def files_of(choice: Choice, fields: Sequence[str], by_section: bool = False) -> list[str]:
    """Return the names of an index's files that don't change once it is built."""
    pairs = [SECTION_ENTRIES, SECTIONS] if by_section else []
    vectors = [f"{field}.{SUFFIXES[choice.precision]}" for field in fields]
    return [OWNERS, ENTRIES, WITHOUT_IMAGE, *pairs, *vectors, *([CODES] if choice.kind == "faiss" else [])]


def check_summaries(index: Index) -> None:
    """Refuse an index without summaries."""
    if "summary" not in index.store.fields:
        raise UserError(
            f"the index of the knowledge base `{index.manifest['kb']}` has no summaries; build one with "
            "`build_index --summaries` in another folder, or set `summary_share: 0`"
        )


def check_captions(index: Index) -> None:
    """Refuse an index without captions."""
    if CAPTIONS not in index.manifest:
        raise UserError(
            f"the index of the knowledge base `{index.manifest['kb']}` has no captions; write them with "
            "`reflectune caption`, and build an index with `build_index --captions` in another folder"
        )


def collection_of(manifest: Mapping[str, Any]) -> str:
    """Return the name of an index's collection on a server, a hash of the vectors."""
    suffixes = tuple(f".{suffix}" for suffix in SUFFIXES.values())
    hashes = {name: file.get("sha256") for name, file in manifest[CHECKSUMS].items() if name.endswith(suffixes)}
    return f"reflectune_{fingerprint(sorted(hashes.items()))[:16]}"


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read and validate the manifest of an index of entries.

    Raises:
        UserError: It is missing or invalid, or belongs to an index of passages.
    """
    manifest = read_json(folder / MANIFEST, "the index's manifest")
    known = manifest if isinstance(manifest, dict) else {}
    if "cutting" in known:
        raise UserError(
            f"{folder} is an index of passages, expected one of entries: name it as `text_index`, or build this index "
            "in another folder"
        )
    counts = [*(known.get(name) for name in _COUNTS), known.get(NEAR_DUPLICATES, 0)]
    for group in [known.get("left_out", {}), known.get("fields")]:
        counts += group.values() if isinstance(group, dict) else [None]
    is_known = (
        known.get("store") in ("exact", "faiss", "milvus")
        and known.get("precision") in SUFFIXES
        and set(known.get("fields") or ()) in _FIELDS
        and all(known["fields"].values())
    )
    texts = [known.get("kb"), known.get("encoder"), known.get("address", ""), known.get(PRECISION, "")]
    if (
        not is_known
        or not all(type(count) is int and count >= 0 for count in counts)
        or not all(isinstance(text, str) for text in texts)
    ):
        raise UserError(f"{folder / MANIFEST} is not an index's manifest; {AGAIN}")
    return known


def origin_of(kb: KnowledgeBase, encoder: ImageTextEncoder) -> dict[str, Any]:
    """Return a record of everything that vectors depend on."""
    return {
        "kb": kb.name,
        "kb_fingerprint": kb.fingerprint,
        "encoder": encoder.name,
        "encoder_revision": encoder.revision,
        "encoder_fingerprint": encoder.fingerprint,
        **({PRECISION: encoder.precision} if encoder.precision != "float32" else {}),
    }


def open_encoder(index: str | Path, *, device: str) -> ImageTextEncoder:
    """Load the encoder that an index's manifest names, in the precision that it records.

    Args:
        index: Folder of the index.
        device: Device of the encoder.

    Raises:
        UserError: The index or the encoder is missing.
    """
    manifest = read_manifest(Path(index))
    return load_encoder(manifest["encoder"], device=device, dtype=manifest.get(PRECISION, "float32"))


def check_origin(folder: Path, recorded: dict[str, Any], expected: dict[str, Any]) -> None:
    """Refuse vectors of a different knowledge base or encoder. Fingerprints are compared, not names."""
    for side, name in (("kb", "knowledge base"), ("encoder", "encoder")):
        key = f"{side}_fingerprint"
        if recorded.get(key) != expected[key]:
            raise UserError(
                f"the index {folder} was built with the {name} `{recorded.get(side)}` ({recorded.get(key)}), but the "
                f"{name} now is `{expected[side]}` ({expected[key]}); use that one, or build the index in another "
                "folder"
            )


def _are_below(numbers: npt.NDArray[np.integer], end: int) -> bool:
    """Return True if all numbers are at least 0 and less than `end`."""
    return numbers.min(initial=0) >= 0 and numbers.max(initial=-1) < end


def read_positions(path: Path) -> npt.NDArray[np.integer]:
    """Map an index's file of positions into memory.

    Raises:
        UserError: The file is damaged.
    """
    try:
        numbers = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged: {error}; {AGAIN}") from error
    if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
        raise UserError(f"{path} is not an array of positions; {AGAIN}")
    return numbers
