"""Configs: a YAML file and command-line overrides into dataclasses, checked whole before anything is loaded."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import sys
import types
import typing
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any, Final, Literal, NoReturn

import yaml

from reflectune.core.errors import UserError

DTYPES: Final = ("float32", "bfloat16", "float16")
"""Precisions that a model is loaded in."""


def setting(
    default: Any,
    text: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    choices: Sequence[str] = (),
    says: str = "",
    repr: bool = True,
) -> Any:
    """A field of a config class, with the help that `--help` prints and the bounds that `bound_problems` checks.

    Args:
        default: The value if none is given. Of a list or mapping each instance gets its own copy.
        text: The help.
        low: The least value.
        high: The greatest one.
        above: The value must be greater than this.
        choices: The names that are valid, in the order that an error lists them.
        says: What an error says of a wrong value before it shows it; by the bounds if unset.
        repr: Whether the value is shown, in errors too; False for one that may hold a secret.

    Example:
        >>> @dataclasses.dataclass
        ... class Settings:
        ...     steps: int = setting(10, "steps between checkpoints", low=1)
        >>> bound_problems(Settings(steps=0), Settings)
        ['`steps` must be at least 1, found 0']
    """
    metadata = {"help": text, "bounds": _Bounds(low, high, above, tuple(choices), says)}
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=lambda: copy.copy(default), metadata=metadata, repr=repr)
    return dataclasses.field(default=default, metadata=metadata, repr=repr)


def bound_problems(config: Any, kind: type) -> list[str]:
    """The values of a config that are out of bounds, one sentence each. A key that is unset by None may be None.

    Args:
        config: An instance of `kind`, or of a class that inherits it.
        kind: A config class. Fields that it declares itself are checked, those that it inherits are not.
    """
    declared_fields = vars(kind).get("__annotations__", {})
    problems = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        is_unset = value is None and field.default is None
        if field.name in declared_fields and "bounds" in field.metadata and not is_unset:
            shown = str(value) if field.repr else "another value"
            problems.append(field.metadata["bounds"].problem(field.name, value, shown))
    return [problem for problem in problems if problem]


@dataclasses.dataclass(frozen=True)
class _Bounds:
    low: float | None
    high: float | None
    above: float | None
    choices: tuple[str, ...]
    says: str

    def problem(self, name: str, value: Any, shown: str) -> str:
        """What is wrong with a value, which is written as `shown`; "" if it is within the bounds."""
        if self.choices and value not in self.choices:
            return f"`{name}` is one of {', '.join(self.choices)}; found `{shown}`"
        is_low = self.low is not None and not value >= self.low  # so that NaN is out of bounds
        is_high = self.high is not None and not value <= self.high
        if is_low or is_high or (self.above is not None and not value > self.above):
            return f"`{name}` {self.says or self._in_words()}, found {shown}"
        return ""

    def _in_words(self) -> str:
        if self.above is not None:
            return f"must be above {self.above:g}"
        if self.low is None:
            return f"must be at most {self.high:g}"
        return (
            f"must be at least {self.low:g}" if self.high is None else f"must be between {self.low:g} and {self.high:g}"
        )


def parse_config(*kinds: Any, argv: Sequence[str] | None = None) -> tuple[Any, ...]:
    """Read `--config FILE.yaml` and `--key value` overrides into one instance of each dataclass.

    A config class may have a method `problems() -> list[str]`, which says what is wrong with its values. Unknown keys
    (with the nearest valid one), wrong types and those problems are collected and reported in one error.

    Args:
        kinds: Dataclasses whose fields together are the valid keys.
        argv: The command line without the program's name; `sys.argv[1:]` if None.

    Raises:
        UserError: Lists every problem found.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    hints = {name: hint for kind in kinds for name, hint in _field_types(kind).items()}
    hidden = {field.name for kind in kinds for field in dataclasses.fields(kind) if not field.repr}
    issues = _check_yaml(arguments, hints, hidden) + _check_flags(arguments, hints)
    if issues:
        raise UserError("\n  ".join(["the config has problems:", *issues]))

    from trl import TrlParser  # slow to import, so only once the config's keys are known to be right

    class Parser(TrlParser):
        @staticmethod
        def _parse_dataclass_field(parser: Any, field: dataclasses.Field) -> None:
            # transformers (5) hands all of a field's metadata to argparse, which knows no bounds
            told = copy.copy(field)
            told.metadata = types.MappingProxyType({k: v for k, v in field.metadata.items() if k != "bounds"})
            TrlParser._parse_dataclass_field(parser, told)

        def error(self, message: str) -> NoReturn:  # argparse would print the usage of every key around it
            raise UserError(f"the config has problems:\n  command line: {message}; --help lists the keys")

    parsed = Parser(list(kinds), allow_abbrev=False).parse_args_and_config(arguments)
    issues = [issue for config in parsed if hasattr(config, "problems") for issue in config.problems()]
    if issues:
        raise UserError("\n  ".join(["the config has problems:", *issues]))
    return tuple(parsed)


