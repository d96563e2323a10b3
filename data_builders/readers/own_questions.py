"""Questions of the user's own: JSONL, CSV, Parquet, or anything that `datasets` loads, with a map of columns."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, get_args

from reflectune.core.errors import UserError
from reflectune.core.rejected import BadRow, Reject, stop
from reflectune.core.types import AnswerType, Question
from reflectune.data_builders.readers.files import read_csv, read_jsonl, read_parquet
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.json_documents import read_json_array
from reflectune.data_builders.readers.rows import Placed, SourceRow, flag, number, one_of, placed, text, texts

FIELDS = ("id", "image", "question", "answers", "range", "answer_type", "split", "requires_retrieval", "entity_ids")
"""Names of the columns, and the keys of a map of columns."""

NEEDED = ("id", "image", "question")

_SEPARATOR = "|"
_LIST_AS_TEXT = re.compile(r"\[\s*(?:(?P<quote>['\"]).*['\"]|[-\d., ]+)\s*\]", re.DOTALL)
_KINDS = {".jsonl": read_jsonl, ".csv": read_csv, ".parquet": read_parquet, ".json": read_json_array}


def questions(
    source: Path | Mapping[str, Any],
    *,
    split: str,
    images: ImageFolder,
    reject: Reject = stop,
    columns: Mapping[str, str] | None = None,
    meta: tuple[str, ...] | list[str] = (),
    constants: Mapping[str, Any] | None = None,
    number_rows: bool = False,
) -> Iterator[Placed[Question]]:
    """The user's questions.

    In a CSV file a list (`answers`, `range`, `entity_ids`) is written with `|` between its items. The answer type,
    where no column says it, is `numerical` with a range, `multi_answer` with a `&&` in an answer, else `string`;
    `time` and `free_form` (an answer in sentences) must be said. Ids and answers may be numbers; a whole number is
    taken without a fraction, since tables store 1990 as 1990.0 where another row has none. A column that is nearly
    called like a field that is missing is an error.

    Args:
        source: A file `*.jsonl`, `*.csv`, `*.parquet` or `*.json` (`.gz` too), a folder of Parquet files, or
            `{"load_dataset": NAME, "config": …, "split": …}` for a set on the Hub or a folder that `datasets` loads.
        split: Name of the split of questions whose row has none.
        images: Where paths of images start; an image may also be the bytes of a file.
        reject: Called with each bad row.
        columns: The user's column for each of `FIELDS`; those left out are called as the fields are.
        meta: Further columns to carry along in `Question.meta`.
        constants: The value of a field in every row, for fields that the file has no column of, e.g. of captions
            `{answer_type: free_form, requires_retrieval: false}`.
        number_rows: Make ids of the file's name and the row's number, for a file that has none.

    Raises:
        UserError: A key of `columns` or `constants` is no field, no row has a column of `meta`, the source is of no
            known kind, or the image column holds URLs.
    """
    unknown = set(columns or {}) - set(FIELDS)
    if unknown:
        raise UserError(f"`columns` has the keys {', '.join(sorted(unknown))}; the fields are {', '.join(FIELDS)}")
    if beyond := set(constants or {}) - (set(FIELDS) - set(NEEDED)):
        may = ", ".join(field for field in FIELDS if field not in NEEDED)
        raise UserError(f"`constants` has the keys {', '.join(sorted(beyond))}; it may have {may}")
    read = partial(_checked, split=split, images=images, columns=dict(columns or {}), meta=tuple(meta))

    held: set[str] = set()

    def make(row: SourceRow) -> Question:
        held.update(column for column in meta if column in row)
        _complete(row, columns or {}, constants or {}, number_rows=number_rows)
        return read(row)

    return _with_all(meta, held, placed(_rows(source, reject), make, reject), source)


def _with_all(
    meta: Sequence[str], held: Set[str], stream: Iterator[Placed[Question]], source: Path | Mapping[str, Any]
) -> Iterator[Placed[Question]]:
    """The stream; at its end an error if no row had a column of `meta`, as `held` then tells."""
    count = 0
    for placed_question in stream:
        count += 1
        yield placed_question
    if count and (missing := [column for column in meta if column not in held]):
        raise UserError(f"`meta` names `{'`, `'.join(missing)}`, which no row of {source} has; correct it")


def _rows(source: Path | Mapping[str, Any], reject: Reject) -> Iterator[tuple[int, SourceRow]]:
    if isinstance(source, Mapping):
        return _loaded(source)
    if source.is_dir():
        return read_parquet(source, reject)
    name = source.name.lower().removesuffix(".gz")
    kind = next((read for suffix, read in _KINDS.items() if name.endswith(suffix)), None)
    if kind is None:
        raise UserError(f"{source}: questions are read from {', '.join(_KINDS)} (also `.gz`), or by `load_dataset`")
    return kind(source, reject)


def _loaded(source: Mapping[str, Any]) -> Iterator[tuple[int, SourceRow]]:
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
        yield line, SourceRow(values, name, line)


def _complete(row: SourceRow, columns: Mapping[str, str], constants: Mapping[str, Any], *, number_rows: bool) -> None:
    """Put what a file has no column of into a row: an id by its number, and values that all rows have."""
    row.id_field = columns.get("id", "id")
    numbered = {"id": f"{Path(str(row.file)).name.split('.')[0]}-{row.line}"} if number_rows else {}
    for field, value in {**numbered, **constants}.items():
        theirs = columns.get(field, field)
        if theirs in row:
            said = "number_rows" if field == "id" else "constants"
            raise row.bad(theirs, f"is a column of the file, and `{said}` gives it too", f"leave it out of `{said}`")
        row[theirs] = value


def _checked(
    row: SourceRow, *, split: str, images: ImageFolder, columns: Mapping[str, str], meta: tuple[str, ...]
) -> Question:
    """The question of a row; an error names the user's column."""
    row.id_field = columns.get("id", "id")
    absent = [f"`{theirs}` (for {ours})" for ours, theirs in columns.items() if theirs not in row]
    if absent:
        problem = f"has no column {', '.join(absent)}; it has {', '.join(map(str, row))}"
        raise row.bad("", problem, "correct `columns`, or the file")
    field, near = _missing(tuple(row), tuple(columns.items()), meta)
    if near:
        fix = f"rename it, map it by `columns: {{{field}: {near}}}`, or name it in `meta`"
        raise row.bad(field, f"is missing, and there is a column `{near}`", fix)
    if field:
        problem = f"is missing (the row has {', '.join(map(str, row)) or 'no fields'})"
        raise row.bad(field, problem, "rename your column, or say in `columns` what it is called")
    try:
        return _question(row, split=split, images=images, columns=columns, meta=meta)
    except BadRow as error:
        theirs = columns.get(error.field, error.field)
        raise type(error)(error.file, error.line, error.row_id, theirs, error.problem, error.fix) from error


