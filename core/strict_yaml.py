"""Reading YAML and JSON that people write, strictly: no key twice, no value that is more than a config can hold."""

from __future__ import annotations

import io
import json
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

import yaml

from reflectune.core.errors import UserError

MOST_BYTES: Final = 1 << 20
MOST_NODES: Final = 100_000
"""Keys and values that a file may hold once its aliases are written out."""

DEEPEST: Final = 50
"""Levels of lists and mappings."""

_TAGS: Final = tuple(f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map"))
_MERGE: Final = "tag:yaml.org,2002:merge"


def read_yaml(path: Path) -> Any:
    """The value that a YAML file holds.

    Raises:
        UserError: There is no such file or it can't be read, is not UTF-8 or not YAML, has a key twice, or is too large
            or too deep. No line of the file is quoted: it may hold a password.
    """
    if path.is_dir():
        raise UserError(f"config file needed, {path} is a folder; name the YAML file in it")
    if not path.is_file():
        raise UserError(f"config file not found: {path}")
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror}; check its permissions") from error
    if len(content) > MOST_BYTES:
        raise UserError(f"{path} is larger than {MOST_BYTES >> 20} MiB, which no config is")
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path} is not UTF-8 (byte {error.start}, line {line}); save it as UTF-8") from None
    return parse_yaml(content, str(path))


def parse_yaml(content: bytes, where: str) -> Any:
    """The value that YAML stands for.

    Args:
        content: One document, UTF-8.
        where: What it is called in an error.

    Raises:
        UserError: As `read_yaml`.
    """
    try:
        try:
            return _document(content, where, _QuickLoader)
        except yaml.YAMLError:  # libyaml takes no pair of surrogates, and words what is wrong in fewer words
            return _document(content, where, _Loader)
    except yaml.YAMLError as error:
        raise UserError(f"{where} is not valid YAML: {' '.join(str(error).split())}") from None


def _document(content: bytes, where: str, loader_type: Any) -> Any:
    _refuse_bombs(yaml.parse(io.BytesIO(content), Loader=loader_type), where)
    loader = loader_type(io.BytesIO(content))  # of a stream no error quotes a line
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        issues = [issue for mapping in _nodes(node) for issue in _repeated(mapping)]
        if issues:
            raise UserError(f"{where}: {'; '.join(issues)}")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def parse_value(text: str) -> Any:
    """A list or mapping as a command line has it: JSON, or YAML on one line.

    Raises:
        ValueError: It is neither, has a key twice or is too deep.
    """
    try:
        return parse_json(text)
    except json.JSONDecodeError:
        pass
    try:
        return parse_yaml(storable(text).encode(), "it")
    except UserError as error:
        raise ValueError(str(error)) from None


def parse_json(text: str) -> Any:
    """The value that a JSON text stands for.

    Raises:
        ValueError: It is no JSON, has a key twice, NaN or infinity, half of a surrogate pair, or is too deep.
    """
    try:
        return storable(json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant))
    except RecursionError:
        raise ValueError(f"more than {DEEPEST} levels deep") from None


def storable(value: Any) -> Any:
    """A value whose texts can be written to a file: halves of surrogate pairs are joined.

    Raises:
        ValueError: A text holds a half without its other one, or a zero byte, or the value is too deep.
    """
    return _storable(value, 0)


def _storable(value: Any, depth: int) -> Any:
    if depth > DEEPEST:
        raise ValueError(f"more than {DEEPEST} levels deep")
    if isinstance(value, list):
        return [_storable(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {_storable(key, depth + 1): _storable(item, depth + 1) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    if "\0" in value:
        raise ValueError("holds a zero byte")
    try:
        return value.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise ValueError("holds half of a surrogate pair, which is no character") from None


class _Strict(yaml.constructor.SafeConstructor):
    """The safe constructor, for which a date is a text and a tag that names another type is an error."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag in (*_TAGS, _MERGE)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if node.tag not in (*_TAGS, _MERGE):
            raise yaml.constructor.ConstructorError(None, None, "a tag that no config needs", node.start_mark)
        try:
            value = super().construct_object(node, deep)  # type: ignore[no-untyped-call]
            return storable(value) if isinstance(value, str) else value
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            told = str(error) if str(error).startswith("holds") else f"a value that is no {node.tag.rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(None, None, told, node.start_mark) from None


class _Loader(_Strict, yaml.SafeLoader):
    """Reads in Python."""


class _QuickLoader(_Strict, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads in C, where PyYAML has libyaml, some four times faster: a list of steps names dozens of files."""


def _refuse_bombs(events: Iterable[yaml.Event], where: str) -> None:
    """Count what the document holds with its aliases written out, and how deep, before anything is built of it."""
    sizes: dict[str | None, int] = {}
    open_nodes: list[tuple[str | None, int]] = []  # each with its anchor and the count before it
    count = 0
    for event in events:
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            if anchor:
                sizes[anchor] = count - before
        elif isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in open_nodes):
                raise UserError(f"{where}, line {_line(event)}: an alias refers to what it stands in")
            count += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.NodeEvent):
            if isinstance(event, yaml.CollectionStartEvent):
                open_nodes.append((event.anchor, count))
            elif event.anchor:
                sizes[event.anchor] = 1
            count += 1
        if len(open_nodes) > DEEPEST:
            raise UserError(f"{where}, line {_line(event)}: more than {DEEPEST} levels deep, which no config is")
        if count > MOST_NODES:
            raise UserError(f"{where}, line {_line(event)}: more than {MOST_NODES:,} values, aliases written out")


def _nodes(root: yaml.Node) -> Iterator[yaml.MappingNode]:
    """Every mapping of a document once, in order."""
    seen: set[int] = set()
    waiting = deque([root])
    while waiting:
        node = waiting.popleft()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            yield node
            waiting += [child for pair in node.value for child in pair]
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value


def _repeated(mapping: yaml.MappingNode) -> list[str]:
    """The keys that a mapping has twice, each with both lines."""
    lines: dict[tuple[str, str], int] = {}
    issues = []
    for key, _ in mapping.value:
        if isinstance(key, yaml.ScalarNode):
            if (key.tag, key.value) in lines:
                first = lines[key.tag, key.value]
                issues.append(f"`{key.value[:100]}` is given twice, in lines {first} and {_line(key)}; drop one")
            else:
                lines[key.tag, key.value] = _line(key)
    return issues


def _line(where: yaml.Event | yaml.Node) -> int:
    assert where.start_mark is not None
    return where.start_mark.line + 1


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"`{key[:100]}` is given twice; drop one")
        values[key] = value
    return values


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")
