"""Convert questions to parts. This process reads rows and drops duplicates; workers check images and write parts."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from reflectune.core.durable import RowLog, read_rows
from reflectune.core.errors import UserError
from reflectune.core.rejected import Reject, Rejected, as_json, from_json, rejecter, stop
from reflectune.core.types import Question
from reflectune.data_builders.conversion.config import ConvertConfig
from reflectune.data_builders.conversion.ids import SeenIds, hash_ids, sample_bound
from reflectune.data_builders.conversion.sources import list_files, progress
from reflectune.data_builders.conversion.work import BufferedImages, QuestionBatch, QuestionsDone, write_question_batch
from reflectune.data_builders.conversion.workers import Workers
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.registry import question_reader
from reflectune.data_builders.readers.rows import Placed
from reflectune.formats.questions import unusable

BATCH = 5_000


@dataclass
class QuestionTotals:
    """Counts of the questions of all sources, by split and answer type."""

    parts: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    images: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    entity_ids: set[str] = field(default_factory=set)
    digests: list[str] = field(default_factory=list)
    unanswered: int = 0

    def add(self, done: QuestionsDone) -> None:
        """Add a batch."""
        for split, file, rows in done.parts:
            self.parts.setdefault(split, []).append({"file": file, "rows": rows})
        for split, counts in done.counts.items():
            self.counts.setdefault(split, Counter()).update(counts)
        self.images += done.images
        self.kinds.update(done.kinds)
        self.entity_ids.update(done.entity_ids)
        self.digests.append(done.digest)
        self.unanswered += done.unanswered


@dataclass(frozen=True)
class QuestionRun:
    """The conversion of questions.

    Args:
        config: The settings.
        images: The questions' images.
        folder: The data set folder; None only checks.
        rejected: Collects bad rows; None raises an error at the first.
    """

    config: ConvertConfig
    images: ImageFolder
    folder: Path | None
    rejected: Rejected | None

    def convert(self, workers: Workers, journal: Path, key: str) -> QuestionTotals:
        """Write every part that isn't in the journal of an earlier run with the same key.

        Raises:
            UserError: The rows can't be read, or a finished batch has other questions now.
        """
        totals, finished = QuestionTotals(), dict[str, str]()
        with RowLog(journal, key) as log:
            for row in read_rows(journal):
                finished[row["id"]] = row["of"]
                self._count(totals, _from_json(row))
            for batch, done in workers.map(write_question_batch, self._unfinished(finished)):
                log.append(str(batch.number), {"of": batch.fingerprint, **_to_json(done)})
                self._count(totals, done)
        return totals

    def _unfinished(self, finished: Mapping[str, str]) -> Iterator[QuestionBatch]:
        """Yield the unfinished batches.

        Args:
            finished: Fingerprints of finished batches, by number.
        """
        for batch in self._batches():
            before = finished.get(str(batch.number), batch.fingerprint)
            if before != batch.fingerprint:
                raise UserError(
                    f"{self.folder} was begun with other rows: images have been added or removed since, which changes "
                    "the rows that are used; delete the folder, and run the same command again"
                )
            if str(batch.number) not in finished:
                yield batch

    def check(self, workers: Workers) -> QuestionTotals:
        """Read and check everything, and write nothing."""
        totals = QuestionTotals()
        for _, done in workers.map(write_question_batch, self._batches()):
            self._count(totals, done)
        return totals

    def _count(self, totals: QuestionTotals, done: QuestionsDone) -> None:
        totals.add(done)
        if self.rejected is not None:
            self.rejected.note(done.rejected)

    def _batches(self) -> Iterator[QuestionBatch]:
        """Yield batches of the chosen splits' questions without duplicates, numbered across splits."""
        seen, number = SeenIds(), 0
        for split in self.config.chosen():
            files = list_files(self.config.question_files(split))
            stream = self._sampled(split)
            with progress(f"questions, {split}", sum(file.stat().st_size for file in files)) as bar:
                while batch := list(islice(stream, BATCH)):
                    unique = list(self._without_duplicates(batch, seen))
                    yield QuestionBatch(
                        number=number,
                        questions=[question for question, _ in unique],
                        lines=[line for _, line in unique],
                        folder=self.folder,
                        image_root=self.images.start,
                        verify=self.config.verify_images,
                        skip=self.rejected is not None,
                    )
                    number += 1
                    bar.advance(len(batch), self.rejected.count if self.rejected else 0)

    def _sampled(self, split: str) -> Iterator[Placed[Question]]:
        """Yield the sampled questions of a split; all without `sample`."""
        config = self.config
        if not config.sample:
            yield from self._read(split, self.images, rejecter(self.rejected))
            return
        ignored, unsaved = Rejected(None), ImageFolder(self.images.root)
        first_pass = (question.id for question, _ in self._read(split, unsaved, ignored if self.rejected else stop))
        hashes = [hash_ids(ids, config.seed) for ids in iter(lambda: list(islice(first_pass, BATCH)), [])]
        bound = sample_bound(np.unique(np.concatenate(hashes)), config.sample) if hashes else 0
        buffered = BufferedImages(self.images.root, self.images.save_to)
        for question, line in self._read(split, buffered, rejecter(self.rejected)):
            is_drawn = int(hash_ids([question.id], config.seed)[0]) < bound
            buffered.write_only(question.images if is_drawn else ())
            if is_drawn:
                yield question, line

    def _read(self, split: str, images: ImageFolder, reject: Reject) -> Iterator[Placed[Question]]:
        config = self.config
        read = question_reader(config.questions)
        stream = read(config.source(split), split=split, images=images, reject=reject, **config.options)
        for question, line in islice(stream, config.limit):
            if problem := unusable(question):
                reject(line.bad(question.id, *problem))
            else:
                yield question, line

    def _without_duplicates(self, batch: list[Placed[Question]], seen: SeenIds) -> Iterator[Placed[Question]]:
        repeated = set(seen.add(hash_ids(question.id for question, _ in batch)).tolist())
        for position, (question, line) in enumerate(batch):
            if position in repeated:
                rejecter(self.rejected)(line.duplicate(question.id, "a data set"))
            else:
                yield question, line


def _to_json(done: QuestionsDone) -> dict[str, Any]:
    plain = {field.name: getattr(done, field.name) for field in dataclasses.fields(done)}
    return {**plain, "rejected": [as_json(error) for error in done.rejected]}


def _from_json(row: dict[str, Any]) -> QuestionsDone:
    values = {key: value for key, value in row.items() if key not in ("id", "of")}
    parts = [(split, file, rows) for split, file, rows in row["parts"]]
    return QuestionsDone(**{**values, "parts": parts, "rejected": [from_json(error) for error in row["rejected"]]})