@lru_cache(maxsize=256)
def _missing(names: tuple[str, ...], columns: tuple[tuple[str, str], ...], meta: tuple[str, ...]) -> tuple[str, str]:
    """The first field that is missing, and the unknown column with nearly its name; "" for what there is not.

    A field that isn't needed counts as missing only if there is such a column: it was misspelt.
    """
    mapped = dict(columns)
    unknown = [name for name in names if name not in (*FIELDS, *mapped.values(), *meta)]
    for field in FIELDS:
        if field not in names and field not in mapped:
            (near,) = difflib.get_close_matches(field, unknown, n=1, cutoff=0.8) or [""]
            if near or field in NEEDED:
                return field, near
    return "", ""


def _question(
    row: SourceRow, *, split: str, images: ImageFolder, columns: Mapping[str, str], meta: tuple[str, ...]
) -> Question:
    fields = SourceRow({field: row.get(columns.get(field, field)) for field in FIELDS}, row.file, row.line, "id")
    if isinstance(fields["id"], int):
        fields["id"] = str(fields["id"])
    answers, limits = _texts(fields, "answers"), _range(fields)
    kind = one_of(fields, "answer_type", get_args(AnswerType), default="")
    return Question(
        id=text(fields, "id"),
        image=images.keep(fields, columns.get("image", "image"), fields["image"]),
        text=text(fields, "question"),
        answers=answers,
        range=limits,
        answer_type=kind or _kind(answers, limits),  # type: ignore[arg-type]
        split=text(fields, "split", default=split),
        requires_retrieval=None if fields["requires_retrieval"] in (None, "") else flag(fields, "requires_retrieval"),
        entity_ids=_texts(fields, "entity_ids"),
        meta={column: str(row[column]) for column in meta if row.get(column) not in (None, "")},
    )


def _texts(row: SourceRow, field: str) -> tuple[str, ...]:
    """A list of texts, or one alone, which may be numbers."""
    value = _split(row, field)
    items = value if isinstance(value, list) else [value]
    if any(type(item) is float and not math.isfinite(item) for item in items):
        raise row.bad(field, f"is {value!r}", "it should be a list of texts or numbers")
    if written := next((item for item in items if isinstance(item, str) and _LIST_AS_TEXT.fullmatch(item.strip())), ""):
        fix = f"write its items with `{_SEPARATOR}` between them in a CSV file, as a list of texts elsewhere"
        raise row.bad(field, f"is the text {written:.60}, a list that was written as text", fix)
    items = [int(item) if type(item) is float and item.is_integer() else item for item in items]
    if all(type(item) in (int, float, str) for item in items):
        return tuple(part for item in items if (part := str(item).strip()))
    return texts(row, field, default=())


def _range(row: SourceRow) -> tuple[float, float] | None:
    if row["range"] in (None, "", []):
        return None
    values = _split(row, "range")
    if not isinstance(values, (list, tuple)) or len(values) != 2:
        fix = f"it should be the lowest and the highest accepted number (in a CSV file `45{_SEPARATOR}55`)"
        raise row.bad("range", f"is {values!r}", fix)
    ends = SourceRow({"id": row["id"], "range": values[0], "end": values[1]}, row.file, row.line)
    low, high = number(ends, "range"), number(SourceRow({**ends, "range": ends["end"]}, row.file, row.line), "range")
    if low > high:
        raise row.bad("range", f"begins at {low:g} and ends at {high:g}", "put the lowest number first")
    return low, high


def _split(row: SourceRow, field: str) -> Any:
    """The field's value; a CSV's `a|b` as a list."""
    value = row[field]
    if not isinstance(value, str) or not str(row.file).lower().removesuffix(".gz").endswith(".csv"):
        return value
    return [part for part in value.split(_SEPARATOR) if part.strip()]


def _kind(answers: tuple[str, ...], limits: tuple[float, float] | None) -> AnswerType:
    if limits is not None:
        return "numerical"
    return "multi_answer" if any("&&" in answer for answer in answers) else "string"
