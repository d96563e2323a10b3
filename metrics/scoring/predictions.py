"""Readers of prediction files in the layouts of other projects. A row lists possible ids of its question.

Layouts are recognized by their fields, in JSONL, a JSON array, or a folder of `split_*.json`:

- InfoSeek, EchoSight, ReflectiVA on InfoSeek: `data_id`, `prediction`
- E-VQA as `submission` writes it: `data_id`, `candidate` and the other arguments of `evaluate_example`
- VQA's challenge, OK-VQA: `question_id` (a number), `answer`
- ReflectiVA on E-VQA: `question`, `reference`, `answers`, `question_type`, no id
- PMSR: `record_id`, `question_id`, `trajectory` with `final_answer` and retrieved texts
- EchoSight's retrieval results, one JSON object: id -> `retrieved_entries`; they hold no answers
- reflectune's own traces: `question_id`, `pipeline`, `answer`, in JSONL or Parquet
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from reflectune.core.errors import UserError
from reflectune.core.parquet import open_parquet, stream_rows

Row = Mapping[str, Any]

_TRACE_COLUMNS = pa.schema(
    [
        ("question_id", pa.string()),
        ("pipeline", pa.string()),
        ("answer", pa.string()),
        ("hits", pa.list_(pa.struct([("entry_id", pa.string())]))),
    ]
)
"""Columns read from traces in Parquet."""

_LEFT_OUT = "results"
"""ReflectiVA's own reader leaves out files of a folder whose names contain this: they are its scores."""


@dataclass(frozen=True)
class Prediction:
    """Row of a prediction file.

    Attributes:
        where: `FILE:LINE` (in an array, the row's number), for errors.
        ids: Possible ids of the question in its data set, most likely first; () if the layout has none.
        answer: The answer; None if the layout holds none.
        question: The question's text, in layouts without an id.
        references: Accepted answers, in layouts without an id.
        retrieved: Retrieved articles, best first, in layouts that have them.
        row: The row itself, in PMSR's layout.
    """

    where: str
    ids: tuple[str, ...] = ()
    answer: str | None = None
    question: str = ""
    references: tuple[str, ...] = ()
    retrieved: tuple[str, ...] = ()
    row: Row = field(default_factory=dict)


@dataclass(frozen=True)
class PredictionFile:
    """Rows of a file and its layout: a key of `_LAYOUTS`."""

    layout: str
    rows: tuple[Prediction, ...]


def read_predictions(path: str | Path) -> PredictionFile:
    """Read a prediction file, or a folder of ReflectiVA's `split_*.json`.

    Raises:
        UserError: The file is missing or empty, a line is cut off, or a field is missing or of another type. The
            error names file, line, id and field.
    """
    path = Path(path)
    layout = ""
    predictions = []
    pipelines: set[str] = set()
    for where, row in (pair for file in prediction_files(path) for pair in _raw_rows(file)):
        layout = layout or _layout(where, row)
        pipelines.add(str(row.get("pipeline")))
        predictions.append(_read(_LAYOUTS[layout][1], where, row))
    if not predictions:
        raise UserError(f"{path} holds no predictions")
    if layout == "traces" and len(pipelines) > 1:
        raise UserError(f"{path} has traces of {', '.join(sorted(pipelines))}; give the file of one of them")
    return PredictionFile(layout, tuple(predictions))


def _read(read: Callable[[str, Row], Prediction], where: str, row: Row) -> Prediction:
    try:
        return read(where, row)
    except KeyError as error:
        raise UserError(f"{where}: field {error} is missing, which the first row has; each row needs one") from error


def prediction_files(path: Path) -> list[Path]:
    """Return the files that `read_predictions` reads: the file itself, or those of a folder."""
    if not path.is_dir():
        return [path]
    parts = sorted(path.glob("split_*.json"))
    others = (file for file in path.glob("*.json*") if _LEFT_OUT not in file.name and file.name[0] != ".")
    files = parts or sorted(others)
    if not files:
        raise UserError(f"{path} has no .json file of predictions; point at the file, or at ReflectiVA's output folder")
    return files


def _raw_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Return (FILE:LINE, row) of a JSONL file without a log's header, a JSON array, or an object by `data_id`."""
    if path.suffix.lower() == ".parquet":
        yield from _table_rows(path)
        return
    try:
        for number, row in _lines(path) if _is_jsonl(path) else _whole(path):
            if set(_mapping(f"{path}:{number}", row)) != {"fingerprint"}:
                yield f"{path}:{number}", row
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} can't be read as a prediction file: {error}") from error


def _is_jsonl(path: Path) -> bool:
    """Return True if the first line is a complete JSON value, and other lines follow."""
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        first, second = (next((line for line in file if line.strip()), "") for _ in range(2))
    try:
        json.loads(first)
    except (ValueError, RecursionError):
        return not first
    return bool(second)


def _whole(path: Path) -> Iterable[tuple[int, Any]]:
    """Return the number and the value of each row of an array or an object; of each line if it is neither."""
    text = path.read_text(encoding="utf-8-sig")
    try:
        return enumerate(_members(json.loads(text)), start=1)
    except json.JSONDecodeError as error:
        if text.lstrip().startswith("["):
            raise UserError(
                f"{path}:{error.lineno}: not valid JSON ({error.msg}); was the file truncated? Copy it again"
            ) from error
        return _lines(path)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, 5,000 brackets
        raise UserError(f"{path}: not valid JSON ({error}); correct it") from error


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each line that isn't empty."""
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, _parsed(f"{path}:{number}", line)


