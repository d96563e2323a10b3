"""Rows of Parquet and JSON from dataclasses, and back."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

Value = TypeVar("Value")

_COLUMNS: Mapping[type, pa.DataType] = {str: pa.string(), bool: pa.bool_(), int: pa.int32(), float: pa.float64()}


@functools.cache
def schema_of(kind: type) -> pa.Schema:
    """Return the columns of a dataclass in a Parquet file: one for each field, in order.

    Raises:
        TypeError: A field has another type than str, bool, int, float, `Literal` of strings, a dataclass, a tuple of
            one of them (`tuple[X, ...]`), a mapping from str to one of them, or one of them or None.

    Example:
        >>> @dataclasses.dataclass
        ... class Word:
        ...     text: str
        ...     places: tuple[int, ...]
        >>> schema_of(Word).field("places").type
        ListType(list<item: int32>)
    """
    hints = typing.get_type_hints(kind)
    return pa.schema([(item.name, _column(hints[item.name])) for item in dataclasses.fields(kind)])


def to_row(value: Any) -> dict[str, Any]:
    """Return a dataclass as plain values, for JSON and Parquet."""
    row: dict[str, Any] = _adapter(type(value)).dump_python(value)  # type: ignore[arg-type]  # a type is hashable
    return row


def from_row(kind: type[Value], row: Mapping[str, Any]) -> Value:
    """Return a dataclass of the plain values of `to_row`. Unknown keys are ignored.

    Raises:
        ValueError: A field without a default is missing, or has a value of another type; all are named.
    """
    try:
        value: Value = _adapter(kind).validate_python(row)  # type: ignore[arg-type]  # a type is hashable
    except ValidationError as error:
        problems = [f"`{'.'.join(map(str, problem['loc']))}`: {problem['msg'].lower()}" for problem in error.errors()]
        raise ValueError("; ".join(problems)) from None
    return value


@functools.cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _column(hint: Any) -> pa.DataType:
    if hint in _COLUMNS:
        return _COLUMNS[hint]
    if dataclasses.is_dataclass(hint):
        return pa.struct(list(schema_of(typing.cast(type, hint))))
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return pa.string()
    if origin is tuple and len({*inner} - {Ellipsis}) == 1:
        return pa.list_(_column(inner[0]))
    if origin is Mapping and inner[0] is str:
        return pa.map_(pa.string(), _column(inner[1]))
    if origin in (Union, types.UnionType) and len(inner) == 2 and type(None) in inner:
        return _column(next(option for option in inner if option is not type(None)))
    raise TypeError(f"{hint} can't be a column; see `schema_of`")
