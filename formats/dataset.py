"""A data set folder: questions by split, images, a knowledge base, and the manifest that says what they are.

A split is one file, `questions/SPLIT.parquet`, or a folder of parts, `questions/SPLIT/part-*.parquet`. Where the
manifest has an `image_root`, image paths start there, else at the folder itself; where it has a `knowledge_root`, the
knowledge base is there, else in the folder `knowledge`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from reflectune.core.durable import read_record
from reflectune.core.errors import UserError
from reflectune.core.hashing import file_fingerprint
from reflectune.core.parquet import open_parquet, stream_rows, write_parquet
from reflectune.core.paths import listed_file, resolve_below
from reflectune.core.types import Evidence, FollowUp, Question
from reflectune.core.values import short
from reflectune.data_builders.readers.registry import METRIC_OF
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.formats.parts import is_in_part
from reflectune.formats.questions import malformed
from reflectune.metrics.scoring.registry import METRICS, Metric, find_metric_name

MANIFEST = "dataset.json"
PROBES, LOOK_ALIKES = "probes.jsonl", "look_alikes.json"
"""What a data set may bring for measuring relevance: passages of its own, and which entries are alike."""
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
        ("follow_ups", pa.list_(pa.struct([("question", pa.string()), ("answer", pa.string())]))),
    ]
)
_LATER = frozenset({"follow_ups"})
"""Columns that older data sets lack; their questions have the field's default."""


@dataclass(frozen=True)
class Dataset:
    """A data set folder. Nothing is read before it is asked for.

    Attributes:
        root: The folder.
        part: Of its questions those in this part alone, e.g. `1/2` (`is_in_part`); "": all.
    """

    root: Path
    part: str = ""

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The content of dataset.json."""
        return load_manifest(self.root)

    @cached_property
    def image_roots(self) -> tuple[Path, ...]:
        """The folders that its image paths may lead into; relative ones start at the first."""
        return image_roots(self.root)

    @property
    def metric(self) -> Metric:
        """The metric that the data set is scored by; UserError if it can't be told."""
        return metric_of(self.manifest, self.root / MANIFEST)

    @property
    def fingerprint(self) -> str:
        """What the whole data set's content hashes to, as its builder wrote it down."""
        return str(self.manifest["fingerprint"])

    @property
    def knowledge_folder(self) -> Path:
        """Where its knowledge base is: as the manifest says, else the folder `knowledge/`. It need not exist."""
        return self.root / self.manifest.get("knowledge_root", "knowledge")

    @cached_property
    def knowledge(self) -> KnowledgeBase:
        """The knowledge base."""
        return KnowledgeBase(self.knowledge_folder)

    def questions(self, split: str) -> list[Question]:
        """The questions of a split, in the order of the file."""
        return list(self.stream(split))

    def stream(self, split: str) -> Iterator[Question]:
        """The questions of a split one after the other; memory holds a few thousand."""
        return (question for question in stream_questions(self.root, split) if is_in_part(question, self.part))


def image_roots(folder: str | Path) -> tuple[Path, ...]:
    """The folders that a data set's image paths may lead into: its own, and the `image_root` that its manifest names.

    Relative paths start at the first.

    Args:
        folder: The data set; one without a manifest has its own folder alone.
    """
    manifest = load_manifest(folder) if Path(folder, MANIFEST).is_file() else {}
    named = manifest.get("image_root", "")
    return (Path(folder), Path(folder, named)) if named else (Path(folder),)


def load_manifest(folder: str | Path) -> dict[str, Any]:
    """Read dataset.json.

    Raises:
        UserError: It is missing, is not JSON, or has no fingerprint.
    """
    keys = {"fingerprint": str, "image_root": str, "knowledge_root": str, "parts": dict, "counts": dict, "files": dict}
    manifest = read_record(Path(folder) / MANIFEST, "the data set's manifest", **keys)
    if "fingerprint" not in manifest:
        raise UserError(f"{Path(folder) / MANIFEST} has no `fingerprint`; build the data set again")
    for split, kinds in manifest.get("counts", {}).items():
        if not isinstance(kinds, dict) or not all(isinstance(count, int) for count in kinds.values()):
            raise UserError(f"{Path(folder) / MANIFEST}: `counts` of {split} are no numbers; build the data set again")
    return manifest


