"""Clean a model's reply before it is parsed, and find the JSON in it."""

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


def clean_reply(reply: str) -> str:
    """Remove thoughts and code fences from a reply."""
    return _FENCE.sub("", without_thoughts(reply)).strip()


def first_json(text: str, read: Callable[[Any], Value]) -> Value | None:
    """Return `read` of the first JSON value in a text that it accepts; None if it accepts none.

    Args:
        text: Text with JSON values anywhere in it.
        read: Converts a value, or raises ValueError to reject it.
    """
    for match in itertools.islice(re.finditer(r"[{\[]", text), _MAX_BRACKETS):
        try:
            return read(json.JSONDecoder().raw_decode(text, match.start())[0])
        except (ValueError, RecursionError):
            continue
    return None
