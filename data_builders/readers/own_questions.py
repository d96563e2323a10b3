"""Questions of the user's own: JSONL, CSV, Parquet, or anything that `datasets` loads, with a map of columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, get_args

from reflectune.core.errors import UserError
from reflectune.core.types import AnswerType, Question
from reflectune.data_builders.readers.base import (
    Images,
    Reject,
    Row,
    each,
    flag,
    number,
    one_of,
    read_csv,
    read_json_array,
    read_jsonl,
    read_parquet,
    stop,
    text,
    texts,
)

FIELDS = ("id", "image", "question", "answers", "range", "answer_type", "split", "requires_retrieval", "entity_ids")
"""Names of the columns, and the keys of a map of columns. `id`, `image` and `question` alone are needed."""

_SEPARATOR = "|"
_KINDS = {".jsonl": read_jsonl, ".csv": read_csv, ".parquet": read_parquet, ".json": read_json_array}


def questions(
    source: Path | Mapping[str, Any],
    *,
    split: str,
    images: Images,
    reject: Reject = stop,
    columns: Mapping[str, str] | None = None,
    meta: tuple[str, ...] | list[str] = (),
) -> Iterator[Question]:
    """The user's questions.

    In a CSV file a list (`answers`, `range`, `entity_ids`) is written with `|` between its items. The answer type,
    where no column says it, is `numerical` with a range, `multi_answer` with a `&&` in an answer, else `string`.

    Args:
        source: A file `*.jsonl`, `*.csv`, `*.parquet` or `*.json` (`.gz` too), a folder of Parquet files, or
            `{"load_dataset": NAME, "config": …, "split": …}` for a set on the Hub or a folder that `datasets` loads.
        split: What the questions' split is called, unless a column says it.
        images: Where paths of images start; an image may also be the bytes of a file.
        reject: What to do with a bad row.
        columns: The user's column for each of `FIELDS`; those left out are called as the fields are.
        meta: Further columns to carry along in `Question.meta`.

    Raises:
        UserError: A key of `columns` is no field, the source is of no known kind, or the image column holds URLs.
    """
    unknown = set(columns or {}) - set(FIELDS)
    if unknown:
        raise UserError(f"`columns` has the keys {', '.join(sorted(unknown))}; the fields are {', '.join(FIELDS)}")
    make = partial(_question, split=split, images=images, columns=dict(columns or {}), meta=tuple(meta))
    return each(_rows(source, reject), make, reject)


def _rows(source: Path | Mapping[str, Any], reject: Reject) -> Iterator[tuple[int, Row]]:
    if isinstance(source, Mapping):
        return _loaded(source)
    if source.is_dir():
        return read_parquet(source, reject)
    name = source.name.removesuffix(".gz")
    kind = next((read for suffix, read in _KINDS.items() if name.endswith(suffix)), None)
    if kind is None:
        raise UserError(f"{source}: questions are read from {', '.join(_KINDS)} (also `.gz`), or by `load_dataset`")
    return kind(source, reject)


def _loaded(source: Mapping[str, Any]) -> Iterator[tuple[int, Row]]:
    """A set that `datasets` loads, as a stream; images stay encoded."""
    unknown = set(source) - {"load_dataset", "config", "split"}
    if unknown or "load_dataset" not in source:
        raise UserError(f"`load_dataset` takes the keys load_dataset, config and split; found {', '.join(source)}")
    import datasets  # slow to import, and few need it

    name, part = str(source["load_dataset"]), str(source.get("split", "train"))
    try:
        stream = datasets.load_dataset(name, source.get("config"), split=part, streaming=True)
    except (ValueError, OSError) as error:
        raise UserError(f"`datasets` can't load {name}, split {part}: {' '.join(str(error).split())[:300]}") from error
    for column, feature in (stream.features or {}).items():
        if isinstance(feature, datasets.Image):
            stream = stream.cast_column(column, datasets.Image(decode=False))
    for line, values in enumerate(stream, 1):
        yield line, Row(values, name, line)


def _question(row: Row, *, split: str, images: Images, columns: Mapping[str, str], meta: tuple[str, ...]) -> Question:
    absent = [f"`{theirs}` (for {ours})" for ours, theirs in columns.items() if theirs not in row]
    if absent:
        problem = f"has no column {', '.join(absent)}; it has {', '.join(map(str, row))}"
        raise row.bad("", problem, "correct `columns`, or the file")
    fields = Row({field: row.get(columns.get(field, field)) for field in FIELDS}, row.file, row.line, "id")
    if isinstance(fields["id"], int):
        fields["id"] = str(fields["id"])
    answers, limits = _answers(fields), _range(fields)
    kind = one_of(fields, "answer_type", get_args(AnswerType), default="")
    return Question(
        id=text(fields, "id"),
        image=images.keep(fields, "image", fields["image"]),
        text=text(fields, "question"),
        answers=answers,
        range=limits,
        answer_type=kind or _kind(answers, limits),  # type: ignore[arg-type]
        split=text(fields, "split", default=split),
        requires_retrieval=None if fields["requires_retrieval"] in (None, "") else flag(fields, "requires_retrieval"),
        entity_ids=texts(_listed(fields, "entity_ids"), "entity_ids", default=()),
        meta={column: str(row[column]) for column in meta if row.get(column) not in (None, "")},
    )


def _answers(row: Row) -> tuple[str, ...]:
    value = row["answers"]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return (str(value),)
    return texts(_listed(row, "answers"), "answers", default=())


def _range(row: Row) -> tuple[float, float] | None:
    if row["range"] in (None, "", []):
        return None
    values = _listed(row, "range")["range"]
    if not isinstance(values, (list, tuple)) or len(values) != 2:
        raise row.bad("range", f"is {values!r}", "it should be the lowest and the highest accepted number")
    ends = Row({"id": row["id"], "range": values[0], "end": values[1]}, row.file, row.line)
    low, high = number(ends, "range"), number(Row({**ends, "range": ends["end"]}, row.file, row.line), "range")
    if low > high:
        raise row.bad("range", f"begins at {low:g} and ends at {high:g}", "put the lowest number first")
    return low, high


def _listed(row: Row, field: str) -> Row:
    """The row with a CSV's `a|b` in this field taken apart."""
    value = row[field]
    if not isinstance(value, str) or not str(row.file).removesuffix(".gz").endswith(".csv"):
        return row
    return Row({**row, field: [part for part in value.split(_SEPARATOR) if part.strip()]}, row.file, row.line, "id")


def _kind(answers: tuple[str, ...], limits: tuple[float, float] | None) -> AnswerType:
    if limits is not None:
        return "numerical"
    return "multi_answer" if any("&&" in answer for answer in answers) else "string"
