"""Rows of source files: read their fields with a check of the type, and raise errors that name file, line and field."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from reflectune.core.rejected import BadRow, Reject

Made = TypeVar("Made")

ID_FIELDS = ("data_id", "question_id", "wikidata_id", "id", "_id", "qid", "unique_id", "__key__", "passage_id", "url")
"""Fields that may name a row in an error, in order; public sets have no common name."""


class SourceRow(dict[str, Any]):
    """A row as a dict, with its file and line."""

    __slots__ = ("file", "id_field", "line")

    def __init__(self, values: Mapping[str, Any], file: str | Path, line: int, id_field: str = "") -> None:
        super().__init__(values)
        self.file, self.line, self.id_field = file, line, id_field

    @property
    def id(self) -> str:
        """The row's name in an error, "" if it has none."""
        field = self.field_of_id()
        return str(self[field]) if field else ""

    def field_of_id(self) -> str:
        """Return the field that names the row: `id_field`, or the first of `ID_FIELDS` with a value; "" for none."""
        fields = (self.id_field,) if self.id_field else ID_FIELDS
        return next((field for field in fields if self.get(field) not in (None, "")), "")

    def bad(self, field: str, problem: str, fix: str) -> BadRow:
        """Return the error of a field of this row, for the caller to raise."""
        return BadRow(self.file, self.line, self.id, field, problem, fix)


class SourceLine(NamedTuple):
    """File and line of a row, and the field that names it."""

    file: str
    line: int
    id_field: str = "id"

    def bad(self, row_id: str, field: str, problem: str, fix: str) -> BadRow:
        """Return the error of a field of this row, for the caller to raise."""
        return BadRow(self.file, self.line, row_id, field, problem, fix)

    def duplicate(self, row_id: str, where: str) -> BadRow:
        """Return the error of a row whose id an earlier one has.

        Args:
            row_id: The id.
            where: What must have unique ids, e.g. `a data set`.
        """
        fix = f"ids must be unique in {where}: keep one of the rows, or rename one"
        return self.bad(row_id, self.id_field, "is a duplicate", fix)


Placed = tuple[Made, SourceLine]
"""An object made of a row, and where the row is."""


def placed(
    read: Iterable[tuple[int, SourceRow]], make: Callable[[SourceRow], Made], reject: Reject
) -> Iterator[Placed[Made]]:
    """Yield `make` of every row, and where the row is; rows for which it raises `BadRow` go to `reject`."""
    for _, row in read:
        try:
            made = make(row)
        except BadRow as error:
            reject(error)
            continue
        yield made, SourceLine(str(row.file), row.line, row.field_of_id() or "id")


def each(read: Iterable[tuple[int, SourceRow]], make: Callable[[SourceRow], Made], reject: Reject) -> Iterator[Made]:
    """Yield `make` of every row; see `placed`."""
    return (made for made, _ in placed(read, make, reject))


_MISSING: Any = object()


def text(row: SourceRow, field: str, *, default: str = _MISSING, empty: bool = False) -> str:
    """Return a text field, stripped.

    Args:
        row: The row.
        field: The field's name.
        default: Value of a missing or null field; without a default it is an error.
        empty: Accept an empty text.

    Raises:
        BadRow: The field is missing, is not a text, or is empty.
    """
    value = row.get(field)
    if type(value) is not str:
        return _default(row, field, default) if value is None else _wrong(row, field, value, "text")
    value = value.strip()
    if not value and not empty:
        return _default(row, field, default, problem="is empty")
    return value


def whole(value: Any) -> Any:
    """Convert a float without a fraction to an int; other values are returned as they are."""
    return int(value) if type(value) is float and value.is_integer() else value


def identifier(row: SourceRow, field: str) -> str:
    """Return a text, or a whole number as text. 12.0 becomes "12", since tables with missing values store it so.

    Raises:
        BadRow: The field is missing, is neither, or is empty.
    """
    value = whole(row.get(field))
    return str(value) if type(value) is int else text(row, field)


