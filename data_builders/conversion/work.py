"""Work on one batch of rows in a worker process: check it, build it, and write a part."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from reflectune.core.hashing import fingerprint
from reflectune.core.images import BadImage, open_image, read_header
from reflectune.core.rejected import BadRow, Reject, UnreadableImage, stop
from reflectune.core.rows import to_row
from reflectune.core.types import Question
from reflectune.data_builders.conversion.ids import Hashes, hash_ids, is_among
from reflectune.data_builders.readers.files import LineBlock, block_rows
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.registry import knowledge_reader
from reflectune.data_builders.readers.rows import SourceLine, SourceRow, placed
from reflectune.formats.dataset import write_question_file
from reflectune.formats.knowledge_base import shard_name, write_shard

Verify = Literal["header", "decode"]


@dataclass
class BufferedImages(ImageFolder):
    """An image folder that buffers images given as bytes, until they are written or dropped."""

    _held: dict[str, bytes] = field(default_factory=dict, init=False, repr=False, compare=False)

    def write(self, path: str, content: bytes) -> None:
        """Buffer an image."""
        self._held[path] = content

    def write_only(self, paths: Iterable[str]) -> None:
        """Write these images if they are buffered, and drop all others."""
        for path in paths:
            if (content := self._held.get(path)) is not None:
                super().write(path, content)
        self._held.clear()


@dataclass(frozen=True)
class QuestionBatch:
    """Questions to check and write. With `folder` None they are only checked; with `skip` bad ones are left out."""

    number: int
    questions: Sequence[Question]
    lines: Sequence[SourceLine]
    folder: Path | None
    image_root: Path | None
    verify: Verify
    skip: bool

    @property
    def fingerprint(self) -> str:
        """Hash of the questions' ids."""
        return fingerprint([question.id for question in self.questions])


@dataclass(frozen=True)
class QuestionsDone:
    """Result of a batch; `parts` are (split, file, rows), `counts` by split and answer type, `kinds` by `kind`.

    `images` counts the images of good questions, `unanswered` questions with neither an answer nor a range.
    """

    parts: list[tuple[str, str, int]]
    counts: dict[str, dict[str, int]]
    digest: str
    images: int
    kinds: dict[str, int] = field(default_factory=dict)
    entity_ids: list[str] = field(default_factory=list)
    rejected: list[BadRow] = field(default_factory=list)
    unanswered: int = 0


def write_question_batch(batch: QuestionBatch) -> QuestionsDone:
    """Check the images of a batch, and write its questions, a part for each split among them."""
    reject, rejected = _rejecter(batch.skip)
    by_split: dict[str, list[Question]] = {}
    images = 0
    digest = hashlib.sha256()
    for question, line in zip(batch.questions, batch.lines, strict=True):
        try:
            for path in question.images:
                _check_image(path, question.id, line, batch)
        except BadRow as error:
            reject(error)
            continue
        images += len(question.images)
        by_split.setdefault(question.split, []).append(question)
        digest.update(json.dumps(to_row(question), sort_keys=True).encode())
    parts = []
    for split, questions in by_split.items():
        file = shard_name(batch.number)
        parts.append((split, file, len(questions)))
        if batch.folder is not None:
            write_question_file(batch.folder / "questions" / split / file, questions)
    accepted = [question for questions in by_split.values() for question in questions]
    return QuestionsDone(
        parts=parts,
        counts={split: dict(Counter(q.answer_type for q in questions)) for split, questions in by_split.items()},
        digest=digest.hexdigest()[:32],
        images=images,
        kinds=dict(Counter(map(kind, accepted))),
        entity_ids=sorted({name for q in accepted for name in (*q.entity_ids, *(it.entry_id for it in q.evidence))}),
        rejected=rejected,
        unanswered=sum(not (q.answers or q.range) for q in accepted),
    )


def kind(question: Question) -> str:
    """Return a question's kind: `knowledge_based` or `visual` by its row, `by_entities`, or `unknown`."""
    if question.is_knowledge_based is None:
        return "unknown"
    if not question.is_knowledge_based:
        return "visual"
    return "knowledge_based" if question.requires_retrieval else "by_entities"


