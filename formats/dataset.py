"""A data set folder: questions by split, images, a knowledge base, and a manifest.

A split is one file, `questions/SPLIT.parquet`, or a folder of parts, `questions/SPLIT/part-*.parquet`. Image paths
start at the manifest's `image_root`, else at the folder itself. The knowledge base lies in the manifest's
`knowledge_root`, else in the folder `knowledge`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from pydantic import model_validator

from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.durable import read_record
from reflectune.core.errors import UserError
from reflectune.core.hashing import file_fingerprint
from reflectune.core.parquet import open_parquet, stream_rows, write_parquet
from reflectune.core.paths import listed_file, resolve_below
from reflectune.core.rows import from_row, schema_of, to_row
from reflectune.core.types import METRICS, Metric, Question
from reflectune.core.values import Seed, SplitName, short
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.formats.parts import is_in_part
from reflectune.formats.questions import malformed

MANIFEST = "dataset.json"
PROBES, LOOK_ALIKES = "probes.jsonl", "look_alikes.json"
"""Optional files of a data set that measure relevance: passages of its own, and look-alikes of each entry."""
_PARTS = "*/part-*.parquet"


class DatasetKey(Settings):
    """The data set that a command reads."""

    dataset: str = setting("", "data set folder (questions, images, knowledge base)", hashed=False)

    @cross_check
    def dataset_problems(self) -> Iterable[str]:
        """Return the problems of the data set's folder."""
        if not self.dataset:
            return ["`dataset` is needed: a data set folder, e.g. the output of convert"]
        if not Path(self.dataset, MANIFEST).is_file():
            return [f"`dataset`: {self.dataset} has no {MANIFEST}; give a folder that build_world or convert wrote"]
        return []


class SplitKey(DatasetKey):
    """A split of a data set."""

    split: SplitName = setting("train", "split of the questions", needed="")

    @cross_check
    def split_problems(self) -> Iterator[str]:
        """Yield the problem of a split that the data set lacks."""
        yield from split_issues("split", self.dataset, [self.split])


class SplitsKeys(DatasetKey):
    """Several splits of a data set, and the questions drawn from each."""

    splits: list[SplitName] = setting([], "splits to answer; if unset, all but train", hashed=False)
    limit: int | None = setting(None, "questions per split, drawn by seed; all if unset", ge=1, hashed=False)
    seed: Seed = setting(0, "seed of sampling and of bootstrap intervals", hashed=False)

    @model_validator(mode="after")
    def _choose_splits(self) -> Self:
        """Set the default splits."""
        self.splits = self.splits or held_out_splits(self.dataset)
        return self

    @cross_check
    def split_problems(self) -> Iterator[str]:
        """Yield the problems of splits that the data set lacks."""
        yield from split_issues("splits", self.dataset, self.splits)


@dataclass(frozen=True)
class Dataset:
    """A data set folder, read on demand.

    Attributes:
        root: The folder.
        part: Restricts the questions to this part, e.g. `1/2` (`is_in_part`); "" for all.
    """

    root: Path
    part: str = ""

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The content of dataset.json."""
        return load_manifest(self.root)

    @cached_property
    def image_roots(self) -> tuple[Path, ...]:
        """The folders that may hold its images. Relative paths start at the first."""
        return image_roots(self.root)

    @property
    def metric(self) -> Metric:
        """The metric of the data set; UserError if the manifest names none or an unknown one."""
        metric = self.manifest.get("metric")
        if metric not in METRICS:
            found = "has no `metric`" if metric is None else f"has the unknown `metric` {short(str(metric))}"
            raise UserError(
                f"{self.root / MANIFEST} {found}; set it to one of {', '.join(METRICS)}, or convert the data set again"
            )
        name: Metric = metric
        return name

    @property
    def fingerprint(self) -> str:
        """The hash of the whole data set's content that its builder wrote down."""
        return str(self.manifest["fingerprint"])

    def split_fingerprint(self, split: str) -> str:
        """Hash the files of a split, which may have been edited since the data set was built."""
        return file_fingerprint(*(path for path, _ in _parts(self.root, split, self.manifest)))

    @property
    def knowledge_folder(self) -> Path:
        """The folder of its knowledge base, which need not exist."""
        return self.root / self.manifest.get("knowledge_root", "knowledge")

    @cached_property
    def knowledge(self) -> KnowledgeBase:
        """The knowledge base."""
        return KnowledgeBase(self.knowledge_folder)

    def questions(self, split: str) -> list[Question]:
        """Read the questions of a split, in the order of the file."""
        return list(self.stream(split))

    def stream(self, split: str) -> Iterator[Question]:
        """Yield the questions of a split; memory holds a few thousand."""
        return (question for question in stream_questions(self.root, split) if is_in_part(question, self.part))