def _field_types(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}


def _check_yaml(arguments: list[str], hints: dict[str, Any], hidden: Set[str]) -> list[str]:
    if "--config" not in arguments:
        return []
    position = arguments.index("--config") + 1
    if position == len(arguments):
        return ["--config needs the path of a YAML file"]
    path = Path(arguments[position])
    if not path.is_file():
        return [f"config file not found: {path}"]
    try:
        with path.open("rb") as file:  # of a text, an error would quote the line, which may hold a password
            values = yaml.safe_load(file)
    except yaml.YAMLError as error:
        return [f"{path} is not valid YAML: {' '.join(str(error).split())}"]
    if not isinstance(values, dict):
        return [f"{path} must hold `key: value` lines, found {type(values).__name__}"]
    issues = []
    for key, value in values.items():
        if key not in hints:
            issues.append(f"{path}: {_unknown(str(key), hints)}")
        elif not _fits(value, hints[key]):
            shown = f"a value of type {type(value).__name__}" if key in hidden else repr(value)
            issues.append(f"{path}: `{key}` should be {_describe(hints[key])}, found {shown}")
    return issues


def _check_flags(arguments: list[str], hints: dict[str, Any]) -> list[str]:
    names = [argument[2:].split("=")[0] for argument in arguments if argument.startswith("--")]
    known = {*hints, *(f"no_{name}" for name in hints), "config", "help"}
    return [f"command line: {_unknown(name, hints)}" for name in names if name.replace("-", "_") not in known]


def _unknown(key: str, hints: dict[str, Any]) -> str:
    near = difflib.get_close_matches(key, hints, n=1, cutoff=0.5)
    return f"unknown key `{key}`" + (f"; did you mean `{near[0]}`?" if near else "")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a YAML value can stand for a field of this type. YAML reads `2e-5` as a string, so numbers may be one."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in inner)
    if origin is Literal:
        return value in inner
    if origin in (list, tuple):
        item = inner[0] if inner else Any
        return isinstance(value, list) and all(_fits(element, item) for element in value)
    if origin is dict or hint is dict:
        return isinstance(value, dict)
    if hint is type(None):
        return value is None
    if hint is bool:
        return isinstance(value, bool)
    if hint in (int, float):
        return _is_number(value, hint)
    if isinstance(hint, type) and issubclass(hint, str):
        return isinstance(value, str)
    return True


def _is_number(value: Any, kind: type) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return False
    if kind is int:
        return isinstance(value, int)
    try:
        float(value)
    except ValueError:
        return False
    return True


def _describe(hint: Any) -> str:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, inner))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_describe(option) for option in inner if option is not type(None))
    if origin in (list, tuple):
        return f"a list of {_describe(inner[0])}" if inner else "a list"
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text", dict: "a mapping"}
    return names.get(hint, getattr(hint, "__name__", str(hint)))
