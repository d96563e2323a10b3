"""Thoughts of a reasoning model: find their end in a reply, and remove them."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Sequence
from typing import Final

_THOUGHT: Final = re.compile(r"<think>.*?(?:</think>|\Z)|\A(?:(?!<think>).)*?</think>", re.DOTALL | re.IGNORECASE)
"""Thoughts, closed or cut off. Chat templates that open them in the prompt leave a reply that only closes them."""
_END: Final = "</think>"


def without_thoughts(reply: str) -> str:
    """Return a reply without the thoughts before it; a reply without thoughts is returned unchanged.

    Example:
        >>> without_thoughts("<think>The tower is of iron.</think> Paris")
        'Paris'
    """
    said, thoughts = _THOUGHT.subn("", reply)
    return said.strip() if thoughts else reply


def thought_tokens(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> int:
    """Return the number of tokens up to the end of a reply's thoughts: 0 without any, all if they are cut off.

    Args:
        ids: Token ids of the reply.
        decode: Decodes token ids, special tokens included.
    """
    reply = decode(ids)
    if not _THOUGHT.search(reply):
        return 0
    ends = reply.lower().count(_END)
    if not ends:
        return len(ids)
    return bisect.bisect_left(range(len(ids) + 1), ends, key=lambda count: decode(ids[:count]).lower().count(_END))
