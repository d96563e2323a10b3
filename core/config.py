"""Configs: a YAML file and command-line overrides into dataclasses, checked whole before anything is loaded."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import sys
import types
import typing
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, TypeVar

from reflectune.core.addresses import conceal_address
from reflectune.core.checks import Check, number, one_line, short
from reflectune.core.errors import UserError
from reflectune.core.strict_yaml import parse_value, read_yaml, storable

Value = TypeVar("Value")

DTYPES: Final = ("float32", "bfloat16", "float16")
"""Precisions that a model is loaded in."""

DEVICE_MAPS: Final = ("auto", "balanced", "balanced_low_0", "sequential")
"""Ways to spread one model's layers over several GPUs, by transformers' names."""


def setting(
    default: Any,
    text: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    choices: Sequence[str] = (),
    says: str = "",
    check: Check | None = None,
    repr: bool = True,
) -> Any:
    """A field of a config class, with the help that `--help` prints and the bounds that `parse_config` checks.

    Of a list each item must be within the bounds. A number must be finite, whatever they are.

    Args:
        default: The value if none is given. Of a list or mapping each instance gets its own copy.
        text: The help.
        low: The least value.
        high: The greatest one.
        above: The value must be greater than this.
        choices: The names that are valid, in the order that an error lists them.
        says: What an error says of a wrong value before it shows it; by the bounds if unset.
        check: Of `reflectune.core.checks` or like those: what is wrong with a value, "" if nothing is.
        repr: Whether the value is shown, in errors too; False for one that may hold a secret.

    Example:
        >>> @dataclasses.dataclass
        ... class Settings:
        ...     steps: int = setting(10, "steps between checkpoints", low=1)
        >>> bound_problems(Settings(steps=0), Settings)
        ['`steps` must be at least 1, found 0']
    """
    metadata = {"help": text, "bounds": _Bounds(low, high, above, tuple(choices), says, check)}
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=lambda: copy.copy(default), metadata=metadata, repr=repr)
    return dataclasses.field(default=default, metadata=metadata, repr=repr)


def bound_problems(config: Any, kind: type | None = None) -> list[str]:
    """The values of a config that are out of bounds, one sentence each. A key that is unset by None may be None.

    Args:
        config: An instance of `kind`, or of a class that inherits it.
        kind: A config class. Fields that it declares itself are checked, those that it inherits are not; all are if
            it is None.
    """
    declared_fields = config.__dataclass_fields__ if kind is None else vars(kind).get("__annotations__", {})
    problems = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        is_unset = value is None and field.default is None
        if field.name in declared_fields and not is_unset:
            bounds = field.metadata.get("bounds", _NO_BOUNDS)
            for item in value if isinstance(value, list) else [value]:
                problems.append(bounds.problem(field.name, item, is_secret=not field.repr))
    return [problem for problem in problems if problem]


@dataclasses.dataclass(frozen=True)
class _Bounds:
    low: float | None
    high: float | None
    above: float | None
    choices: tuple[str, ...]
    says: str
    check: Check | None

    def problem(self, name: str, value: Any, is_secret: bool) -> str:
        """What is wrong with a value, which is shown unless it is secret; "" if it is within the bounds."""

        def shown() -> str:
            return "another value" if is_secret else short(str(value))

        if self.choices and value not in self.choices:
            return f"`{name}` is one of {', '.join(self.choices)}; found `{shown()}`"
        is_low = self.low is not None and not value >= self.low  # so that NaN is out of bounds
        is_high = self.high is not None and not value <= self.high
        if is_low or is_high or (self.above is not None and not value > self.above):
            return f"`{name}` {self.says or self._in_words()}, found {shown()}"
        if told := number(value) or (self.check(value) if self.check else ""):
            return f"`{name}` {told}"
        return ""

    def _in_words(self) -> str:
        if self.above is not None:
            return f"must be above {self.above:g}"
        if self.low is None:
            return f"must be at most {self.high:g}"
        return (
            f"must be at least {self.low:g}" if self.high is None else f"must be between {self.low:g} and {self.high:g}"
        )


_NO_BOUNDS: Final = _Bounds(None, None, None, (), "", None)


def parse_config(*kinds: Any, argv: Sequence[str] | None = None) -> tuple[Any, ...]:
    """Read `--config FILE.yaml` and `--key value` overrides into one instance of each dataclass.

    Of a key that the command line has twice the last value counts, so that a script's can be overridden; in a file it
    is an error. A list or mapping may be given as JSON: `--splits '{"train": "train.json"}'`. A config class may have a
    method `problems() -> list[str]`, which says what is wrong with its values. Unknown keys (with the nearest valid
    one), wrong types, values out of their fields' bounds and those problems are collected and reported in one error.

    Args:
        kinds: Dataclasses whose fields together are the valid keys.
        argv: The command line without the program's name; `sys.argv[1:]` if None.

    Raises:
        UserError: Lists every problem found.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    hints = {name: hint for kind in kinds for name, hint in _field_types(kind).items()}
    hidden = {field.name for kind in kinds for field in dataclasses.fields(kind) if not field.repr}
    path, arguments, issues = split_config(arguments)
    values, yaml_issues = _read_file(path, hints, hidden) if path is not None else ({}, [])
    structured, arguments, flag_issues = _take_structured(arguments, hints)
    _report(issues + yaml_issues + flag_issues + _check_flags(arguments, hints))
    parsed = _parse(kinds, {**values, **structured}, arguments, hidden)
    for config in parsed:
        for name in hidden & vars(config).keys():
            conceal_address(str(getattr(config, name)))
    _report([issue for config in parsed for issue in _config_problems(config)])
    return parsed


