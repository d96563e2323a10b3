"""Declare the settings of a command, read them from a YAML file and flags, and report all problems at once."""

from __future__ import annotations

import os
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, TypeVar

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo

from reflectune.core.errors import UserError
from reflectune.core.flags import Problem, options_of, read_flags, split_config, unknown_key
from reflectune.core.parsing import read_yaml
from reflectune.core.secrets import conceal_url
from reflectune.core.values import LARGEST_NUMBER, one_line, short

Check = TypeVar("Check", bound=Callable[[Any], Iterable[str]])


def setting(
    default: Any,
    help: str,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    needed: str | None = None,
    secret: bool = False,
    hashed: bool = True,
) -> Any:
    """Declare a key of a `Settings` class.

    Args:
        default: The value if none is given. Each instance gets its own copy of a list or mapping.
        help: A line for `--help`.
        ge: Minimum value. The bounds of a list's items belong to their type: `list[Share]`.
        gt: Bound that the value must exceed.
        le: Greatest value.
        needed: Marks a key that must be given. Says what to give, e.g. "a data set folder"; "" if the name says it.
        secret: The value may hold a password: no error and no help shows it.
        hashed: False for a key that a resumed run may change: it doesn't affect the results, or its content is hashed.
    """
    extra = ({} if needed is None else {"needed": needed}) | ({} if hashed else {"hashed": False})
    return Field(default, description=help, ge=ge, gt=gt, le=le, repr=not secret, json_schema_extra=extra or None)  # type: ignore[arg-type]


def cross_check(method: Check) -> Check:
    """Mark a method of a `Settings` class that returns problems of several keys, or of files that they name.

    `Settings.problems` calls every marked method, those of base classes first. A subclass replaces one by a method of
    the same name. A check that reads an invalid key is skipped.
    """
    method.is_cross_check = True  # type: ignore[attr-defined]
    return method


class Settings(BaseModel):
    """Keys of a config, each declared once by what reads it.

    A command's config class inherits the settings that it needs. Values are validated when an instance is made; values
    that must fit each other are checked by methods with `cross_check`.

    Example:
        >>> class TrainingSettings(Settings):
        ...     steps: int = setting(10, "steps between checkpoints", ge=1)
        ...     output: OutputFolder = setting("", "folder for the checkpoint", needed="")
        >>> find_problems(TrainingSettings, {"steps": 0})
        ['`steps` must be at least 1, found 0', '`output` is needed']
    """

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        protected_namespaces=(),
        defer_build=True,
    )

    @property
    def writes_nothing(self) -> bool:
        """True if the command writes nothing, as with `--dry_run`."""
        return bool(getattr(self, "dry_run", False))

    @classmethod
    def unread_keys(cls, values: Mapping[str, Any]) -> Set[str]:
        """Return the keys that nothing reads under these unchecked values. The help leaves them out."""
        return frozenset()

    @classmethod
    def of(cls, config: Settings) -> Self:
        """Return these settings, taken from a config that has them all.

        Raises:
            TypeError: The config's class doesn't have all of these settings.
        """
        if foreign := cls.model_fields.keys() - type(config).model_fields.keys():
            raise TypeError(f"{type(config).__name__} lacks keys of {cls.__name__}: {', '.join(sorted(foreign))}")
        values = {name: config.__dict__[name] for name in cls.model_fields if name in config.__dict__}
        part = cls.model_construct(**values)
        for name in cls.model_fields.keys() - values.keys():
            del part.__dict__[name]  # an invalid key: a check that reads it is aborted (`_WrongKey`)
        return part

    def problems(self) -> list[str]:
        """Return the problems that the cross-checks find, one sentence each."""
        problems: list[str] = []
        for name in _cross_checks(type(self)):
            try:
                problems.extend(getattr(self, name)())
            except _WrongKey:
                continue
        return list(dict.fromkeys(problems))

    def hashed(self) -> dict[str, Any]:
        """Return the keys that determine the results, by name (see `setting`)."""
        fields = type(self).model_fields
        return {name: value for name, value in self.model_dump().items() if _extra(fields[name]).get("hashed", True)}

    @cross_check
    def needed_problems(self) -> Iterable[str]:
        """Return the keys that are needed and not given."""
        for name, field in type(self).model_fields.items():
            needed = _extra(field).get("needed")
            if needed is not None:
                yield from self.missing(name, why=str(needed))

    def missing(self, *names: str, why: str = "") -> Iterator[str]:
        """Yield a problem for each of these keys that is not given. A key with an invalid value counts as given."""
        for name in names:
            value = self.__dict__.get(name, True)
            if (value.strip() if isinstance(value, str) else value) in (None, "", [], {}):
                yield f"`{name}` is needed" + (f": {why}" if why else "")

    @field_validator("*", mode="before")
    @classmethod
    def _at_home(cls, value: Any) -> Any:
        """Expand a leading `~/`, before the checks of types that look for the path."""
        return _expanded(value)

    @field_validator("*")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        """Refuse numbers that JSON doesn't hold exactly, and texts that no file can hold."""
        for item in _leaves(value):
            if isinstance(item, (int, float)) and abs(item) > LARGEST_NUMBER:
                digits = f"{item:g}" if isinstance(item, float) else f"a number of {item.bit_length()} bits"
                raise ValueError(f"must be between -{LARGEST_NUMBER:,} and {LARGEST_NUMBER:,}, found {digits}")
            if isinstance(item, str) and ("\0" in item or any("\ud800" <= c <= "\udfff" for c in item)):
                raise ValueError("holds a zero byte or half of a surrogate pair, which no file can hold")
        return value

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a class whose bases have different checks with the same name, since one would replace the other."""
        for name in _cross_checks(cls):
            used = next(base for base in cls.__mro__ if name in vars(base))
            for base in cls.__mro__:
                if name in vars(base) and not issubclass(used, base):
                    raise TypeError(f"{used.__name__} and {base.__name__} both have a check `{name}`; rename one")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in type(self).model_fields:
                raise _WrongKey(name)
            return super().__getattr__(name)


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the values nested in lists and mappings, including keys; any other value is yielded itself."""
    if isinstance(value, (list, dict)):
        for part in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _leaves(part)
    else:
        yield value


