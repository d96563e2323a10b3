"""Read `--key value` flags into values of a config's fields, and print the help of these flags."""

from __future__ import annotations

import difflib
import inspect
import itertools
import textwrap
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from reflectune.core.parsing import parse_value

_YES: Final = ("true", "yes", "y", "t", "1")
_NO: Final = ("false", "no", "n", "f", "0")
_WIDTH: Final = 100
"""Columns of the help."""


class Problem(NamedTuple):
    """A problem of a config.

    Attributes:
        text: A sentence.
        key: The key without a valid value; "" if there is none.
    """

    text: str
    key: str = ""


def read_flags(fields: Mapping[str, FieldInfo], words: Sequence[str]) -> tuple[dict[str, Any], list[Problem]]:
    """Read the words of a command line. The last value of a key counts.

    Args:
        fields: The keys.
        words: `--key value`, `--key=value`, `--list a b`, `--flag` and `--no_flag`; hyphens in keys are underscores.

    Returns:
        The values by key, and the problems.
    """
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    position = 0
    secret = ""
    while position < len(words):
        word, position = words[position], position + 1
        if not word.startswith("--"):
            stray = f"stray word `{word[:100]}`; a key is given as --key value, the file as --config FILE"
            quoted = f"`--{secret}` takes one word; put quotes around it"
            problems.append(Problem(f"command line: {quoted if secret else stray}"))
            position += len(_up_to_key(words[position:]))
            continue
        flag, equals, text = word[2:].partition("=")
        name = flag.replace("-", "_")
        if name not in fields and name.removeprefix("no_") in fields:
            positive = name.removeprefix("no_")
            if equals or kind_of(fields[positive]) != "flag":
                problems.append(Problem(f"command line: `--{flag}` is for a key that is true or false", positive))
            else:
                values[positive] = False
            continue
        field = fields.get(name)
        given = [text] if equals else _values_after(words[position:], field)
        position += 0 if equals else len(given)
        secret = flag if field is not None and not field.repr else ""
        if field is None:
            problems.append(unknown_key(flag, fields, "command line"))
            continue
        try:
            values[name] = _read(given, field)
        except ValueError as error:
            problems.append(Problem(f"command line: `{name}` {error}", name))
    return values, problems


def split_config(words: Sequence[str]) -> tuple[Path | None, list[str], list[str]]:
    """Split off `--config FILE` or `--config=FILE`. Return the file, the other words, and the problems."""
    paths: list[str] = []
    rest: list[str] = []
    remaining = iter(words)
    for word in remaining:
        if word.startswith("--config="):
            paths.append(word.removeprefix("--config="))
        elif word == "--config":
            paths.append(next(remaining, ""))
        else:
            rest.append(word)
    if len(paths) > 1:
        return None, rest, [f"`--config` is given {len(paths)} times, with {' and '.join(paths)}; give one file"]
    if not paths:
        return None, rest, []
    if not paths[0] or paths[0].startswith("--"):
        return None, rest, ["--config needs the path of a YAML file"]
    return Path(paths[0]), rest, []


def unknown_key(key: str, known: Collection[str], source: str) -> Problem:
    """Return the problem of an unknown key, with the nearest valid one."""
    (near,) = difflib.get_close_matches(key.replace("-", "_"), known, n=1, cutoff=0.7) or [""]
    return Problem(f"{source}: unknown key `{key[:100]}`" + (f"; did you mean `{near}`?" if near else ""), near)


def kind_of(field: FieldInfo) -> Literal["flag", "number", "list", "mapping", "text"]:
    """Return the kind of value that a field takes."""
    options = options_of(field.annotation)
    types_of = [typing.get_origin(option) or option for option in options]
    if list in types_of:
        return "list"
    if any(isinstance(kind, type) and issubclass(kind, dict) for kind in types_of):
        return "mapping"
    if bool in types_of:
        return "flag"
    return "number" if all(kind in (int, float) for kind in types_of) else "text"