def companion(folder: Path, manifest: Mapping[str, Any], name: str) -> Path | None:
    """A file beside a data set's questions; None if it has none of that name.

    Args:
        folder: The data set's.
        manifest: The content of dataset.json; under `files` it may say what files hash to.
        name: The file's.

    Raises:
        UserError: The file is missing or another one than the manifest says.
    """
    path, expected = folder / name, manifest.get("files", {}).get(name)
    if expected is not None and (not path.is_file() or file_fingerprint(path) != expected):
        state = "changed" if path.is_file() else "missing"
        raise UserError(f"{path} is {state} since the data set was built; copy or build the data set again")
    return path if path.is_file() else None


def built_manifest(folder: Path, settings: str) -> dict[str, Any] | None:
    """The manifest of a data set that was built into a folder by these settings; None if there is none yet.

    Args:
        folder: The data set's.
        settings: The hash that its manifest has under `settings`.

    Raises:
        UserError: The folder holds another data set.
    """
    if not (folder / MANIFEST).exists():
        return None
    manifest = load_manifest(folder)
    if manifest.get("settings") != settings:
        name = manifest.get("name", "without a name")
        raise UserError(f"{folder} holds another data set ({name}); choose another output folder")
    return manifest


def metric_of(manifest: Mapping[str, Any], where: str | Path) -> Metric:
    """The metric that a manifest says its data set is scored by.

    One without the key `metric`, written before there was one, is known by the reader that its questions were converted
    with, or as a drawn world (`looks`), which is scored as InfoSeek is.

    Args:
        manifest: The content of dataset.json.
        where: What it is called in an error.

    Raises:
        UserError: The manifest names no metric, or an unknown one, and its data set is not known either.
    """
    reader = (manifest.get("made_with") or {}).get("questions", "")
    said = manifest.get("metric") or METRIC_OF.get(reader) or ("infoseek" if manifest.get("looks") else None)
    if said is None:
        of = f"; the reader {reader} is of several sets" if reader else ""
        raise UserError(
            f'{where} does not say what its data set is scored by{of}: add `"metric": "NAME"` to it, or set `metric`; '
            f"NAME is one of {', '.join(METRICS)}"
        )
    try:
        return find_metric_name(said)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def write_questions(folder: str | Path, split: str, questions: Iterable[Question]) -> Path:
    """Write a split's questions as one Parquet file; it appears whole or not at all."""
    path = Path(folder, "questions", f"{split}.parquet")
    write_question_file(path, list(questions))
    return path


def write_question_file(path: Path, questions: Sequence[Question]) -> None:
    """Write one file of questions, a whole split or a part of one; it appears whole or not at all."""
    write_parquet(path, pa.Table.from_pylist([_row(question) for question in questions], schema=_SCHEMA))


def read_questions(folder: str | Path, split: str) -> list[Question]:
    """Read a split's questions.

    Raises:
        UserError: The split doesn't exist (the message names those that do), a file of it is damaged or is not the one
            that the manifest speaks of, a row of it is no question, or two rows have one id.
    """
    return list(stream_questions(folder, split))


