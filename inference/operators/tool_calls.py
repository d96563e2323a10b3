"""Parse the action of an agent's reply: a tool call as JSON inside `<tool_call>`, or an answer inside `<answer>`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from reflectune.inference.operators.reply_text import first_json

_CALL: Final = re.compile(r"<tool_call>(?P<text>.*?)(?:</tool_call>|\Z)", re.DOTALL)
_ANSWER: Final = re.compile(r"<answer>(?P<text>.*?)(?:</answer>|\Z)", re.DOTALL)
_FORMAT: Final = re.compile(
    r"\s*<thinking>(?:(?!</?thinking>).)*</thinking>\s*"
    r"(?:<tool_call>(?:(?!</?tool_call>).)*</tool_call>|<answer>(?:(?!</?answer>).)*</answer>)\s*",
    re.DOTALL,
)


@dataclass(frozen=True)
class Action:
    """A tool call or an answer.

    Attributes:
        tool: Name of the tool; "" for an answer.
        query: The call's query; "" without one.
        answer: The answer; "" for a call.
    """

    tool: str = ""
    query: str = ""
    answer: str = ""


def calls_tool(reply: str) -> bool:
    """Return True if a reply has a tool call, valid or not."""
    return _CALL.search(reply) is not None


def read_action(reply: str) -> Action | None:
    """Parse the first tool call of a reply, or else its last answer; None if it has neither, or the call is invalid.

    A call takes precedence, since its result may change the answer.

    Example:
        >>> read_action('<tool_call>{"name": "text_search", "arguments": {"query": "Vik Bridge"}}</tool_call>')
        Action(tool='text_search', query='Vik Bridge', answer='')
    """
    if call := _CALL.search(reply):
        return first_json(call["text"], _call)
    answers = [text for match in _ANSWER.finditer(reply) if (text := match["text"].strip())]
    return Action(answer=answers[-1]) if answers else None


def keeps_format(reply: str) -> bool:
    """Return True if a reply consists of `<thinking>…</thinking>` and one valid call or one answer."""
    return _FORMAT.fullmatch(reply) is not None and read_action(reply) is not None


def _call(value: Any) -> Action:
    """Return the action of a JSON value.

    Raises:
        ValueError: It isn't a call.
    """
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError("not a call")
    arguments = value.get("arguments") or {}
    query = arguments.get("query", "") if isinstance(arguments, dict) else ""
    return Action(value["name"].strip(), query.strip() if isinstance(query, str) else "")