def _members(whole: Any) -> list[Any]:
    """Return the rows of a whole file: an array, an object of objects by `data_id`, or one row."""
    if not isinstance(whole, dict):
        return whole if isinstance(whole, list) else [whole]
    is_row = any(all(key in whole for key in fields) for fields, _ in _LAYOUTS.values())
    if is_row or not all(isinstance(row, dict) for row in whole.values()):
        return [whole]
    return [{"data_id": key, **row} for key, row in whole.items()]


def _table_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Return (FILE:ROW, row) of traces in Parquet, without their passages."""
    with open_parquet(path, "give the .parquet file of a pipeline's traces") as file:
        for number, row in enumerate(stream_rows(file, _TRACE_COLUMNS), start=1):
            yield f"{path}:{number}", row


def _parsed(where: str, line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        if not line.lstrip().startswith(("{", "[")):  # a CSV file
            fix = 'write a line {"data_id": …, "prediction": …} for each question'
            raise UserError(f"{where}: not a JSON object; {fix}") from error
        raise UserError(f"{where}: not valid JSON ({error}); was the line truncated? Fix or delete it") from error


def _mapping(where: str, row: Any) -> Row:
    if not isinstance(row, dict):
        raise UserError(f"{where}: expected an object with an id and a prediction, found {type(row).__name__}")
    return row


def _layout(where: str, row: Row) -> str:
    for name, (fields, _) in _LAYOUTS.items():
        if all(key in row for key in fields):
            return name
    known = "; ".join(f"{name}: {', '.join(fields)}" for name, (fields, _) in _LAYOUTS.items())
    raise UserError(
        f"{where}: fields {', '.join(row) or '(none)'} fit no known layout ({known}); write `data_id` and `prediction`"
    )


def _with_answer(where: str, row: Row, field: str) -> Prediction:
    key = _text(where, row, "data_id", "")
    return Prediction(where, (key,), _text(where, row, field, key))


def _vqa(where: str, row: Row) -> Prediction:
    number = row["question_id"]
    if type(number) is not int:
        raise UserError(f"{where}: field `question_id`: expected a whole number, found {number!r}; each row needs one")
    return Prediction(where, (str(number),), _text(where, row, "answer", str(number)))


def _reflectiva(where: str, row: Row) -> Prediction:
    references = row.get("reference")
    if not isinstance(references, list) or not all(isinstance(reference, str) for reference in references):
        raise UserError(f"{where}: field `reference`: expected a list of texts, found {references!r}")
    question = _text(where, row, "question", "")
    return Prediction(
        where, (), _text(where, row, "answers", question), question=question, references=tuple(references)
    )


def _pmsr(where: str, row: Row) -> Prediction:
    trajectory = _mapping(where, row["trajectory"])
    ids = tuple(str(row[key]) for key in ("record_id", "question_id") if row.get(key) not in (None, ""))
    answer = trajectory.get("final_answer") or row.get("prediction") or ""
    if not ids or not isinstance(answer, str):
        raise UserError(
            f"{where}: expected `record_id` or `question_id`, and text as `final_answer`; found {ids} and {answer!r}"
        )
    return Prediction(where, ids, answer, row=row)


def _echosight_retrieval(where: str, row: Row) -> Prediction:
    key = "reranked_entries" if row.get("reranked_entries") else "retrieved_entries"
    entries = row[key]
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise UserError(f"{where}: id {row['data_id']}: field `{key}`: expected a list of URLs")
    return Prediction(where, (str(row["data_id"]),), retrieved=tuple(entries))


def _trace(where: str, row: Row) -> Prediction:
    key = _text(where, row, "question_id", "")
    hits = [hit["entry_id"] for hit in row.get("hits") or [] if isinstance(hit, dict) and "entry_id" in hit]
    return Prediction(where, (key,), _text(where, row, "answer", key), retrieved=tuple(hits))


def _text(where: str, row: Row, key: str, row_id: str) -> str:
    value = row.get(key)
    if isinstance(value, str) and (value or key not in ("data_id", "question_id")):
        return value
    who = f" id {row_id}:" if row_id else ""
    fix = "write answers as text" if key in ("prediction", "candidate", "answer", "answers") else "each row needs one"
    raise UserError(f"{where}:{who} field `{key}`: expected text, found {value!r}; {fix}")


_LAYOUTS: dict[str, tuple[tuple[str, ...], Callable[[str, Row], Prediction]]] = {
    "pmsr": (("trajectory",), _pmsr),
    "echosight_retrieval": (("data_id", "retrieved_entries"), _echosight_retrieval),
    "data_id": (("data_id", "prediction"), partial(_with_answer, field="prediction")),
    "evqa": (("data_id", "candidate"), partial(_with_answer, field="candidate")),
    "reflectiva_evqa": (("question", "reference", "answers"), _reflectiva),
    "traces": (("question_id", "pipeline"), _trace),
    "vqa": (("question_id", "answer"), _vqa),
}