def read_config(kind: type[Value], path: str | Path, **changes: str) -> Value:
    """Read a YAML file into a config, with some keys changed: a command that runs others by their files.

    Args:
        kind: The config.
        path: The file.
        **changes: Values as a command line has them; those of a list are separated by commas.

    Raises:
        UserError: As `parse_config`.
    """
    lists = {name for name, hint in typing.get_type_hints(kind).items() if typing.get_origin(hint) is list}
    values = {name: value.split(",") if name in lists else [value] for name, value in changes.items()}
    flags = [text for name, texts in values.items() for text in (f"--{name}", *texts)]
    (config,) = parse_config(kind, argv=["--config", str(path), *flags])
    value: Value = config
    return value


def split_config(arguments: Sequence[str]) -> tuple[Path | None, list[str], list[str]]:
    """The file that `--config FILE` or `--config=FILE` names, the other arguments, and what is wrong with it."""
    paths: list[str] = []
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        if word.startswith("--config="):
            paths.append(word.removeprefix("--config="))
        elif word == "--config":
            paths.append(next(words, ""))
        else:
            rest.append(word)
    if len(paths) > 1:
        return None, rest, [f"`--config` is given {len(paths)} times, with {' and '.join(paths)}; give one file"]
    if not paths:
        return None, rest, []
    if not paths[0] or paths[0].startswith("--"):
        return None, rest, ["--config needs the path of a YAML file"]
    return Path(paths[0]), rest, []


def _report(issues: Sequence[str]) -> None:
    if issues:
        raise UserError("\n  ".join(["the config has problems:", *dict.fromkeys(map(one_line, issues))]))


def _config_problems(config: Any) -> list[str]:
    """What is wrong with a config's values; files are only looked at if the fields are right by themselves."""
    issues = bound_problems(config)
    try:
        return issues + (config.problems() if hasattr(config, "problems") else [])
    except (TypeError, ValueError, OverflowError):
        if issues:  # a value that is out of bounds may be one that nothing can be computed with
            return issues
        raise


def _parse(kinds: Sequence[Any], values: Mapping[str, Any], arguments: list[str], hidden: Set[str]) -> tuple[Any, ...]:
    """Instances of the classes, from what a file says and what the command line says instead."""
    from trl import TrlParser  # slow to import, so only once the config's keys are known to be right

    class Parser(TrlParser):
        @staticmethod
        def _parse_dataclass_field(parser: Any, field: dataclasses.Field) -> None:
            # transformers (5) hands all of a field's metadata to argparse, which knows no bounds
            told = copy.copy(field)
            told.metadata = types.MappingProxyType({k: v for k, v in field.metadata.items() if k != "bounds"})
            TrlParser._parse_dataclass_field(parser, told)

        def error(self, message: str) -> NoReturn:  # argparse would print the usage of every key around it
            _report([f"command line: {short(message)}; --help lists the keys"])
            raise AssertionError  # reported above

    parser = Parser(list(kinds), allow_abbrev=False)
    parser.set_defaults_with_config(**values)
    *parsed, left = parser.parse_args_into_dataclasses(
        arguments, return_remaining_strings=True, look_for_args_file=False
    )
    _report([_stray(word, arguments, hidden) for word in left])
    return tuple(parsed)


def _stray(word: str, arguments: Sequence[str], hidden: Set[str]) -> str:
    before = [argument[2:] for argument in arguments[: arguments.index(word)] if argument.startswith("--")]
    if before and before[-1].split("=")[0].replace("-", "_") in hidden:
        return f"command line: `--{before[-1].split('=')[0]}` takes one word; put quotes around it"
    return f"command line: stray word `{word[:100]}`; a key is given as --key value, the file as --config FILE"


