"""What a reasoning model thinks before it answers: where it ends in a reply, and the reply without it."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Sequence
from typing import Final

_THOUGHT: Final = re.compile(r"<think>.*?(?:</think>|\Z)|\A(?:(?!<think>).)*?</think>", re.DOTALL | re.IGNORECASE)
"""Thoughts, closed or cut off. Chat templates that open them in the prompt leave a reply that only closes them."""
_END: Final = "</think>"


def without_thoughts(reply: str) -> str:
    """A reply without what a reasoning model thinks first; one without thoughts as it is.

    Example:
        >>> without_thoughts("<think>The tower is of iron.</think> Paris")
        'Paris'
    """
    said, thoughts = _THOUGHT.subn("", reply)
    return said.strip() if thoughts else reply


def thought_tokens(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> int:
    """How many tokens a reply begins with up to the end of its thoughts: 0 without any, all if they are cut off.

    Args:
        ids: The reply's token ids.
        decode: Makes text of token ids, special tokens kept.
    """
    reply = decode(ids)
    if not _THOUGHT.search(reply):
        return 0
    ends = reply.lower().count(_END)
    if not ends:
        return len(ids)
    return bisect.bisect_left(range(len(ids) + 1), ends, key=lambda count: decode(ids[:count]).lower().count(_END))