def number(row: SourceRow, field: str, *, default: float = _MISSING) -> float:
    """Return a finite number; a text like "3.5" is accepted, as in CSV.

    Raises:
        BadRow: The field is missing, or is not a finite number.
    """
    value = row.get(field)
    if value is None or value == "":
        return _default(row, field, default)
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return _wrong(row, field, value, "a number")
    try:
        as_float = float(value)
    except (ValueError, OverflowError):
        return _wrong(row, field, value, "a number")
    return as_float if math.isfinite(as_float) else _wrong(row, field, value, "a finite number")


def integer(row: SourceRow, field: str, *, default: int = _MISSING) -> int:
    """Return a whole number; a text like "3" is accepted.

    Raises:
        BadRow: The field is missing, or is not a whole number.
    """
    as_number = number(row, field, default=default)
    return int(as_number) if as_number == int(as_number) else _wrong(row, field, row[field], "a whole number")


def flag(row: SourceRow, field: str) -> bool:
    """Return a truth value; the texts `true`, `false`, `yes`, `no`, `1` and `0` in any case are accepted.

    Raises:
        BadRow: The field is missing, or is neither.
    """
    value = row.get(field)
    if isinstance(value, bool):
        return value
    if value is None or value == "":
        return _default(row, field, _MISSING)
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    as_bool = words.get(str(value).strip().lower())
    return _wrong(row, field, value, "true or false") if as_bool is None else as_bool


def texts(row: SourceRow, field: str, *, default: Sequence[str] = _MISSING, empty: bool = False) -> tuple[str, ...]:
    """Return a list of texts, stripped, without empty ones; a single text is a list of one.

    Args:
        row: The row.
        field: The field's name.
        default: Value of a missing or null field; without a default it is an error.
        empty: Accept an empty list.

    Raises:
        BadRow: The field is missing, is not a list of texts, or is empty.
    """
    value = row.get(field)
    if value is None:
        return tuple(_default(row, field, default))
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
        return _wrong(row, field, value, "a list of texts")
    stripped = tuple(item.strip() for item in items if item.strip())
    if not stripped and not empty:
        return tuple(_default(row, field, default, problem="is empty"))
    return stripped


def mapping(row: SourceRow, field: str) -> SourceRow:
    """Return a nested object as a row of the same file and line.

    Raises:
        BadRow: The field is missing, or is not an object.
    """
    value = row.get(field)
    if not isinstance(value, dict):
        return _default(row, field, _MISSING) if value is None else _wrong(row, field, value, "an object")
    return SourceRow({"id": row.id, **value}, row.file, row.line)


def rows(row: SourceRow, field: str) -> list[SourceRow]:
    """Return a list of nested objects as rows of the same file and line.

    Raises:
        BadRow: The field is missing, or is not a list of objects.
    """
    value = row.get(field)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        return _default(row, field, _MISSING) if value is None else _wrong(row, field, value, "a list of objects")
    return [SourceRow({"id": row.id, **item}, row.file, row.line) for item in value]


def one_of(row: SourceRow, field: str, choices: Sequence[str], *, default: str = _MISSING) -> str:
    """Return a text that is one of `choices`.

    Raises:
        BadRow: The field is missing, or has another value.
    """
    choice = text(row, field, default=default)
    if choice not in choices and choice is not default:
        raise row.bad(field, f"is {_short(choice)}", f"it must be one of {', '.join(choices)}")
    return choice


def _default(row: SourceRow, field: str, default: Any, problem: str = "") -> Any:
    if default is not _MISSING:
        return default
    if not problem:
        problem = "is null" if field in row else f"is missing (the row has {', '.join(map(str, row)) or 'no fields'})"
    raise row.bad(field, problem, "give it a value, or leave the row out")


def _wrong(row: SourceRow, field: str, value: Any, expected: str) -> Any:
    raise row.bad(field, f"is {_short(value)} ({type(value).__name__})", f"it should be {expected}")


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}…"
