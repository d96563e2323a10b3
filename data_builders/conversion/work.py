"""What a worker process does with one batch of rows: check, build, and write a part."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from reflectune.core.images import BadImage, open_image, read_header
from reflectune.core.rejected import BadRow, Reject, UnreadableImage, stop
from reflectune.core.rows import to_row
from reflectune.core.types import Entry, Question
from reflectune.data_builders.conversion.ids import Hashes, hash_ids, is_among
from reflectune.data_builders.readers.files import LineBlock, block_rows
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.registry import knowledge_reader
from reflectune.data_builders.readers.rows import SourceLine, SourceRow, placed
from reflectune.formats.dataset import write_question_file
from reflectune.formats.knowledge_base import shard_name, write_shard

Verify = Literal["none", "header", "decode"]


@dataclass(frozen=True)
class QuestionBatch:
    """Some questions to check and write. `folder` None: check only. `skip`: bad ones are left out."""

    number: int
    questions: Sequence[Question]
    places: Sequence[SourceLine]
    folder: Path | None
    image_root: Path | None
    verify: Verify
    skip: bool


@dataclass(frozen=True)
class QuestionsDone:
    """What came of a batch; `parts` are (split, file, rows), `counts` by split and answer type, `kinds` by `kind`.

    `unanswered` is how many questions have neither an answer nor a range.
    """

    parts: list[tuple[str, str, int]]
    counts: dict[str, dict[str, int]]
    digest: str
    images: dict[str, int]
    kinds: dict[str, int] = field(default_factory=dict)
    entity_ids: list[str] = field(default_factory=list)
    rejected: list[BadRow] = field(default_factory=list)
    unanswered: int = 0


def write_question_batch(batch: QuestionBatch) -> QuestionsDone:
    """Check the images of a batch, and write its questions, a part for each split among them."""
    reject, rejected = _rejecter(batch.skip)
    by_split: dict[str, list[Question]] = {}
    images: Counter[str] = Counter()
    digest = hashlib.sha256()
    for question, place in zip(batch.questions, batch.places, strict=True):
        try:
            images[_check_image(question, place, batch)] += 1
        except BadRow as error:
            reject(error)
            continue
        by_split.setdefault(question.split, []).append(question)
        digest.update(json.dumps(to_row(question), sort_keys=True).encode())
    parts = []
    for split, questions in by_split.items():
        file = shard_name(batch.number)
        parts.append((split, file, len(questions)))
        if batch.folder is not None:
            write_question_file(batch.folder / "questions" / split / file, questions)
    return QuestionsDone(
        parts=parts,
        counts={split: dict(Counter(q.answer_type for q in questions)) for split, questions in by_split.items()},
        digest=digest.hexdigest()[:32],
        images={key: count for key, count in images.items() if key},
        kinds=dict(Counter(kind(q) for questions in by_split.values() for q in questions)),
        entity_ids=sorted(_named_entries(q for questions in by_split.values() for q in questions)),
        rejected=rejected,
        unanswered=sum(not (q.answers or q.range) for questions in by_split.values() for q in questions),
    )


def kind(question: Question) -> str:
    """Whether a question is to be looked up, and how that is known.

    `knowledge_based` and `visual` as its row says; `by_entities` if it doesn't say, and names entities or evidence;
    `unknown` if it names none.
    """
    if question.is_knowledge_based is None:
        return "unknown"
    if not question.is_knowledge_based:
        return "visual"
    return "knowledge_based" if question.requires_retrieval else "by_entities"


@dataclass(frozen=True)
class EntryBatch:
    """Some rows of a knowledge base: lines of its file, or rows that were parsed already.

    `keep` and `bound` make a sample: entries whose id is among `keep`, or whose seeded hash is below `bound`.
    """

    number: int
    reader: str
    rows: LineBlock | Sequence[SourceRow]
    images: ImageFolder
    folder: Path | None
    skip: bool
    keep: Hashes | None = None
    bound: int = 1 << 64
    seed: int = 0


@dataclass(frozen=True)
class EntriesDone:
    """What came of a batch: of each entry, in order, its id with two hashes of it, where it was read, its images.

    `digests` are 16 bytes an entry, as `write_shard` gives them; none if nothing was written.
    """

    names: list[str]
    ids: Hashes
    seeded: Hashes
    places: list[SourceLine]
    image_counts: list[int]
    digests: bytes
    rejected: list[BadRow] = field(default_factory=list)

    def without(self, positions: Sequence[int]) -> EntriesDone:
        """The same with some entries taken out."""
        gone = set(positions)
        kept = [i for i in range(len(self.names)) if i not in gone]
        return dataclasses.replace(
            self,
            names=[self.names[i] for i in kept],
            ids=self.ids[kept],
            seeded=self.seeded[kept],
            places=[self.places[i] for i in kept],
            image_counts=[self.image_counts[i] for i in kept],
            digests=b"".join(self.digests[16 * i : 16 * i + 16] for i in kept),
        )


def write_entry_batch(batch: EntryBatch) -> EntriesDone:
    """Build the entries of a batch and write them as one shard (none if no entry is kept)."""
    reject, rejected = _rejecter(batch.skip)
    entries, places = _entries(batch, reject)
    ids = hash_ids(entry.id for entry in entries)
    seeded = hash_ids((entry.id for entry in entries), batch.seed)
    if batch.keep is not None:
        kept = np.flatnonzero(is_among(ids, batch.keep) | _below(seeded, batch.bound))
        entries, places = [entries[i] for i in kept], [places[i] for i in kept]
        ids, seeded = ids[kept], seeded[kept]
    digests: list[bytes] = []
    if batch.folder is not None and entries:
        digests = write_shard(batch.folder / shard_name(batch.number), entries)
    return EntriesDone(
        names=[entry.id for entry in entries],
        ids=ids,
        seeded=seeded,
        places=places,
        image_counts=[len(entry.images) for entry in entries],
        digests=b"".join(digests),
        rejected=rejected,
    )


def _entries(batch: EntryBatch, reject: Reject) -> tuple[list[Entry], list[SourceLine]]:
    make = knowledge_reader(batch.reader).entry
    rows = block_rows(batch.rows, reject) if isinstance(batch.rows, LineBlock) else _numbered(batch.rows)
    made = list(placed(rows, lambda row: make(row, batch.images), reject))
    return [entry for entry, _ in made], [place for _, place in made]


def _numbered(rows: Sequence[SourceRow]) -> Iterator[tuple[int, SourceRow]]:
    return ((row.line, row) for row in rows)


def _below(hashes: Hashes, bound: int) -> npt.NDArray[np.bool_]:
    """Whether each hash is below a bound, which may be 2^64 and then is above all."""
    if bound >= 1 << 64:
        return np.ones(len(hashes), dtype=bool)
    return hashes < np.uint64(bound)


def _rejecter(skip: bool) -> tuple[Reject, list[BadRow]]:
    """What to do with a bad row here: keep it for the main process, or stop."""
    rejected: list[BadRow] = []
    return (rejected.append if skip else stop), rejected


def _named_entries(questions: Iterator[Question]) -> set[str]:
    """The entries that questions speak of."""
    return {name for q in questions for name in (*q.entity_ids, *(evidence.entry_id for evidence in q.evidence))}


def _check_image(question: Question, place: SourceLine, batch: QuestionBatch) -> str:
    """`found`, `unverified`, or "" for a question without an image.

    Raises:
        UnreadableImage: The file is damaged, or too large to decode safely.
    """
    if not question.image:
        return ""
    if batch.verify == "none":
        return "unverified"
    path = Path(batch.image_root or "", question.image)
    if batch.folder is None and not path.is_file():
        return "found"  # the row holds its bytes: the reader looked at them, and a check writes them nowhere
    problem = _image_problem(str(path), batch.verify)
    if problem:
        fix = "replace the file; `on_error: skip` leaves such rows out"
        raise UnreadableImage(*place, question.id, "image", problem, fix)
    return "found"


@lru_cache(maxsize=100_000)
def _image_problem(path: str, verify: Verify) -> str:
    """What is wrong with an image file; "" if nothing is. Many questions share an image, so the answer is kept."""
    try:
        open_image(Path(path)) if verify == "decode" else read_header(Path(path))
    except BadImage as error:
        return error.problem
    return ""
