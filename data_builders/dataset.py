"""A data set folder: questions by split, images, a knowledge base, and the manifest that says what they are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from reflectune.core.durable import read_json
from reflectune.core.errors import UserError
from reflectune.core.types import Evidence, Question
from reflectune.retrieval.knowledge_base import KnowledgeBase

MANIFEST = "dataset.json"
_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("image", pa.string()),
        ("text", pa.string()),
        ("answers", pa.list_(pa.string())),
        ("range", pa.list_(pa.float64())),
        ("answer_type", pa.string()),
        ("split", pa.string()),
        ("requires_retrieval", pa.bool_()),
        ("entity_ids", pa.list_(pa.string())),
        ("evidence", pa.list_(pa.struct([("entry_id", pa.string()), ("section", pa.int64())]))),
        ("meta", pa.string()),
    ]
)


@dataclass(frozen=True)
class Dataset:
    """A data set folder. Nothing is read before it is asked for."""

    root: Path

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The content of dataset.json."""
        return load_manifest(self.root)

    @property
    def fingerprint(self) -> str:
        """What the data set's content hashes to, as its builder wrote it down."""
        return str(self.manifest["fingerprint"])

    @cached_property
    def knowledge(self) -> KnowledgeBase:
        """The knowledge base in the folder `knowledge/`."""
        return KnowledgeBase(self.root / "knowledge")

    def questions(self, split: str) -> list[Question]:
        """The questions of a split, in the order of the file."""
        return read_questions(self.root, split)


def load_manifest(folder: str | Path) -> dict[str, Any]:
    """Read dataset.json.

    Raises:
        UserError: It is missing, is not JSON, or has no fingerprint.
    """
    manifest = read_json(Path(folder) / MANIFEST, "the data set's manifest")
    if "fingerprint" not in manifest:
        raise UserError(f"{Path(folder) / MANIFEST} has no `fingerprint`; build the data set again")
    return manifest


def write_questions(folder: str | Path, split: str, questions: Iterable[Question]) -> Path:
    """Write a split's questions as Parquet; the file appears whole or not at all."""
    path = _path(folder, split)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [_row(question) for question in questions]
    partial = path.with_suffix(".partial")
    pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), partial)
    partial.replace(path)
    return path


def read_questions(folder: str | Path, split: str) -> list[Question]:
    """Read a split's questions.

    Raises:
        UserError: The split doesn't exist (the message names those that do) or its file is damaged.
    """
    path = _path(folder, split)
    if not path.is_file():
        raise UserError(f"{path} not found; the data set has the splits {', '.join(splits(folder)) or '(none)'}")
    try:
        rows = pq.read_table(path, schema=_SCHEMA).to_pylist()
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path} is damaged: {error}; build the data set again") from error
    return [_question(row) for row in rows]


def splits(folder: str | Path) -> Sequence[str]:
    """The splits that a data set folder has."""
    return sorted(path.stem for path in Path(folder, "questions").glob("*.parquet"))


def _path(folder: str | Path, split: str) -> Path:
    return Path(folder, "questions", f"{split}.parquet")


def _row(question: Question) -> dict[str, Any]:
    return {
        "id": question.id,
        "image": question.image,
        "text": question.text,
        "answers": list(question.answers),
        "range": list(question.range) if question.range is not None else None,
        "answer_type": question.answer_type,
        "split": question.split,
        "requires_retrieval": question.requires_retrieval,
        "entity_ids": list(question.entity_ids),
        "evidence": [{"entry_id": e.entry_id, "section": e.section} for e in question.evidence],
        "meta": json.dumps(dict(question.meta), sort_keys=True, ensure_ascii=False),
    }


def _question(row: dict[str, Any]) -> Question:
    low_high = row["range"]
    return Question(
        id=row["id"],
        image=row["image"],
        text=row["text"],
        answers=tuple(row["answers"]),
        range=(low_high[0], low_high[1]) if low_high else None,
        answer_type=row["answer_type"],
        split=row["split"],
        requires_retrieval=row["requires_retrieval"],
        entity_ids=tuple(row["entity_ids"]),
        evidence=tuple(Evidence(e["entry_id"], e["section"]) for e in row["evidence"]),
        meta=json.loads(row["meta"]),
    )