def _expanded(value: Any) -> Any:
    """Expand a leading `~/` as the shell does, also in lists and mappings."""
    if isinstance(value, list):
        return [_expanded(item) for item in value]
    if isinstance(value, dict):
        return {key: _expanded(item) for key, item in value.items()}
    return os.path.expanduser(value) if isinstance(value, str) and value.startswith("~/") else value


def _extra(field: FieldInfo) -> dict[str, Any]:
    """Return the arguments of `setting` that pydantic doesn't know."""
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


Config = TypeVar("Config", bound=Settings)


def parse_config(kind: type[Config], argv: Sequence[str] | None = None) -> Config:
    """Read `--config FILE.yaml` and `--key value` flags into a config. Flags override the file.

    Lists are given as `--splits a b` or as JSON, mappings as JSON: `--splits '{"train": "train.json"}'`. If a
    flag is given twice, the last value counts.

    Args:
        kind: The config class.
        argv: The command line without the program's name; `sys.argv[1:]` if None.

    Raises:
        UserError: Lists every problem found: unknown keys with the nearest valid one, wrong types, values out of
            bounds, and the problems that cross-checks find in the other keys.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    path, words, unclear = split_config(words)
    given, problems = read_flags(kind.model_fields, words)
    values: dict[str, Any] = {}
    if not unclear and path is not None:
        try:
            values = _read_file(kind, path)
        except UserError as error:
            unclear = [str(error)]
    if unclear:
        _report(unclear + [problem.text for problem in problems])
    problems = [
        unknown_key(str(key), kind.model_fields, str(path)) for key in values if key not in kind.model_fields
    ] + problems
    known = {key: value for key, value in values.items() if key in kind.model_fields}
    return _checked(kind, {**known, **given}, problems)


def given_values(kind: type[Settings], words: Sequence[str]) -> dict[str, Any]:
    """Return the values of a command line and its file as far as they can be read, unchecked."""
    path, words, _ = split_config(words)
    values: dict[str, Any] = {}
    if path is not None:
        with suppress(UserError):
            values = _read_file(kind, path)
    return {**values, **read_flags(kind.model_fields, words)[0]}


def make_config(kind: type[Config], **values: Any) -> Config:
    """Make a config from Python values, with the same checks as for a file.

    Raises:
        UserError: Lists every problem found.
    """
    return _checked(kind, values)


def find_problems(kind: type[Settings], values: Mapping[str, Any]) -> list[str]:
    """Return the problems of a config's values, one sentence each."""
    return _validate(kind, values, set())[1]


def union(name: str, *kinds: type[Settings]) -> type[Settings]:
    """Combine several config classes into one, e.g. shared settings and those of each registered pipeline.

    Args:
        name: Name of the class.
        *kinds: Settings classes. They may share base classes.

    Raises:
        TypeError: Two of them declare the same key, or list shared base classes in different orders.

    Example:
        >>> Both = union("Both", SearchSettings, PmsrSettings)
    """
    owners: dict[str, type] = {}
    for kind in kinds:
        for key in kind.model_fields:
            owner = next(base for base in kind.__mro__ if key in vars(base).get("__annotations__", ()))
            if owners.setdefault(key, owner) is not owner:
                raise TypeError(f"{owners[key].__name__} and {owner.__name__} both declare the key `{key}`")
    most_derived = tuple(kind for kind in kinds if not any(kind is not k and issubclass(k, kind) for k in kinds))
    try:
        return type(name, most_derived, {"__doc__": f"Keys of {', '.join(k.__name__ for k in kinds)}."})
    except TypeError as error:
        orders = "; ".join(f"{k.__name__}({', '.join(base.__name__ for base in k.__bases__)})" for k in most_derived)
        raise TypeError(f"list the base classes of settings in the same order everywhere: {orders}") from error


