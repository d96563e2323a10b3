"""A user's questions: JSONL, CSV, Parquet, or anything that `datasets` loads, with a map of columns."""

from __future__ import annotations

import difflib
import math
import os
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, get_args

from reflectune.core.errors import UserError
from reflectune.core.paths import OutsideRoot, resolve_below
from reflectune.core.rejected import BadRow, Reject, stop
from reflectune.core.types import AnswerType, Question
from reflectune.data_builders.readers.files import read_by_extension, read_csv, read_jsonl, read_parquet
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.json_documents import read_json_array
from reflectune.data_builders.readers.rows import (
    Placed,
    SourceRow,
    flag,
    identifier,
    number,
    one_of,
    placed,
    text,
    texts,
    whole,
)

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
    """Yield the user's questions.

    In a CSV file the items of a list (`image`, `answers`, `range`, `entity_ids`) are separated by `|`. The default
    answer type is `numerical` with a range, `multi_answer` with a `&&` in an answer, else `string`; `time` and
    `free_form` (an answer in sentences) need a column. A list of images is a question's images, in order. Ids and
    answers may be numbers. A whole number loses its fraction, since tables store 1990 as 1990.0 if a row lacks the
    value. Ids of entities are kept in composed letters (NFC). A column whose name is close to that of a missing field
    is an error.

    Args:
        source: A file `*.jsonl`, `*.csv`, `*.parquet` or `*.json` (`.gz` too), a folder of Parquet files, or
            `{"load_dataset": NAME, "config": …, "split": …}` for a set on the Hub or a folder that `datasets` loads.
        split: Name of the split of questions whose row has none.
        images: Folder that paths of images are relative to; an image may also be the bytes of a file.
        columns: The user's column for each of `FIELDS`; the default is the field's name.
        meta: Further columns for `Question.meta`.
        constants: Values of fields without a column, e.g. for captions `{answer_type: free_form}`.
        number_rows: Make ids of the split, the file's name and the row's number.

    Raises:
        UserError: `columns` or `constants` has an unknown key, no row has a column of `meta`, the source is of an
            unknown kind, or the image column holds URLs.
    """
    unknown = set(columns or {}) - set(FIELDS)
    if unknown:
        raise UserError(f"`columns` has the keys {', '.join(sorted(unknown))}; the fields are {', '.join(FIELDS)}")
    if beyond := set(constants or {}) - (set(FIELDS) - set(NEEDED)):
        may = ", ".join(field for field in FIELDS if field not in NEEDED)
        raise UserError(f"`constants` has the keys {', '.join(sorted(beyond))}; it may have {may}")
    read = partial(_checked, split=split, images=images, columns=dict(columns or {}), meta=tuple(meta))

    found: set[str] = set()

    def make(row: SourceRow) -> Question:
        found.update(column for column in meta if column in row)
        _complete(row, split, columns or {}, constants or {}, number_rows=number_rows)
        return read(row)

    return _with_all(meta, found, placed(_rows(source, images, reject), make, reject), source)


def _with_all(
    meta: Sequence[str], found: Set[str], stream: Iterator[Placed[Question]], source: Path | Mapping[str, Any]
) -> Iterator[Placed[Question]]:
    """Yield the stream; raise UserError at its end if a column of `meta` is not in `found`."""
    count = 0
    for placed_question in stream:
        count += 1
        yield placed_question
    if count and (missing := [column for column in meta if column not in found]):
        raise UserError(f"`meta` names `{'`, `'.join(missing)}`, which no row of {source} has; correct it")


def _rows(source: Path | Mapping[str, Any], images: ImageFolder, reject: Reject) -> Iterator[tuple[int, SourceRow]]:
    if isinstance(source, Mapping):
        return _loaded(source, images)
    return read_by_extension(source, _KINDS, "a set of questions", reject)


def _loaded(source: Mapping[str, Any], images: ImageFolder) -> Iterator[tuple[int, SourceRow]]:
    """Stream a set that `datasets` loads; images stay encoded, and those of a folder elsewhere are read as bytes."""
    unknown = set(source) - {"load_dataset", "config", "split"}
    if unknown or "load_dataset" not in source:
        raise UserError(f"`load_dataset` takes the keys load_dataset, config and split; found {', '.join(source)}")
    import datasets  # slow to import, and few need it

    name, part = str(source["load_dataset"]), str(source.get("split", "train"))
    try:
        stream = datasets.load_dataset(name, source.get("config"), split=part, streaming=True)
    except (ValueError, OSError) as error:
        raise UserError(f"`datasets` can't load {name}, split {part}: {' '.join(str(error).split())[:300]}") from error
    columns = [column for column, feature in (stream.features or {}).items() if "Image(" in repr(feature)]
    for line, values in enumerate(stream.decode(False), 1):
        row = SourceRow(values, name, line)
        row.update({column: _with_bytes(row, column, images) for column in columns})
        yield line, row


def _with_bytes(row: SourceRow, column: str, images: ImageFolder) -> Any:
    """Return an image column's value with the bytes of files in the loaded folder, or in an archive there.

    A file below the folder of images is named by its path.
    """
    from datasets.utils.file_utils import xopen

    def opened(item: Any) -> Any:
        place = str(item.get("path") or "") if isinstance(item, dict) and not item.get("bytes") else ""
        file = place.rpartition("::")[2]  # zip://NAME::ARCHIVE
        if not os.path.isabs(file) or (file == place and images.below(place) is not None):
            return item
        try:
            resolve_below(file, Path(str(row.file)))
            with xopen(place, "rb") as stream:
                return {"bytes": stream.read()}
        except (OSError, ValueError, OutsideRoot) as error:
            raise UserError(f"{row.file}:{row.line}: field `{column}`: {place} can't be read: {error}") from error

    value = row[column]
    return [opened(item) for item in value] if isinstance(value, list) else opened(value)


