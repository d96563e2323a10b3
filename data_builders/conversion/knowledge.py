"""Convert a knowledge base to shards, in the order of the source. Workers parse its lines in blocks."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from reflectune.core.durable import RowLog, read_rows
from reflectune.core.rejected import BadRow, Reject, Rejected, as_json, from_json, rejecter, stop
from reflectune.data_builders.conversion.config import ConvertConfig
from reflectune.data_builders.conversion.ids import Hashes, SeenIds, hash_ids, is_among, sample_bound
from reflectune.data_builders.conversion.sources import list_files, progress
from reflectune.data_builders.conversion.work import BufferedImages, EntriesDone, EntryBatch, write_entry_batch
from reflectune.data_builders.conversion.workers import Workers
from reflectune.data_builders.readers.files import LineBlock, line_blocks, read_jsonl
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.registry import knowledge_reader
from reflectune.data_builders.readers.rows import SourceRow
from reflectune.formats.knowledge_base import clear_knowledge_base, drop_entries, finish_knowledge_base, shard_name

BLOCK_BYTES = 8 << 20
BATCH = 500


@dataclass
class KnowledgeTotals:
    """Counts of the entries. `gold` has the hashes of entries that questions name."""

    entries: int = 0
    images: int = 0
    without_image: int = 0
    gold: list[Hashes] = field(default_factory=list)
    shards: list[dict[str, Any]] = field(default_factory=list)

    def missing(self, named: Iterable[str]) -> list[str]:
        """Return the named entries that are missing."""
        names = sorted(named)
        found = is_among(hash_ids(names), np.sort(np.concatenate(self.gold))) if self.gold else [False] * len(names)
        return [name for name, is_found in zip(names, found, strict=True) if not is_found]

    def add(self, number: int, entries: int, images: int, without_image: int) -> None:
        """Add a batch."""
        self.entries += entries
        self.images += images
        self.without_image += without_image
        if entries:
            self.shards.append({"file": shard_name(number), "entries": entries})


@dataclass(frozen=True)
class KnowledgeRun:
    """The conversion of a knowledge base.

    Args:
        config: The settings.
        images: The entries' images.
        folder: The data set folder; None only checks.
        rejected: Collects bad rows; None raises an error at the first.
        gold: Ids of the entries that the questions name.
    """

    config: ConvertConfig
    images: ImageFolder
    folder: Path | None
    rejected: Rejected | None
    gold: frozenset[str]

    def convert(self, workers: Workers, journal: Path, key: str, image_root: str) -> tuple[KnowledgeTotals, str]:
        """Write every shard that isn't in the journal of an earlier run with the same key.

        Returns:
            The totals, and the knowledge base's fingerprint.
        """
        assert self.folder is not None
        folder = self.folder / "knowledge"
        if not journal.is_file():
            clear_knowledge_base(folder)
        totals, seen, gold = KnowledgeTotals(), SeenIds(), self._gold
        with RowLog(journal, key) as log:
            last: dict[str, Any] | None = None
            for last in read_rows(journal):
                seen.add(ids := np.frombuffer(base64.b64decode(last["ids"]), dtype=np.uint64))
                self._count(totals, int(last["id"]), last, ids, gold)
                self._note([from_json(error) for error in last["rejected"]])
            sample = self._sample(workers)
            tasks = self._batches("knowledge", sample, rejecter(self.rejected), folder, last)
            for batch, done in workers.map(write_entry_batch, tasks):
                done = self._without_duplicates(done, seen, folder / shard_name(batch.number))
                values = {**_to_json(done), **_end(batch.rows)}
                log.append(str(batch.number), values)
                self._count(totals, batch.number, values, done.ids, gold)
                self._note(done.rejected)
        pieces = (base64.b64decode(row["digests"]) for row in read_rows(journal))
        name = self.config.name or self.folder.resolve().name
        kb = finish_knowledge_base(folder, totals.shards, pieces, name=name, image_root=image_root)
        return totals, kb.fingerprint

    def check(self, workers: Workers) -> KnowledgeTotals:
        """Read and check everything, and write nothing."""
        totals, seen, gold = KnowledgeTotals(), SeenIds(), self._gold
        tasks = self._batches("knowledge", self._sample(workers), rejecter(self.rejected), None, None)
        for batch, done in workers.map(write_entry_batch, tasks):
            done = self._without_duplicates(done, seen, None)
            self._count(totals, batch.number, _to_json(done), done.ids, gold)
            self._note(done.rejected)
        return totals

    @property
    def _gold(self) -> Hashes:
        return np.sort(hash_ids(self.gold))

    def _note(self, errors: Sequence[BadRow]) -> None:
        if self.rejected is not None:
            self.rejected.note(errors)

    def _count(self, totals: KnowledgeTotals, number: int, row: dict[str, Any], ids: Hashes, gold: Hashes) -> None:
        totals.add(number, row["entries"], row["images"], row["without_image"])
        totals.gold.append(ids[is_among(ids, gold)])

    def _sample(self, workers: Workers) -> int | None:
        """Read the ids of the source, and return the `sample_bound` for `sample_knowledge`; None to keep all."""
        if self.config.sample_knowledge is None:
            return None
        gold, others = self._gold, []
        tasks = self._batches("ids to sample from", None, Rejected(None), None, None)
        for _, done in workers.map(write_entry_batch, tasks):
            drawn = np.array([count > 0 or not self.config.knowledge_images for count in done.image_counts], dtype=bool)
            others.append(done.seeded[~is_among(done.ids, gold) & drawn])
        distinct = np.unique(np.concatenate(others)) if others else np.empty(0, np.uint64)
        return sample_bound(distinct, self.config.sample_knowledge)

    def _batches(
        self, step: str, bound: int | None, reject: Reject, folder: Path | None, last: dict[str, Any] | None
    ) -> Iterator[EntryBatch]:
        """Yield the source's batches that follow the journal's last row."""
        config = self.config
        source = config.path(config.knowledge_source)
        first, gold = 0 if last is None else int(last["id"]) + 1, self._gold
        images = self.images if bound is None else BufferedImages(self.images.root, self.images.save_to)
        images = ImageFolder(self.images.root) if folder is None else images  # without writing images
        with progress(step, sum(file.stat().st_size for file in list_files([source]))) as bar:
            for number, rows in enumerate(self._pieces(source, reject, first, last), first):
                yield EntryBatch(
                    number=number,
                    reader=config.knowledge,
                    rows=rows,
                    images=images,
                    folder=folder,
                    skip=self.rejected is not None or isinstance(reject, Rejected),
                    keep=None if bound is None else gold,
                    bound=bound or 0,
                    with_images=bool(config.knowledge_images),
                    seed=config.seed,
                )
                size = rows.data.count(b"\n") if isinstance(rows, LineBlock) else len(rows)
                bar.advance(size, self.rejected.count if self.rejected else 0)

    def _pieces(
        self, source: Path, reject: Reject, number: int, last: dict[str, Any] | None
    ) -> Iterator[LineBlock | list[SourceRow]]:
        """Yield blocks of lines if the source has lines and no limit is set, else lists of parsed rows."""
        reader, limit = knowledge_reader(self.config.knowledge), self.config.limit
        if reader.read_source is read_jsonl and not limit:
            begin = {"offset": last["offset"], "first_line": last["line"]} if last else {}
            yield from line_blocks(source, BLOCK_BYTES, **begin)
            return
        rows = (row for _, row in islice(reader.read_source(source, reject), limit))
        pieces = iter(lambda: list(islice(rows, BATCH)), [])
        yield from islice(pieces, number, None)

    def _without_duplicates(self, done: EntriesDone, seen: SeenIds, shard: Path | None) -> EntriesDone:
        """Drop the entries with repeated ids from a batch and from its shard."""
        repeated: list[int] = seen.add(done.ids).tolist()
        if not repeated:
            return done
        errors = [done.lines[i].duplicate(done.names[i], "a knowledge base") for i in repeated]
        if self.rejected is None:
            stop(errors[0])
        if shard is not None:
            drop_entries(shard, repeated)
        return dataclasses.replace(done.without(repeated), rejected=[*done.rejected, *errors])


def _to_json(done: EntriesDone) -> dict[str, Any]:
    """Return the journal's row of a batch."""
    return {
        "entries": len(done.ids),
        "ids": base64.b64encode(done.ids.tobytes()).decode(),
        "digests": base64.b64encode(done.digests).decode(),
        "images": sum(done.image_counts),
        "without_image": done.image_counts.count(0),
        "rejected": [as_json(error) for error in done.rejected],
    }


def _end(rows: LineBlock | Sequence[SourceRow]) -> dict[str, int]:
    """Return the start of the next block of lines."""
    if not isinstance(rows, LineBlock):
        return {}
    return {"offset": rows.offset + len(rows.data), "line": rows.first_line + rows.data.count(b"\n")}