def options_of(annotation: Any) -> list[Any]:
    """Return the types of a union, without None and `Annotated` metadata."""
    if typing.get_origin(annotation) is Annotated:
        return options_of(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [option for item in typing.get_args(annotation) for option in options_of(item)]
    return [] if annotation is type(None) else [annotation]


def help_text(kind: type[BaseModel], program: str, description: str, left_out: Collection[str] = ()) -> str:
    """Return the help of a command: needed keys, then the others by the class that declares them, with defaults.

    Args:
        kind: The config class.
        program: The program's name.
        description: The command's docstring.
        left_out: Keys that are counted but not listed.
    """
    lines = [f"usage: {program} [--config FILE.yaml] [--key value ...]", "", *_wrap(_first_paragraph(description), "")]
    unlisted = kind.model_fields.keys() - left_out
    extras = {name: field.json_schema_extra for name, field in kind.model_fields.items()}
    needed = {name for name, extra in extras.items() if isinstance(extra, dict) and "needed" in extra}
    groups: list[tuple[str, Collection[str]]] = [("Main keys:", needed)]
    for owner in kind.__mro__:
        heading = "Keys of this command:" if owner is kind else _first_paragraph(owner.__doc__ or owner.__name__)
        groups.append((heading, vars(owner).get("__annotations__", {}).keys()))
    for heading, names in groups:
        listed = [name for name in kind.model_fields if name in names and name in unlisted]
        unlisted.difference_update(listed)
        if listed:
            lines += ["", *_wrap(heading, "")]
        for name in listed:
            field = kind.model_fields[name]
            lines += _wrap(f"--{name} {_placeholder(field)}".rstrip(), "  ")
            lines += _wrap(f"{field.description}{_default(field)}", "      ")
    if left_out:
        lines += ["", f"{len(left_out)} keys that nothing reads with these values are left out."]
    return "\n".join(lines)


def _values_after(words: Sequence[str], field: FieldInfo | None) -> list[str]:
    """Return the words that are a key's values: all up to the next key for a list, at most one for others."""
    values = _up_to_key(words)
    return values if field is None or kind_of(field) == "list" else values[:1]


def _up_to_key(words: Sequence[str]) -> list[str]:
    return list(itertools.takewhile(lambda word: not word.startswith("--"), words))


def _read(given: list[str], field: FieldInfo) -> Any:
    """Parse a field's value without validating it; raise ValueError for text that can't be parsed."""
    kind = kind_of(field)
    if not given and kind != "flag":
        raise ValueError("needs a value")
    for text in given:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("is not UTF-8") from None
    if kind == "flag":
        word = given[0].lower() if given else "true"
        if word in _YES:
            return True
        return False if word in _NO else given[0]
    if kind == "list":
        if len(given) == 1 and given[0].lstrip().startswith("[") and given[0].rstrip().endswith("]"):
            return _structured(given[0], "list")
        list_type = next(option for option in options_of(field.annotation) if typing.get_origin(option) is list)
        (item,) = typing.get_args(list_type)
        is_number = all(option in (int, float) for option in options_of(item))
        return [_number(text) if is_number else text for text in given]
    if kind == "mapping":
        options = [typing.get_origin(option) or option for option in options_of(field.annotation)]
        is_plain = dict in options and str not in options
        return _structured(given[0], "mapping") if is_plain or given[0].lstrip().startswith("{") else given[0]
    return _number(given[0]) if kind == "number" else given[0]


def _structured(text: str, kind: str) -> Any:
    try:
        return parse_value(text)
    except ValueError as error:
        raise ValueError(f"should be a {kind} as JSON: {error}") from None


def _number(text: str) -> int | float | str | None:
    """Return text as a number, None for `null`, or the text itself if it is neither."""
    if text.lower() in ("null", "none"):
        return None
    for parse in (int, float):
        try:
            return parse(text)
        except ValueError:
            continue
    return text


def _first_paragraph(text: str) -> str:
    return inspect.cleandoc(text).split("\n\n")[0].replace("\n", " ")


def _placeholder(field: FieldInfo) -> str:
    (option, *_) = options_of(field.annotation)
    kind = kind_of(field)
    if typing.get_origin(option) is Literal:
        return "|".join(str(value) or '""' for value in typing.get_args(option))
    names = {"flag": "", "number": "N", "list": "VALUE ...", "mapping": "JSON", "text": "TEXT"}
    return names[kind]


def _default(field: FieldInfo) -> str:
    value = field.default
    if not field.repr or value is None or value is False:
        return ""
    shown = " ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
    return f" (default: {shown})" if shown else ""


def _wrap(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