def stream_questions(folder: str | Path, split: str) -> Iterator[Question]:
    """A split's questions, in order; memory holds a few thousand of them, and a hash of every id.

    Raises:
        UserError: As `read_questions`.
    """
    manifest = load_manifest(folder) if Path(folder, MANIFEST).is_file() else {}
    image_root = manifest.get("image_root", "")
    seen: set[int] = set()
    for path, rows in _parts(Path(folder), split, manifest):
        count = 0
        with open_parquet(path, "build the data set again") as file:
            held = file.schema_arrow.names
            columns = pa.schema([field for field in _SCHEMA if field.name in held or field.name not in _LATER])
            for row in stream_rows(file, columns, batch_size=4096):
                count += 1
                question = _checked(row, image_root, path)
                if (key := hash(question.id)) in seen:
                    raise UserError(f"{folder}: two questions of {split} have the id {question.id}; ids must be unique")
                seen.add(key)
                yield question
        if rows is None and not count:
            rows = sum(manifest.get("counts", {}).get(split, {}).values())  # who edits a split leaves some of it
        if rows is not None and count != rows:
            raise UserError(f"{path} holds {count:,} questions, {MANIFEST} says {rows:,}; build the data set again")


def splits(folder: str | Path) -> Sequence[str]:
    """The splits that a data set folder has."""
    questions = Path(folder, "questions")
    return sorted({path.stem for path in questions.glob("*.parquet")} | {p.parent.name for p in questions.glob(_PARTS)})


def split_issues(key: str, folder: str | Path, names: Iterable[str]) -> list[str]:
    """Which of the splits that a config's key names a data set hasn't, one sentence each.

    A folder that is no data set, and one without questions, are reported elsewhere.
    """
    if not folder or not Path(folder, MANIFEST).is_file():
        return []
    known = splits(folder)
    missing = [name for name in names if name and known and name not in known]
    return [f"`{key}`: {folder} has no split {short(name)}; it has {', '.join(known)}" for name in missing]


_PARTS = "*/part-*.parquet"


def _parts(folder: Path, split: str, manifest: dict[str, Any]) -> list[tuple[Path, int | None]]:
    """The files of a split, in order, and how many rows each has where the manifest says so."""
    whole = folder / "questions" / f"{split}.parquet"
    if whole.is_file():
        resolve_below(whole.absolute(), folder)
        return [(whole, None)]
    listed = manifest.get("parts", {}).get(split)
    if listed is not None:
        listed_parts = [
            (listed_file(folder, f"questions/{split}/{part['file']}", MANIFEST), part["rows"]) for part in listed
        ]
        missing = [path for path, _ in listed_parts if not path.is_file()]
        if missing:
            raise UserError(f"a part of the data set is missing: {missing[0]}; copy or build the data set again")
        return listed_parts
    parts = sorted(whole.with_suffix("").glob("part-*.parquet"))
    if not parts:
        raise UserError(f"{whole} not found; the data set has the splits {', '.join(splits(folder)) or '(none)'}")
    for path in parts:
        resolve_below(path.absolute(), folder)
    return [(path, None) for path in parts]


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
        "follow_ups": [{"question": later.question, "answer": later.answer} for later in question.follow_ups],
    }


def _checked(row: dict[str, Any], image_root: str, path: Path) -> Question:
    """The question of a row.

    Raises:
        UserError: It is no question; whatever wrote the file.
    """
    try:
        question = _question(row, image_root)
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise UserError(f"{path}: the row {row['id']} is no question ({error}); build the data set again") from error
    if problem := malformed(question):
        field, found, fix = problem
        raise UserError(f"{path}: the row {row['id']}: `{field}` {found}; {fix}, or build the data set again")
    return question


def _question(row: dict[str, Any], image_root: str) -> Question:
    low_high = row["range"]
    if low_high and len(low_high) != 2:
        raise ValueError(f"its range has {len(low_high)} ends")
    return Question(
        id=row["id"],
        image=str(Path(image_root, row["image"])) if image_root and row["image"] else row["image"],
        text=row["text"],
        answers=tuple(row["answers"]),
        range=(low_high[0], low_high[1]) if low_high else None,
        answer_type=row["answer_type"],
        split=row["split"],
        requires_retrieval=row["requires_retrieval"],
        entity_ids=tuple(row["entity_ids"]),
        evidence=tuple(Evidence(e["entry_id"], e["section"]) for e in row["evidence"]),
        meta=json.loads(row["meta"]),
        follow_ups=tuple(FollowUp(**later) for later in row.get("follow_ups") or ()),
    )
