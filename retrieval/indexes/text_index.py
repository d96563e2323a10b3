"""Index of passages: vectors of a text encoder in a store, with the articles that the passages were cut from."""

from __future__ import annotations

import dataclasses
import functools
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from reflectune.core.durable import read_json, read_record, write_json
from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.core.launching import ALONE, Processes
from reflectune.core.progress import progress_bar
from reflectune.core.types import Entry, Passage
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.formats.passages import Cut, Lead, sentences, split_passages
from reflectune.models.rendering.turns import passage_text
from reflectune.retrieval.encoders.settings import TextSettings
from reflectune.retrieval.encoders.text_encoder import TextEncoder
from reflectune.retrieval.indexes.checksums import CHECKSUMS, check_files
from reflectune.retrieval.indexes.entry_index import (
    AGAIN,
    check_origin,
    check_server,
    check_store,
    choice_of,
    collection_of,
    read_positions,
)
from reflectune.retrieval.indexes.planning import Plan, check_room
from reflectune.retrieval.indexes.settings import MANIFEST, UNFINISHED
from reflectune.retrieval.indexes.writing import claim_shards, finish_index, open_rows, write_array
from reflectune.retrieval.stores.base import Vectors, VectorStore
from reflectune.retrieval.stores.exact import SUFFIXES
from reflectune.retrieval.stores.ivf import CODES, FaissStore
from reflectune.retrieval.stores.names import check_shareable
from reflectune.retrieval.stores.opening import Choice, choose, open_store

COUNTS: Final = "counts.npy"
FIELD: Final = "text"
_QUERIES: Final = 128
"""Number of queries that calibrate an approximate search."""
_CACHED: Final = 4096
"""Articles whose passages are cached in memory."""


@dataclass(frozen=True)
class Cutting:
    """Rule by which articles are split into passages; see `split_passages`."""

    cut: Cut = "paragraphs"
    size: int = 0
    lead: Lead = "none"

    def passages(self, entry: Entry) -> list[Passage]:
        """Return the passages of an article."""
        return split_passages(entry, cut=self.cut, size=self.size, lead=self.lead)


class TextIndex:
    """A loaded index of passages.

    Args:
        manifest: Record of its build.
        kb: The knowledge base.
        counts: Number of passages of each entry, shape (entries,).
        store: Vectors of the field `text`, one row per passage.
    """

    def __init__(
        self, manifest: dict[str, Any], kb: KnowledgeBase, counts: npt.NDArray[np.integer], store: VectorStore
    ) -> None:
        self.manifest, self.store, self.kb = manifest, store, kb
        self._ends = np.cumsum(counts, dtype=np.int64)
        self._cutting = Cutting(**manifest["cutting"])
        self._passages = functools.lru_cache(maxsize=_CACHED)(self._cut)

    def passage(self, row: int) -> Passage:
        """Return the passage of a row."""
        position = int(np.searchsorted(self._ends, row, "right"))
        first = int(self._ends[position - 1]) if position else 0
        return self._passages(self.kb.id_at(position))[row - first]

    def _cut(self, entry_id: str) -> list[Passage]:
        return self._cutting.passages(self.kb.get(entry_id))


def build_text_index(
    kb: KnowledgeBase,
    encoder: TextEncoder,
    folder: str | Path,
    cutting: Cutting,
    *,
    store: str = "auto",
    shard_entries: int = 1024,
    questions: Sequence[str] = (),
    progress: bool = False,
    processes: Processes = ALONE,
) -> TextIndex:
    """Build or resume an index; open a finished one.

    The bytes of the index don't depend on the number of processes.

    Args:
        kb: The knowledge base.
        encoder: Encoder of passages.
        folder: Folder of the index.
        cutting: Rule by which articles are split.
        store: Vector store: `auto`, `exact`, `faiss`, or a Milvus server's address.
        shard_entries: Articles to write together; a crash loses at most these.
        questions: Sample queries to calibrate an approximate search; without any, sentences of passages are used.
        progress: Show a progress bar.
        processes: Processes of the launch.

    Raises:
        UserError: The folder holds an index of different content or store, there is nothing to index, the disk has too
            little space, or several processes would open a Milvus Lite file.
    """
    folder, is_first = Path(folder), processes.index == 0
    origin = _origin(kb, encoder, cutting)
    check_shareable(store, processes)
    processes.wait()  # all processes see the same folder before one of them writes
    if not (folder / MANIFEST).is_file():
        shards = folder / UNFINISHED
        with processes.main_process_first():
            rows = _count_passages(kb, cutting, shards)
        plan = plan_passages(encoder, store, rows)
        if is_first:
            check_room(folder, plan)
            claim_shards(shards, origin, {"shard_entries": shard_entries, "precision": plan.choice.precision})
        _encode(kb, encoder, cutting, shards, plan.choice, shard_entries, progress and is_first, processes)
        if is_first:
            _assemble(folder, shards, origin, plan, kb, encoder, questions, progress)
    if is_first:
        shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
    processes.wait()
    check_shareable(choice_of(folder, read_text_manifest(folder)).address, processes)
    with processes.main_process_first():  # the first one may have to resend rows to a server
        index = load_text_index(folder, kb, encoder, cutting, resend=is_first)
    check_store(folder, index.manifest, store)
    return index


