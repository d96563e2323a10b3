"""Build an index of entries: encode shards, each written to disk at once, and put them into a store at the end."""

from __future__ import annotations

import shutil
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from reflectune.core.durable import read_json, write_json
from reflectune.core.errors import UserError
from reflectune.core.launching import ALONE, Processes
from reflectune.core.progress import progress_bar
from reflectune.core.rejected import (
    REJECTED,
    BadRow,
    MissingImage,
    Reject,
    Rejected,
    UnreadableImage,
    as_json,
    from_json,
    stop,
)
from reflectune.core.types import Entry
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.formats.passages import summary_text
from reflectune.retrieval.encoders.base import ImageTextEncoder, no_vectors
from reflectune.retrieval.indexes.captions import CAPTIONS, captions_of
from reflectune.retrieval.indexes.entry_index import (
    LEFT_OUT_LIST,
    NEAR_DUPLICATES,
    Index,
    check_store,
    choice_of,
    left_out,
    load_index,
    origin_of,
    read_manifest,
)
from reflectune.retrieval.indexes.growing import reopen_index, starts_with
from reflectune.retrieval.indexes.images import encode_images, has_title, places_of
from reflectune.retrieval.indexes.near_duplicates import NOTHING, Omission
from reflectune.retrieval.indexes.planning import Plan, check_room, fields_of, plan_index
from reflectune.retrieval.indexes.sections import SECTION_ENTRIES, SECTIONS, UNIT, SectionKnowledge
from reflectune.retrieval.indexes.settings import MANIFEST, UNFINISHED
from reflectune.retrieval.indexes.writing import Block, claim_shards, write_array, write_index
from reflectune.retrieval.stores.names import check_shareable
from reflectune.retrieval.stores.opening import Choice

_EXTRA_PARTS = ("owner", "titled", "rejected")
"""Files of a shard besides the vectors of each field."""
_ADVICE = "; `on_error: skip` leaves it out"

OnError = Literal["stop", "skip"]


def build_index(
    kb: KnowledgeBase,
    encoder: ImageTextEncoder,
    folder: str | Path,
    *,
    store: str = "auto",
    summaries: bool = False,
    sections: bool = False,
    leave_out: Omission = NOTHING,
    batch_size: int = 64,
    shard_rows: int = 4096,
    on_error: OnError = "stop",
    verify: bool = False,
    progress: bool = False,
    workers: int = 0,
    processes: Processes = ALONE,
) -> Index:
    """Build or resume an index; open a finished one.

    If entries were appended to the knowledge base, full shards are not encoded again. The bytes of the index don't
    depend on whether it was extended, nor on the number of processes and workers.

    Args:
        kb: The knowledge base.
        encoder: Encoder of images and titles.
        folder: Folder of the index.
        store: Vector store: `auto`, `exact`, `faiss`, or a Milvus server's address.
        summaries: Encode each entry's summary too (`summary_text`), as another field; or its caption, if `kb` is a
            `CaptionedKnowledge`.
        sections: Index each section with its entry's first image and its summary (`SectionKnowledge`), instead of each
            image with its entry's title.
        leave_out: Images to exclude; the manifest stores their number and the list's hash.
        batch_size: Entries to encode together.
        shard_rows: Entries to write together; a crash loses at most these.
        on_error: `stop` ends at the first bad image. `skip` leaves out bad images and entries without a title, lists
            them in `rejected.jsonl` and counts them in the manifest; an entry with only bad images is indexed as one
            without images.
        verify: Compute the checksums of a finished index's large files whole.
        progress: Show a progress bar.
        workers: Threads that read and prepare images ahead of the model; 0: none.
        processes: Processes of the launch; all call this.

    Raises:
        UserError: The folder holds an index of different content, fields, store or excluded images; or `on_error` is
            `stop` and an image is missing or bad, an entry has no title, or the folder's index lacks images since it
            was built with `skip`; or several processes would open a Milvus Lite file.
    """
    folder, articles = Path(folder), kb
    check_shareable(store, processes)
    is_first = processes.index == 0
    if (folder / MANIFEST).is_file():
        manifest = read_manifest(folder)
        choice = choice_of(folder, manifest)
        _check_built(folder, manifest, leave_out, summaries, sections, captions_of(kb))
        if starts_with(kb, encoder, manifest):
            check_store(folder, manifest, store)
            _check_whole(folder, manifest, on_error)
            processes.wait()  # all processes see the manifest before the first one deletes it
            if is_first:
                settings = _shard_settings(choice, batch_size, shard_rows, leave_out, summaries, kb)
                _reopen(folder, manifest, kb, encoder, settings)
            store = choice.address or choice.kind
    processes.wait()
    if not (folder / MANIFEST).is_file():
        kb = SectionKnowledge(articles, leave_out) if sections else articles
        if not len(kb):
            raise UserError(f"the knowledge base {kb.folder} has no entries: there is nothing to index")
        plan = plan_index(kb, encoder, store, summaries=summaries)
        work = _Shards(kb, encoder, folder / UNFINISHED, plan, leave_out, batch_size, shard_rows, on_error, workers)
        work.encode(processes, progress=progress and is_first)
        if is_first:
            _assemble(kb, encoder, folder, plan, leave_out, progress)
    processes.wait()
    check_shareable(choice_of(folder, read_manifest(folder)).address, processes)
    with processes.main_process_first():  # the first one may have to resend rows to a server
        index = load_index(folder, articles, encoder, verify=verify, resend=is_first)
    check_store(folder, index.manifest, store)
    _check_whole(folder, index.manifest, on_error)
    if is_first:
        shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
    return index


