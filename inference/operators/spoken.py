"""Read a reply before its form: without thoughts and code fences, and the JSON in it."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

from reflectune.models.rendering.thoughts import without_thoughts

Value = TypeVar("Value")

_FENCE = re.compile(r"```\w*\n?|```")
_MAX_BRACKETS: Final = 64
"""Maximum number of brackets tried as the start of a reply's JSON: a repetitive reply has thousands."""


def spoken(reply: str) -> str:
    """Remove thoughts and code fences from a reply."""
    return _FENCE.sub("", without_thoughts(reply)).strip()


def first_json(text: str, read: Callable[[Any], Value]) -> Value | None:
    """Return the first result of `read`, which rejects by ValueError, for JSON in a text, cut off or not; else None."""
    for match in itertools.islice(re.finditer(r"[{\[]", text), _MAX_BRACKETS):
        try:
            return read(json.JSONDecoder().raw_decode(text, match.start())[0])
        except (ValueError, RecursionError):
            continue
    return None