def plan_passages(encoder: TextEncoder, store: str, rows: int) -> Plan:
    """Plan an index of passages.

    Args:
        encoder: The encoder.
        store: `auto`, `exact`, `faiss`, or a Milvus server's address.
        rows: Number of passages.
    """
    fields = {FIELD: encoder.dimensions}
    return Plan(rows, fields, choose(store, rows, fields))


def load_text_index(
    folder: str | Path, kb: KnowledgeBase, encoder: TextEncoder, cutting: Cutting, *, resend: bool = False
) -> TextIndex:
    """Open an index of passages.

    Args:
        folder: Folder of the index.
        kb: The knowledge base that the index must belong to.
        encoder: The encoder that the index must have been built with.
        cutting: Rule by which its articles must have been split.
        resend: Send missing rows to a server, instead of refusing it.

    Raises:
        UserError: The index belongs to a different knowledge base, encoder or cutting; a file was replaced, truncated
            or changed; or the index's server doesn't answer or lacks rows.
    """
    folder = Path(folder)
    manifest = read_text_manifest(folder)
    check_origin(folder, manifest, _origin(kb, encoder, cutting))
    choice = choice_of(folder, manifest)
    check_files(folder, manifest.get(CHECKSUMS), _files(choice), verify=False)
    counts = read_positions(folder / COUNTS)
    fields, search = {FIELD: encoder.dimensions}, manifest.get("search")
    opened = open_store(choice, folder, fields, collection=collection_of(manifest), creates=resend, search=search)
    if len(counts) != len(kb) or counts.min(initial=0) < 0 or not len(opened) == counts.sum() == manifest["rows"]:
        raise UserError(f"{folder} has other passages than its manifest says; {AGAIN}")
    check_server(opened, resend=resend)
    manifest["kb"] = kb.name  # the knowledge base may have been renamed
    return TextIndex(manifest, kb, counts, opened)


def read_text_manifest(folder: Path) -> dict[str, Any]:
    """Read and validate the manifest of an index of passages.

    Raises:
        UserError: It is missing or invalid, or belongs to an index of entries.
    """
    known = read_json(folder / MANIFEST, "the manifest of the index of passages")
    known = known if isinstance(known, dict) else {}
    if "fields" in known:
        raise UserError(
            f"{folder} is an index of entries, expected one of passages: name it as `index`, or build this index in "
            "another folder"
        )
    is_valid = (
        all(isinstance(known.get(name), str) for name in ("kb", "encoder", "store", "address"))
        and known["store"] in ("exact", "faiss", "milvus")
        and known.get("precision") in SUFFIXES
        and type(known.get("rows")) is int
        and _has_types_of(Cutting(), known.get("cutting"))
        and _has_types_of(TextSettings().completed(), known.get("settings"))
    )
    if not is_valid:
        raise UserError(f"{folder / MANIFEST} is not a manifest of an index of passages; {AGAIN}")
    return known


def _has_types_of(example: Any, value: Any) -> bool:
    """Return True if a JSON value is an object with the fields of a dataclass instance, and their types."""
    types = {name: type(field) for name, field in dataclasses.asdict(example).items()}
    return isinstance(value, dict) and {name: type(field) for name, field in value.items()} == types


def _origin(kb: KnowledgeBase, encoder: TextEncoder, cutting: Cutting) -> dict[str, Any]:
    """Return a record of everything that vectors depend on."""
    return {
        "kb": kb.name,
        "kb_fingerprint": _cut_fingerprint(kb, cutting),
        "cutting": dataclasses.asdict(cutting),
        "encoder": encoder.name,
        "encoder_revision": encoder.revision,
        "encoder_fingerprint": encoder.fingerprint,
        "settings": dataclasses.asdict(encoder.settings),
    }


def _files(choice: Choice) -> list[str]:
    return [COUNTS, f"{FIELD}.{SUFFIXES[choice.precision]}", *([CODES] if choice.kind == "faiss" else [])]


