"""Every command of the tree and its config class: the scripts that give one to `parse_config`."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_FLOORS = ("models", "metrics", "retrieval", "data_builders", "inference", "train")


@dataclass(frozen=True)
class Command:
    """A script, as its module is called below `reflectune`, and the config class that it reads."""

    module: str
    config: str

    @functools.cached_property
    def script(self) -> Any:
        return importlib.import_module(f"reflectune.{self.module}")

    @property
    def kind(self) -> Any:
        return getattr(self.script, self.config)

    @functools.cached_property
    def hints(self) -> dict[str, Any]:
        return typing.get_type_hints(self.kind)

    def __str__(self) -> str:
        return self.module


def _config_class(text: str) -> str:
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    (name,) = [call.args[0].id for call in calls if getattr(call.func, "id", "") == "parse_config"]  # type: ignore[attr-defined]
    return name


def commands() -> list[Command]:
    """In the order of the floors."""
    paths = [path for floor in _FLOORS for path in sorted((ROOT / floor).rglob("*.py"))]
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    return [
        Command(path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."), _config_class(text))
        for path, text in texts.items()
        if re.search(r"\bparse_config\(", text)
    ]


def leaf(hint: Any) -> Any:
    """The type of one value: `int` of `int | None` and of `list[int]`."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return leaf(next(option for option in typing.get_args(hint) if option is not type(None)))
    return leaf(typing.get_args(hint)[0]) if typing.get_origin(hint) is list else hint