def _field_types(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}


def _read_file(path: Path, hints: dict[str, Any], hidden: Set[str]) -> tuple[dict[str, Any], list[str]]:
    """The values of a YAML file, and what is wrong with them."""
    try:
        values = read_yaml(path)
    except UserError as error:
        return {}, [str(error)]
    if not isinstance(values, dict):
        return {}, [f"{path} must hold `key: value` lines, found {type(values).__name__}"]
    issues = []
    for key, value in values.items():
        if key not in hints:
            issues.append(f"{path}: {_unknown(str(key), hints)}")
        elif not _fits(value, hints[key]):
            shown = f"a value of type {type(value).__name__}" if key in hidden else short(repr(value))
            issues.append(f"{path}: `{key}` should be {_describe(hints[key])}, found {shown}")
    return {} if issues else {key: _as_numbers(value, hints[key]) for key, value in values.items()}, issues


def _take_structured(arguments: Sequence[str], hints: dict[str, Any]) -> tuple[dict[str, Any], list[str], list[str]]:
    """The lists and mappings that a command line gives as JSON, the other arguments, and what is wrong with them."""
    values: dict[str, Any] = {}
    rest: list[str] = []
    issues: list[str] = []
    position = 0
    while position < len(arguments):
        word, position = arguments[position], position + 1
        flag, equals, text = word.partition("=")
        name = flag[2:].replace("-", "_")
        if not equals and position < len(arguments):
            text = arguments[position]
        alone = bool(equals) or position + 1 >= len(arguments) or arguments[position + 1].startswith("--")
        if not (word.startswith("--") and name in hints and alone and _is_structured(text, hints[name])):
            rest.append(word)
            continue
        position += 0 if equals else 1
        try:
            value = parse_value(text)
        except ValueError as error:
            issues.append(f"command line: `{name}` should be {_describe(hints[name])}: {error}")
            continue
        if _fits(value, hints[name]):
            values[name] = _as_numbers(value, hints[name])
        else:
            issues.append(f"command line: `{name}` should be {_describe(hints[name])}, found {short(repr(value))}")
    return values, rest, issues


def _is_structured(text: str, hint: Any) -> bool:
    """Whether an argument is to be read as JSON or YAML: by its field's type, and by how it begins."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    kinds = [typing.get_origin(option) or option for option in options]
    if dict in kinds:
        return bool(text) and not text.startswith("--")
    begins = text.lstrip()[:1]
    if any(isinstance(kind, type) and issubclass(kind, dict) for kind in kinds):
        return begins == "{"
    return list in kinds and begins == "[" and text.rstrip().endswith("]")


def _check_flags(arguments: list[str], hints: dict[str, Any]) -> list[str]:
    names = [argument[2:].split("=")[0] for argument in arguments if argument.startswith("--")]
    known = {*hints, *(f"no_{name}" for name in hints), "help"}
    issues = [f"command line: {_unknown(name, hints)}" for name in names if name.replace("-", "_") not in known]
    for argument in arguments:
        try:
            storable(argument)
        except ValueError as error:
            issues.append(f"command line: a word {error}; write it as UTF-8")
    return issues


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
        return isinstance(value, dict) and (not inner or all(_fits(key, inner[0]) for key in value))
    if hint is type(None):
        return value is None
    if hint is bool:
        return isinstance(value, bool)
    if hint in (int, float):
        return _is_number(value, hint)
    if isinstance(hint, type) and issubclass(hint, str):
        return isinstance(value, str)
    if isinstance(hint, type) and issubclass(hint, dict):  # a text too: it reads one
        return isinstance(value, str) or (isinstance(value, dict) and all(isinstance(key, str) for key in value))
    return not (isinstance(hint, type) and issubclass(hint, int)) or type(value) not in (bool, list, dict, type(None))


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


def _as_numbers(value: Any, hint: Any) -> Any:
    """A value of a file in which a number that YAML reads as a text, such as `2e-5`, is one."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        fitting = [option for option in inner if _fits(value, option)]
        return _as_numbers(value, fitting[0])
    if origin is list and inner:
        return [_as_numbers(item, inner[0]) for item in value]
    return float(value) if hint is float and isinstance(value, str) else value


def _describe(hint: Any) -> str:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, inner))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_describe(option) for option in inner if option is not type(None))
    if origin in (list, tuple):
        return f"a list of {_describe(inner[0])}" if inner else "a list"
    if origin is dict:
        return "a mapping"
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text", dict: "a mapping"}
    return names.get(hint, getattr(hint, "__name__", str(hint)))