def _count_passages(kb: KnowledgeBase, cutting: Cutting, shards: Path) -> int:
    """Return the number of passages, which the first process of a build counts and stores.

    Raises:
        UserError: The knowledge base has no passages.
    """
    path, key = shards / "count.json", _cut_fingerprint(kb, cutting)
    record = read_record(path, "the unfinished index's number of passages", passages=int) if path.is_file() else {}
    if record.get("key") == key and "passages" in record:
        return int(record["passages"])
    passages = sum(len(cutting.passages(entry)) for entry in kb)
    if not passages:
        raise UserError(f"the knowledge base {kb.folder} has no passages: there is nothing to index")
    write_json(path, {"key": key, "passages": passages})
    return passages


def _cut_fingerprint(kb: KnowledgeBase, cutting: Cutting) -> str:
    """Return the hash of a knowledge base's passages."""
    return fingerprint([kb.fingerprint, dataclasses.asdict(cutting)])


def _shard(shards: Path, number: int) -> tuple[Path, Path, Path]:
    """Return the files of a shard's vectors, passages per article, and number of truncated passages, shape (1,)."""
    vectors, counts, cut = (shards / f"{part}-{number:05d}.npy" for part in (FIELD, "counts", "cut"))
    return vectors, counts, cut


def _encode(
    kb: KnowledgeBase,
    encoder: TextEncoder,
    cutting: Cutting,
    shards: Path,
    choice: Choice,
    shard_entries: int,
    progress: bool,
    processes: Processes,
) -> None:
    """Encode the missing shards, distributed over the processes, and wait until all are on disk."""
    numbers = range(-(-len(kb) // shard_entries))
    missing = [number for number in numbers if not all(path.is_file() for path in _shard(shards, number))]
    processes.wait()  # all processes list the missing shards before one of them writes
    own_shards = set(missing[processes.index :: processes.count])
    entries = iter(kb)
    with progress_bar(total=len(kb), unit=" entries", desc="indexing", disable=not progress) as bar:
        for number in numbers:
            vectors, counts, cut = _shard(shards, number)
            shard: Sequence[Entry] = list(islice(entries, shard_entries))
            if number in own_shards:
                cut_before = encoder.cut
                articles = [cutting.passages(entry) for entry in shard]
                encoded = encoder.encode_passages(
                    [passage_text(passage) for article in articles for passage in article]
                )
                write_array(vectors, encoded.astype(choice.precision))
                write_array(counts, np.array([len(article) for article in articles], dtype=np.int32))
                write_array(cut, np.array([encoder.cut - cut_before], dtype=np.int64))
            bar.update(len(shard))
    processes.wait()


def _assemble(
    folder: Path,
    shards: Path,
    origin: dict[str, Any],
    plan: Plan,
    kb: KnowledgeBase,
    encoder: TextEncoder,
    questions: Sequence[str],
    progress: bool,
) -> None:
    """Write the index from its shards, the manifest last."""
    fields, choice = plan.fields, plan.choice
    vectors = open_rows(folder, fields, choice, plan.rows)
    if not len(vectors):
        for block in _blocks(shards, 0):
            vectors.add({FIELD: block})
    counts = np.concatenate(list(_blocks(shards, 1)))
    write_array(folder / COUNTS, counts)
    manifest = {
        **origin,
        "store": choice.kind,
        "address": choice.address_from(folder),
        "precision": choice.precision,
        "rows": plan.rows,
        "cut": int(sum(block.sum() for block in _blocks(shards, 2))),
    }

    def queries(store: FaissStore) -> dict[str, Vectors]:
        texts = list(questions[:_QUERIES]) or _sample_queries(TextIndex(manifest, kb, counts, store))
        return {FIELD: encoder.encode_queries(texts)}

    finish_index(folder, manifest, fields, choice, _files(choice), queries, progress=progress)


def _sample_queries(index: TextIndex) -> list[str]:
    """Return a random sentence of each of some random passages.

    Whole passages would find themselves in the first cell, so that far too few cells would seem to suffice.
    """
    rows, generator = len(index.store), np.random.default_rng(0)
    drawn = generator.choice(rows, min(_QUERIES, rows), replace=False)
    by_passage = (list(sentences(index.passage(int(row)).text)) for row in np.sort(drawn))
    return [texts[int(generator.integers(len(texts)))] for texts in by_passage if texts] or [""]


def _blocks(shards: Path, part: int) -> Iterator[npt.NDArray[Any]]:
    """Yield the arrays of all shards in order: vectors (part 0), counts (1) or numbers of truncated passages (2)."""
    number = 0
    while (path := _shard(shards, number)[part]).is_file():
        yield np.load(path)
        number += 1