def image_roots(folder: str | Path) -> tuple[Path, ...]:
    """Return the folders that may hold the images of a data set: its own, and the manifest's `image_root`.

    Relative paths start at the first. A folder without a manifest has only its own.
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
            raise UserError(f"{Path(folder) / MANIFEST}: `counts` of {split} are not numbers; build the data set again")
    for split, parts in manifest.get("parts", {}).items():
        if not isinstance(parts, list) or not all(
            isinstance(part, dict) and {"file", "rows"} <= {*part} for part in parts
        ):
            raise UserError(f"{Path(folder) / MANIFEST}: `parts` of {split} are not files; build the data set again")
    return manifest


def companion(folder: Path, manifest: Mapping[str, Any], name: str) -> Path | None:
    """Return the path of an optional file of a data set; None if it has none of that name.

    Args:
        folder: Folder of the data set.
        manifest: The content of dataset.json; `files` may hold hashes of files.
        name: Name of the file.

    Raises:
        UserError: The file is missing or differs from the manifest's hash.
    """
    path, expected = folder / name, manifest.get("files", {}).get(name)
    if expected is not None and (not path.is_file() or file_fingerprint(path) != expected):
        state = "changed" if path.is_file() else "missing"
        raise UserError(f"{path} is {state} since the data set was built; copy or build the data set again")
    return path if path.is_file() else None


def write_questions(folder: str | Path, split: str, questions: Iterable[Question]) -> Path:
    """Write a split's questions as one Parquet file; it appears whole or not at all."""
    path = Path(folder, "questions", f"{split}.parquet")
    write_question_file(path, list(questions))
    return path


def write_question_file(path: Path, questions: Sequence[Question]) -> None:
    """Write one file of questions, a whole split or a part of one; it appears whole or not at all."""
    write_parquet(path, pa.Table.from_pylist([to_row(question) for question in questions], schema=schema_of(Question)))


def stream_questions(folder: str | Path, split: str) -> Iterator[Question]:
    """Yield a split's questions, in order; memory holds a few thousand of them, and a hash of every id.

    Raises:
        UserError: The split doesn't exist (the message names those that do), a file of it is damaged or differs from
            the manifest, a row of it is not a question, or two rows have one id.
    """
    manifest = load_manifest(folder) if Path(folder, MANIFEST).is_file() else {}
    image_root = manifest.get("image_root", "")
    seen: set[int] = set()
    for path, rows in _parts(Path(folder), split, manifest):
        count = 0
        with open_parquet(path, "build the data set again") as file:
            for row in stream_rows(file, schema_of(Question), batch_size=4096):
                count += 1
                question = _question(row, image_root, path)
                if (key := hash(question.id)) in seen:
                    raise UserError(f"{folder}: two questions of {split} have the id {question.id}; ids must be unique")
                seen.add(key)
                yield question
        if rows is None and not count:
            rows = sum(manifest.get("counts", {}).get(split, {}).values())  # a user may drop questions, but not all
        if rows is not None and count != rows:
            raise UserError(f"{path} holds {count:,} questions, {MANIFEST} says {rows:,}; build the data set again")


def splits(folder: str | Path) -> Sequence[str]:
    """Return the splits of a data set folder."""
    questions = Path(folder, "questions")
    return sorted({path.stem for path in questions.glob("*.parquet")} | {p.parent.name for p in questions.glob(_PARTS)})


def held_out_splits(folder: str | Path) -> list[str]:
    """Return all splits of a data set folder but `train`, or `train` if it is the only one."""
    names = splits(folder)
    return [name for name in names if name != "train"] or [*names]


def split_issues(key: str, folder: str | Path, names: Iterable[str]) -> list[str]:
    """Return one sentence for each split that a config's key names and the data set lacks.

    Returns nothing for a folder that is not a data set or has no questions.
    """
    if not folder or not Path(folder, MANIFEST).is_file():
        return []
    known = splits(folder)
    missing = [name for name in names if name and known and name not in known]
    return [f"`{key}`: {folder} has no split {short(name)}; it has {', '.join(known)}" for name in missing]


def _parts(folder: Path, split: str, manifest: dict[str, Any]) -> list[tuple[Path, int | None]]:
    """Return the files of a split, in order, each with its number of rows if the manifest has it."""
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


def _below(image_root: str, path: Any) -> Any:
    """Join a path to a folder. Return an empty path, and a value that is not a path, unchanged."""
    return str(Path(image_root, path)) if path and isinstance(path, str) else path


def _question(row: dict[str, Any], image_root: str, path: Path) -> Question:
    """Return the question of a row; raise UserError if the row is not a question."""
    if image_root:
        row["image"] = _below(image_root, row["image"])
        if isinstance(row["more_images"], list):
            row["more_images"] = [_below(image_root, path) for path in row["more_images"]]
    try:
        question = from_row(Question, row)
    except ValueError as error:
        raise UserError(f"{path}: the row {row['id']}: {error}; build the data set again") from error
    if problem := malformed(question):
        field, found, fix = problem
        raise UserError(f"{path}: the row {row['id']}: `{field}` {found}; {fix}, or build the data set again")
    return question
