"""Values of settings that would give wrong numbers without a word, lead out of a folder, or show a password."""

from __future__ import annotations

import importlib
import math
import typing
from typing import Any

import pytest
from annotated_types import Ge, Gt, Le
from pydantic.fields import FieldInfo

from reflectune import cli
from reflectune.core.config import Settings, find_problems
from reflectune.core.flags import kind_of, options_of
from reflectune.core.values import LARGEST_SEED

PASSWORD = "PASSWORD"

URLS = ("llm_url", "web_url", "server", "store")

CONFIGS: dict[str, type[Settings]] = {
    module: getattr(importlib.import_module(f"reflectune.{module}"), module.rpartition(".")[2]).kind
    for modules in cli.GROUPS.values()
    for module in modules
}


def bounds(field: FieldInfo) -> tuple[float, float]:
    """Return the least and the greatest value of a number."""
    found = [*field.metadata, *nested(field.annotation)]
    low = next((getattr(it, "ge", getattr(it, "gt", None)) for it in found if isinstance(it, (Ge, Gt))), -math.inf)
    return low, next((it.le for it in found if isinstance(it, Le)), math.inf)


def nested(annotation: Any) -> list[Any]:
    """Return the bounds of a list's items or of a union's options."""
    inner = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Annotated:
        return [bound for item in inner[1:] for bound in getattr(item, "metadata", [item])] + nested(inner[0])
    return [bound for argument in inner for bound in nested(argument)]


def is_number(field: FieldInfo) -> bool:
    return kind_of(field) == "number" and all(option in (int, float) for option in options_of(field.annotation))


@pytest.mark.parametrize("kind", CONFIGS.values(), ids=CONFIGS.keys())
def test_numbers_have_a_least_value_and_are_finite(kind: type[Settings]) -> None:
    for name, field in kind.model_fields.items():
        if is_number(field):
            low, high = bounds(field)
            assert low > -math.inf, name
            assert name != "seed" or (low, high) == (0, LARGEST_SEED)
            for value in (math.nan, math.inf, 9**400, low - 1):
                assert any(f"`{name}`" in problem for problem in find_problems(kind, {name: value})), (name, value)


SPLITS = [
    (kind, name)
    for kind in CONFIGS.values()
    for name, field in kind.model_fields.items()
    if "split" in name and field.annotation is not dict[str, Any]
]
"""Keys that name a split, or several."""


@pytest.mark.parametrize(("kind", "name"), SPLITS, ids=[f"{kind.__name__}.{name}" for kind, name in SPLITS])
def test_a_split_is_not_a_path(kind: type[Settings], name: str) -> None:
    for value in ("a/b", "..", "../../etc", "a\nb", "a\\b"):
        given = value if kind.model_fields[name].annotation is str else [value]
        assert any(f"`{name}" in problem for problem in find_problems(kind, {name: given})), value


ADDRESSES = [(kind, name) for kind in CONFIGS.values() for name in URLS if name in kind.model_fields]


@pytest.mark.parametrize(("kind", "name"), ADDRESSES, ids=[f"{kind.__name__}.{name}" for kind, name in ADDRESSES])
def test_a_malformed_url_is_refused_and_its_password_not_shown(kind: type[Settings], name: str) -> None:
    for value in ("ftp://host", "http://host:99999", f"me:{PASSWORD}@host", f"http://me:{PASSWORD}/1@host"):
        problems = find_problems(kind, {name: value})
        assert any(f"`{name}`" in problem for problem in problems), value
        assert PASSWORD not in "".join(problems)