@dataclass(frozen=True)
class _Shards:
    """Shards of encoded entries in a folder, with their settings; see `build_index`."""

    kb: KnowledgeBase
    encoder: ImageTextEncoder
    folder: Path
    plan: Plan
    leave_out: Omission
    batch_size: int
    shard_rows: int
    on_error: OnError
    workers: int
    texts: Counter[str] = field(default_factory=Counter)
    """Number of texts that this process has encoded, and how many of them were truncated."""

    @property
    def has_summaries(self) -> bool:
        """True if summaries are encoded."""
        return "summary" in self.plan.fields

    def encode(self, processes: Processes, *, progress: bool) -> None:
        """Encode the missing shards, distributed over the processes, and wait until all are on disk.

        The progress bar's rate counts only these. With `stop`, shards that left rows out are encoded again, since their
        images may have been repaired.
        """
        if processes.index == 0:
            check_room(self.folder.parent, self.plan)
            choice = self.plan.choice
            settings = _shard_settings(
                choice, self.batch_size, self.shard_rows, self.leave_out, self.has_summaries, self.kb
            )
            claim_shards(self.folder, origin_of(self.kb, self.encoder), settings)
        count, rows = len(self.kb), self.shard_rows
        paths = {first: _shard_paths(self.folder, first // rows, self.plan.fields) for first in range(0, count, rows)}
        missing = [first for first, files in paths.items() if not self._is_encoded(files)]
        done = sum(min(rows, count - first) for first in paths.keys() - set(missing))
        processes.wait()  # all processes list the missing shards before one of them writes
        own = set(missing[processes.index :: processes.count])
        entries = self.leave_out.without(self.kb)
        with progress_bar(total=count, initial=done, unit=" entries", desc="indexing", disable=not progress) as bar:
            for first, files in paths.items():
                shard = list(islice(entries, rows))
                if first in own:
                    self._write(shard, first, files, bar)
                elif first in missing:
                    bar.update(len(shard))  # another process encodes it
        processes.wait()
        if self.texts["cut"]:
            warnings.warn(
                f"{self.texts['cut']:,} of {self.texts['encoded']:,} titles and summaries are longer than the "
                f"{self.encoder.longest:,} tokens that {self.encoder.name} reads: the rest was cut",
                stacklevel=3,
            )

    def _is_encoded(self, paths: Mapping[str, Path]) -> bool:
        """Return True if a shard is on disk and, with `stop`, left no rows out."""
        exists = all(path.is_file() for path in paths.values())
        return exists and not (self.on_error == "stop" and _rejected_of(paths["rejected"]))

    def _write(self, shard: Sequence[Entry], first: int, paths: Mapping[str, Path], bar: Any) -> None:
        """Encode a shard, whose first entry has the position `first`, and write it to disk."""
        rejected: list[BadRow] = []
        reject = stop if self.on_error == "stop" else rejected.append
        arrays = self._arrays(shard, first, reject, bar)
        paths["rejected"].unlink(missing_ok=True)  # without it the shard counts as unfinished
        for part, array in arrays.items():
            write_array(paths[part], array.astype(self.plan.choice.precision) if part in self.plan.fields else array)
        write_json(paths["rejected"], [as_json(error) for error in rejected])

    def _encoded(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return vectors of texts, and count them."""
        self.texts.update(encoded=len(texts), cut=sum(self.encoder.too_long(texts)))
        return self.encoder.encode_entry_texts(texts)

    def _arrays(self, entries: Sequence[Entry], first: int, reject: Reject, bar: Any) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of a shard: vectors of images and texts, and the positions of their entries."""
        titles, summaries, images = [], [], [no_vectors(self.encoder.dimensions)]
        owner: list[int] = []
        titled: list[int] = []
        numbered = list(enumerate(entries, start=first))
        batches = [numbered[start : start + self.batch_size] for start in range(0, len(numbered), self.batch_size)]
        places = [places_of(self.kb, batch, self.batch_size) for batch in batches]
        with closing(encode_images(self.kb, self.encoder, chain.from_iterable(places), self.workers)) as encoded:
            for batch, chunks in zip(batches, places, strict=True):
                with_title = [
                    (position, entry) for position, entry in batch if self._has_title(position, entry, reject)
                ]
                titles.append(self._encoded([entry.title for _, entry in with_title]))
                if self.has_summaries:
                    summaries.append(self._encoded([summary_text(entry) for _, entry in with_title]))
                titled += [position for position, _ in with_title]
                title = {position: entry.title for position, entry in with_title}
                for chunk in islice(encoded, len(chunks)):
                    for place, error in chunk.bad:
                        kind = MissingImage if error.is_missing else UnreadableImage
                        where = self.kb.place(place.position)
                        reject(kind(*where, place.entry.id, "images", error.problem, error.fix + _ADVICE))
                    images.append(self.encoder.mix(chunk.vectors, [title[position] for position in chunk.owners]))
                    owner += chunk.owners
                bar.update(len(batch))
        return {
            "image": np.concatenate(images),
            "title": np.concatenate(titles),
            **({"summary": np.concatenate(summaries)} if summaries else {}),
            "owner": np.array(owner, dtype=np.int64),
            "titled": np.array(titled, dtype=np.int64),
        }

    def _has_title(self, position: int, entry: Entry, reject: Reject) -> bool:
        """Return True if an entry has a title, else reject it."""
        if has_title(entry):
            return True
        fix = "give it one: equation 3 compares images with titles" + _ADVICE
        reject(BadRow(*self.kb.place(position), entry.id, "title", "has no title", fix))
        return False


def _shard_settings(
    choice: Choice, batch_size: int, shard_rows: int, leave_out: Omission, summaries: bool, kb: KnowledgeBase
) -> dict[str, Any]:
    return {
        "batch_size": batch_size,
        "shard_rows": shard_rows,
        "store": choice.address or choice.kind,
        "leave_out": leave_out.fingerprint,
        "summaries": summaries,
        "captions": captions_of(kb),
    }


def _reopen(
    folder: Path, manifest: dict[str, Any], kb: KnowledgeBase, encoder: ImageTextEncoder, settings: Mapping[str, Any]
) -> None:
    """Split a finished index into shards with these settings, to extend it."""
    shards, fields = folder / UNFINISHED, fields_of(encoder, summaries=settings["summaries"])
    claim_shards(shards, origin_of(kb, encoder), settings, reopened=True)
    reopen_index(folder, manifest, kb, lambda number: _shard_paths(shards, number, fields), settings["shard_rows"])


def _check_built(
    folder: Path, manifest: dict[str, Any], leave_out: Omission, summaries: bool, sections: bool, captions: str
) -> None:
    """Refuse a finished index that was built with different settings."""
    built = {
        "leave_out": manifest.get(LEFT_OUT_LIST, "") or "(none)",
        "summaries": "summary" in manifest["fields"],
        "captions": manifest.get(CAPTIONS, "") or "(none)",
        "rows": manifest.get(UNIT, "entries"),
    }
    now = {
        "leave_out": leave_out.fingerprint or "(none)",
        "summaries": summaries,
        "captions": captions or "(none)",
        "rows": "sections" if sections else "entries",
    }
    for key, value in now.items():
        if built[key] != value:
            raise UserError(
                f"the index {folder} was built with the `{key}` {built[key]}, now it is {value}; go on with that, or "
                "build the index in another folder"
            )


def _check_whole(folder: Path, manifest: Mapping[str, Any], on_error: OnError) -> None:
    """With `stop`, refuse a finished index that left images or entries out."""
    if on_error == "stop" and (count := left_out(manifest)):
        raise UserError(
            f"the index {folder} was built with `on_error: skip` and lacks {count:,} images or entries, listed in "
            f"{REJECTED}; fix them and delete the folder to build it again, or set `on_error: skip`"
        )


def _shard_paths(folder: Path, number: int, fields: Iterable[str]) -> dict[str, Path]:
    parts = (*fields, *_EXTRA_PARTS)
    return {part: folder / f"{part}-{number:05d}.{'json' if part == 'rejected' else 'npy'}" for part in parts}


def _rejected_of(path: Path) -> list[BadRow]:
    """Return the rows that a finished shard left out."""
    return [from_json(row) for row in read_json(path, "the unfinished index's rejected rows")]


def _assemble(
    kb: KnowledgeBase, encoder: ImageTextEncoder, folder: Path, plan: Plan, leave_out: Omission, progress: bool
) -> None:
    """Write the index from its shards, the manifest last."""
    shards = folder / UNFINISHED
    rejected = Rejected(folder)
    errors = [error for path in sorted(shards.glob("rejected-*.json")) for error in _rejected_of(path)]
    distinct = {str(error): error for error in errors}  # an entry's sections share its images
    rejected.note(distinct.values())
    rejected.close()
    numbers = range(len(list(shards.glob("title-*.npy"))))

    def blocks() -> Iterator[Block]:
        for number in numbers:
            paths = _shard_paths(shards, number, plan.fields)
            parts = {part: np.load(path, mmap_mode="r") for part, path in paths.items() if part != "rejected"}
            texts = {field: parts[field] for field in plan.fields if field != "image"}
            yield Block(parts["image"], texts, parts["owner"], parts["titled"])

    record = {**origin_of(kb, encoder), "kb_entries": len(kb), "left_out": dict(rejected.reasons.most_common())}
    if leave_out.fingerprint:
        record |= {LEFT_OUT_LIST: leave_out.fingerprint, NEAR_DUPLICATES: len(leave_out.images)}
    if captions := captions_of(kb):
        record |= {CAPTIONS: captions}
    if isinstance(kb, SectionKnowledge):
        record |= {UNIT: "sections"}
        write_array(folder / SECTION_ENTRIES, kb.articles)
        write_array(folder / SECTIONS, kb.sections)
    write_index(folder, record, plan.fields, plan.choice, blocks, encoder=encoder, progress=progress)
