"""Parse YAML and JSON that people write: a key that is given twice is an error, and so is an alias."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, Final

import yaml

from reflectune.core.errors import UserError

LARGEST_FILE: Final = 1 << 20
"""Bytes of a YAML file."""


def read_yaml(path: Path) -> Any:
    """Read a YAML file.

    Raises:
        UserError: The file can't be read, is larger than 1 MiB, is not UTF-8 or not YAML, has a key twice or an alias.
            The message quotes no line of the file: it may hold a password.
    """
    if path.is_dir():
        raise UserError(f"config file needed, {path} is a folder; name the YAML file in it")
    if not path.is_file():
        raise UserError(f"config file not found: {path}")
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror}; check its permissions") from error
    if len(content) > LARGEST_FILE:
        raise UserError(f"{path} is larger than 1 MiB, too large for a config")
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path} is not UTF-8 (byte {error.start}, line {line}); save it as UTF-8") from None
    return parse_yaml(content, str(path))


def parse_yaml(content: bytes, name: str) -> Any:
    """Parse one YAML document in UTF-8.

    Args:
        content: The document.
        name: Its name in an error.

    Raises:
        UserError: As `read_yaml`.
    """
    try:
        return yaml.load(io.BytesIO(content), Loader=_Loader)  # an error about a stream quotes no line
    except yaml.YAMLError as error:
        raise UserError(f"{name} is not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise UserError(f"{name} is not valid YAML for a config: nested too deeply") from None
    except (ValueError, LookupError, TypeError, AttributeError):  # `!!int x` and the like, which PyYAML doesn't catch
        raise UserError(
            f"{name} is not valid YAML: a value doesn't fit its tag, or is a number of too many digits"
        ) from None


def parse_value(text: str) -> Any:
    """Parse a list or mapping of a command line: JSON, or YAML on one line.

    Raises:
        ValueError: The text is neither, or has a key twice.
    """
    try:
        return parse_json(text)
    except json.JSONDecodeError:
        pass
    try:
        return parse_yaml(text.encode(), "the text")
    except UserError as error:
        raise ValueError(str(error)) from None


def parse_json(text: str) -> Any:
    """Parse JSON.

    Raises:
        ValueError: The text is not JSON, has a key twice, NaN or infinity, or is nested too deeply.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


class _Loader(yaml.SafeLoader):
    """YAML's safe loader without aliases and dates, in which 2e-5 is a number and a key can't be given twice."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [pair for pair in pairs if not pair[0].endswith(":timestamp")]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, "an alias; write out the value that it stands for", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[tuple[str, str], list[int]] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                lines.setdefault((key.tag, key.value), []).append(key.start_mark.line + 1)
        twice = [
            f"`{key[:100]}` is given twice, in lines {found[0]} and {found[1]}; drop one"
            for (_, key), found in lines.items()
            if len(found) > 1
        ]
        if twice:
            raise yaml.constructor.ConstructorError(None, None, "; ".join(twice), node.start_mark)
        return super().construct_mapping(node, deep)


# YAML 1.1 wants a point in a number with an exponent.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+"), list("-+.0123456789")
)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if twice := [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]:
        raise ValueError(f"`{twice[0][:100]}` is given twice; drop one")
    return dict(pairs)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number of JSON")