class _WrongKey(Exception):
    """Raised when a check reads an invalid key. (Properties would swallow an AttributeError.)"""


def _cross_checks(kind: type) -> list[str]:
    members = [item for base in reversed(kind.__mro__) for item in vars(base).items()]
    names = [name for name, item in members if isinstance(item, FunctionType) and hasattr(item, "is_cross_check")]
    return list(dict.fromkeys(names))


def _read_file(kind: type[Settings], path: Path) -> dict[str, Any]:
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold `key: value` lines, found {type(values).__name__}")
    return {key: _as_word(value, kind.model_fields.get(key)) for key, value in values.items()}


def _as_word(value: Any, field: FieldInfo | None) -> Any:
    """Return `on` or `off` for a truth value, as which YAML 1.1 reads these words, if the field takes that word."""
    if field is None or not isinstance(value, bool):
        return value
    word = "on" if value else "off"
    options = options_of(field.annotation)
    is_word = any(typing.get_origin(option) is Literal and word in typing.get_args(option) for option in options)
    return word if is_word and bool not in options else value


def _checked(kind: type[Config], values: Mapping[str, Any], problems: Sequence[Problem] = ()) -> Config:
    config, found = _validate(kind, values, {problem.key for problem in problems})
    _report([*(problem.text for problem in problems), *found])
    assert config is not None
    return config


def _validate(kind: type[Config], values: Mapping[str, Any], wrong: Set[str]) -> tuple[Config | None, list[str]]:
    """Make a config without its invalid keys, or None if that fails. Return it with all problems."""
    for name, field in kind.model_fields.items():
        if not field.repr:
            conceal_url(str(values.get(name, "")))
    problems: list[str] = []
    try:
        config = kind.model_validate(dict(values))
    except ValidationError as error:
        problems = [_in_words(kind, item) for item in error.errors(include_url=False)]
        wrong = wrong | {str(item["loc"][0]) for item in error.errors() if item["loc"]}
        try:
            config = kind.model_validate({name: value for name, value in values.items() if name not in wrong})
        except ValidationError:
            return None, problems
    for name in wrong & config.__dict__.keys():
        del config.__dict__[name]
    return config, list(dict.fromkeys(problems + config.problems()))


def _report(problems: Sequence[str]) -> None:
    if problems:
        raise UserError("\n  ".join(["the config has problems:", *dict.fromkeys(map(one_line, problems))]))


def _in_words(kind: type[Settings], error: Any) -> str:
    """Return one of pydantic's errors as a sentence: the key, the expected value, the found one."""
    location, code, value = error["loc"], error["type"], error["input"]
    name = str(location[0]) if location else ""
    if code == "extra_forbidden":
        return unknown_key(name, kind.model_fields, kind.__name__).text
    field = kind.model_fields.get(name)
    if field is None:
        return str(error["msg"])
    if code in ("value_error", "assertion_error"):
        return f"`{name}` {error['ctx']['error']}"
    shown = short(str(value)) if field.repr else "another value"
    if code in _BOUNDS:
        return f"`{name}` must be {_bounds_in_words(field)}, found {shown}"
    if code == "finite_number":
        return f"`{name}` must be a finite number, found {shown}"
    shown = short(repr(value)) if field.repr else f"a value of type {type(value).__name__}"
    return f"`{name}` should be {_type_in_words(field.annotation)}, found {shown}"


_BOUNDS: Final = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")


def _bounds_in_words(field: FieldInfo) -> str:
    limits = [*field.metadata, *_nested_metadata(field.annotation)]
    least = next((limit.ge for limit in limits if isinstance(limit, Ge)), None)
    above = next((limit.gt for limit in limits if isinstance(limit, Gt)), None)
    most = next((limit.le for limit in limits if isinstance(limit, Le)), None)
    if above is not None:
        return f"above {_shown(above)}" + (f" and at most {_shown(most)}" if most is not None else "")
    if least is None:
        return f"at most {_shown(most)}"
    return f"at least {_shown(least)}" if most is None else f"between {_shown(least)} and {_shown(most)}"


def _shown(bound: Any) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


def _nested_metadata(annotation: Any) -> list[Any]:
    """Return the `Annotated` metadata of a list's items or a union's options."""
    inner = typing.get_args(annotation)
    if typing.get_origin(annotation) is Annotated:
        metadata = [item for it in inner[1:] for item in (it.metadata if isinstance(it, FieldInfo) else [it])]
        return metadata + _nested_metadata(inner[0])
    return [item for argument in inner for item in _nested_metadata(argument)]


def _type_in_words(annotation: Any) -> str:
    return " or ".join(_option_in_words(option) for option in options_of(annotation))


def _option_in_words(option: Any) -> str:
    origin, inner = typing.get_origin(option), typing.get_args(option)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, inner))
    if origin is list:
        return f"a list of {_type_in_words(inner[0])}"
    if origin is dict or (isinstance(option, type) and issubclass(option, dict)):
        return "a mapping"
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return names.get(option, getattr(option, "__name__", str(option)))