@dataclass(frozen=True)
class EntryBatch:
    """Rows of a knowledge base: lines of its file, or parsed rows.

    `keep` and `bound` define a sample: entries with an id in `keep`, or with a seeded hash below `bound` (and, if
    `with_images`, an image).
    """

    number: int
    reader: str
    rows: LineBlock | Sequence[SourceRow]
    images: ImageFolder
    folder: Path | None
    skip: bool
    keep: Hashes | None = None
    bound: int = 0
    with_images: bool = False
    seed: int = 0


@dataclass(frozen=True)
class EntriesDone:
    """Result of a batch. All lists are in the order of the entries.

    Attributes:
        names: Ids.
        ids: Hashes of the ids.
        seeded: Hashes of the ids that depend on the seed.
        lines: Files and lines.
        image_counts: Numbers of images.
        digests: 16 bytes per entry, see `write_shard`; empty if nothing was written.
        rejected: Bad rows.
    """

    names: list[str]
    ids: Hashes
    seeded: Hashes
    lines: list[SourceLine]
    image_counts: list[int]
    digests: bytes
    rejected: list[BadRow] = field(default_factory=list)

    def without(self, positions: Sequence[int]) -> EntriesDone:
        """Return a copy without some entries."""
        dropped = set(positions)
        kept = [i for i in range(len(self.names)) if i not in dropped]
        return dataclasses.replace(
            self,
            names=[self.names[i] for i in kept],
            ids=self.ids[kept],
            seeded=self.seeded[kept],
            lines=[self.lines[i] for i in kept],
            image_counts=[self.image_counts[i] for i in kept],
            digests=b"".join(self.digests[16 * i : 16 * i + 16] for i in kept),
        )


def write_entry_batch(batch: EntryBatch) -> EntriesDone:
    """Build the entries of a batch and write them as one shard (none if no entry is kept)."""
    reject, rejected = _rejecter(batch.skip)
    make = knowledge_reader(batch.reader).entry
    source = batch.rows
    rows = block_rows(source, reject) if isinstance(source, LineBlock) else ((row.line, row) for row in source)
    made = list(placed(rows, lambda row: make(row, batch.images), reject))
    entries, lines = [entry for entry, _ in made], [line for _, line in made]
    ids = hash_ids(entry.id for entry in entries)
    seeded = hash_ids((entry.id for entry in entries), batch.seed)
    if batch.keep is not None:
        can_be_drawn = np.array([bool(entry.images) or not batch.with_images for entry in entries], dtype=bool)
        kept = np.flatnonzero(is_among(ids, batch.keep) | (seeded < batch.bound) & can_be_drawn)
        entries, lines = [entries[i] for i in kept], [lines[i] for i in kept]
        ids, seeded = ids[kept], seeded[kept]
    if isinstance(batch.images, BufferedImages):
        batch.images.write_only(image for entry in entries for image in entry.images)
    digests: list[bytes] = []
    if batch.folder is not None and entries:
        digests = write_shard(batch.folder / shard_name(batch.number), entries)
    return EntriesDone(
        names=[entry.id for entry in entries],
        ids=ids,
        seeded=seeded,
        lines=lines,
        image_counts=[len(entry.images) for entry in entries],
        digests=b"".join(digests),
        rejected=rejected,
    )


def _rejecter(skip: bool) -> tuple[Reject, list[BadRow]]:
    """Return the function to call with a bad row, which collects it or raises an error, and the collected rows."""
    rejected: list[BadRow] = []
    return (rejected.append if skip else stop), rejected


def _check_image(image: str, question_id: str, line: SourceLine, batch: QuestionBatch) -> None:
    """Raise UnreadableImage for an image that can't be read."""
    path = Path(batch.image_root or "", image)
    if batch.folder is None and not path.is_file():
        return  # the reader verified the bytes in the row, and a check doesn't write them
    problem = _image_problem(str(path), batch.verify)
    if problem:
        fix = "replace the file; `on_error: skip` leaves such rows out"
        raise UnreadableImage(line.file, line.line, question_id, "image", problem, fix)


@lru_cache(maxsize=100_000)
def _image_problem(path: str, verify: Verify) -> str:
    """Return the problem of an image file, "" if it is good; cached, since many questions share an image."""
    try:
        open_image(Path(path)) if verify == "decode" else read_header(Path(path))
    except BadImage as error:
        return error.problem
    return ""