def _complete(
    row: SourceRow, split: str, columns: Mapping[str, str], constants: Mapping[str, Any], *, number_rows: bool
) -> None:
    """Add to a row the fields without a column: an id by its number, and constants."""
    row.id_field = columns.get("id", "id")
    file_name = Path(str(row.file)).name.removesuffix(".gz")
    numbered = {"id": f"{split}-{Path(file_name).stem}-{row.line}"} if number_rows else {}
    for field, value in {**numbered, **constants}.items():
        column = columns.get(field, field)
        if column in row:
            key = "number_rows" if field == "id" else "constants"
            raise row.bad(column, f"is a column of the file, and `{key}` gives it too", f"leave it out of `{key}`")
        row[column] = value


def _checked(
    row: SourceRow, *, split: str, images: ImageFolder, columns: Mapping[str, str], meta: tuple[str, ...]
) -> Question:
    """Return the question of a row; an error names the user's column."""
    row.id_field = columns.get("id", "id")
    absent = [f"`{column}` (for {field})" for field, column in columns.items() if column not in row]
    if absent:
        problem = f"has no column {', '.join(absent)}; it has {', '.join(map(str, row))}"
        raise row.bad("", problem, "correct `columns`, or the file")
    if missing := _missing(tuple(row), tuple(columns.items()), meta):
        (field, near), *others = sorted(missing.items(), key=lambda pair: not pair[1])
        names = ", ".join(f"`{other}`" for other, _ in others)
        also = f", as {'are' if len(others) > 1 else 'is'} {names}" if others else ""
        if near:
            fix = f"rename it, map it by `columns: {{{field}: {near}}}`, or name it in `meta`"
            raise row.bad(field, f"is missing{also}, and there is a column `{near}`", fix)
        problem = f"is missing{also} (the row has {', '.join(map(str, row)) or 'no fields'})"
        number = ", or set `number_rows: true`" if field == "id" else ""
        raise row.bad(field, problem, f"rename your columns, or map them in `columns`{number}")
    try:
        return _question(row, split=split, images=images, columns=columns, meta=meta)
    except BadRow as error:
        column = columns.get(error.field, error.field)
        raise type(error)(error.file, error.line, error.row_id, column, error.problem, error.fix) from error


@lru_cache(maxsize=256)
def _missing(names: tuple[str, ...], columns: tuple[tuple[str, str], ...], meta: tuple[str, ...]) -> Mapping[str, str]:
    """Return the missing fields, each with the unknown column that has nearly its name, or "".

    An optional field counts as missing only if there is such a column, a misspelling.
    """
    mapped = dict(columns)
    unknown = [name for name in names if name not in (*FIELDS, *mapped.values(), *meta)]
    absent = [field for field in FIELDS if field not in names and field not in mapped]
    near = {field: next(iter(difflib.get_close_matches(field, unknown, n=1, cutoff=0.8)), "") for field in absent}
    return {field: column for field, column in near.items() if column or field in NEEDED}


def _question(
    row: SourceRow, *, split: str, images: ImageFolder, columns: Mapping[str, str], meta: tuple[str, ...]
) -> Question:
    fields = SourceRow({field: row.get(columns.get(field, field)) for field in FIELDS}, row.file, row.line, "id")
    answers, limits = _texts(fields, "answers"), _range(fields)
    kind = one_of(fields, "answer_type", get_args(AnswerType), default="")
    first, *more = images.keep_all(fields, columns.get("image", "image"), _split(fields, "image") or fields["image"])
    return Question(
        id=identifier(fields, "id"),
        image=first,
        text=text(fields, "question"),
        answers=answers,
        range=limits,
        answer_type=kind or _kind(answers, limits),  # type: ignore[arg-type]
        split=text(fields, "split", default=split),
        requires_retrieval=None if fields["requires_retrieval"] in (None, "") else flag(fields, "requires_retrieval"),
        entity_ids=tuple(unicodedata.normalize("NFC", entity) for entity in _texts(fields, "entity_ids")),
        meta={column: str(whole(row[column])) for column in meta if row.get(column) not in (None, "")},
        more_images=tuple(more),
    )


def _texts(row: SourceRow, field: str) -> tuple[str, ...]:
    """Return a list of texts or numbers, or a single one, as texts."""
    value = _split(row, field)
    items = value if isinstance(value, list) else [value]
    if any(type(item) is float and not math.isfinite(item) for item in items):
        raise row.bad(field, f"is {value!r}", "it should be a list of texts or numbers")
    if literal := next((item for item in items if isinstance(item, str) and _LIST_AS_TEXT.fullmatch(item.strip())), ""):
        fix = f"write its items with `{_SEPARATOR}` between them in a CSV file, as a list of texts elsewhere"
        raise row.bad(field, f"is the text {literal:.60}, a list that was written as text", fix)
    items = [*map(whole, items)]
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
    """Return the field's value; a CSV's `a|b` as a list."""
    value = row[field]
    if not isinstance(value, str) or not str(row.file).lower().removesuffix(".gz").endswith(".csv"):
        return value
    return [part for part in value.split(_SEPARATOR) if part.strip()]


def _kind(answers: tuple[str, ...], limits: tuple[float, float] | None) -> AnswerType:
    if limits is not None:
        return "numerical"
    return "multi_answer" if any("&&" in answer for answer in answers) else "string"
