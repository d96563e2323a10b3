"""Parse the queries of a free reply: of its JSON, or of its section `## Queries`, and never of its analysis."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from reflectune.inference.operators.reply_text import clean_reply, first_json

_AT_START = r"^[^\w\n{\"]{0,8}(?:\d{1,2}[ \t]{0,2}[.)][ \t*_]{0,8})?(?:section[ \t]{0,2}:?[ \t]{0,2})?"
_MORE = r"(?:(?:the|two|2|your|further|follow[- ]?up|search|new|additional|generated|refined|final)\s){0,5}"
_HEADING = re.compile(
    rf"{_AT_START}{_MORE}(?:queries|questions|outputs?)\b(?:[ \t]?\([^)\n]{{1,60}}\))?"
    r"(?:[^\w\n]{0,20}$|[^\w\n:：]{0,8}[:：][*_ \t]{0,8}(?=\S))"
    rf"|^[ \t]{{0,8}}[#*<\[][^\w\n]{{0,8}}{_MORE}(?:query|question)\b[^\w\n]{{0,20}}$",
    re.IGNORECASE | re.MULTILINE,
)
_INTRODUCTION = re.compile(
    r"^[^\n?]{0,200}\b(?:queries|questions)\b[^\n?:]{0,200}:[^\w\n]{0,8}$", re.IGNORECASE | re.MULTILINE
)
_OTHER_HEADING = re.compile(
    rf"{_AT_START}(?:the\s)?(?:analysis|reasoning|rationale|notes?|explanations?|summary|conclusion)\b"
    r"(?:[^\w\n]{0,20}$|[*_ ]{0,8}[:：])|^#{1,6} (?!.*(?:quer|question|output)).*$",
    re.IGNORECASE | re.MULTILINE,
)
_TAG = re.compile(r"<(?P<tag>(?:query|question|q)\d{0,2})>(?P<text>[^<]*)</(?P=tag)>", re.IGNORECASE)
_RUN_ON = re.compile(
    r"(?<=\S)[ \t](?=(?:\*\*)?(?:question|query) ?\d{1,2} ?[:：])|(?<=[?？])[ \t](?=\d[.)]\s)", re.IGNORECASE
)
_LABEL = re.compile(
    r"^(?P<indent>[^\w\n]{0,16})(?:(?:follow[- ]?up|search|next|first|second)\s){0,3}(?:question|query|q)(?![a-z])\s?#?"
    r"(?P<number>\d{0,2})(?:[^\w\n:：]{0,8}[:：)]|(?<=\d)[^\w\n]{0,8}(?:$|\s)|[^\w\n]{0,8}$)[\s*_]{0,8}(?P<text>.*)$",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"^(?P<indent>[^\w\n]{0,16})\d{1,2}\s?[.):：][\s*_]{0,8}(?P<text>\S.*)$")
_BULLET = re.compile(r"^(?P<indent>\s{0,16})(?:[-•–]\s{0,8}|[*+]\s{1,8})(?P<text>[^\s-].*)$")
_BOLD = re.compile(r"^\*\*(?P<text>[^*]+)\*\*")
_NOTE = re.compile(r"(?<=[?？])[\"'”*_)\s]{0,8}\s[-–—(:].*$")
_ECHO = re.compile(
    r"(?:(?:the|your|first|second|follow[- ]?up|generated|search|insert|next|an?|another)\s)*(?:question|query)?"
    r"(?:\s(?:one|two|text))?[\s\d]*(?:here)?[\s.:…]*|(?:none|n/?a|nothing)\b.*"
    r"|no\s(?:(?:further|more|additional|other|new|follow[- ]?up)\s)*(?:quest|quer|search).*",
    re.IGNORECASE,
)
_KEY = re.compile(
    r"(?!original|user|main|input).*(?:quer(?:y|ies)|questions?|outputs?)[\s_-]*\d*|q?\d+|text", re.IGNORECASE
)
_AROUND: Final = " \t\"'`*_“”<>[]"


def read_queries(reply: str, most: int) -> tuple[str, ...]:
    """Parse at most `most` distinct queries from a JSON value, or from the items of the section `## Queries`.

    Without that heading the whole reply is read, or, if it has an analysis, only the questions with a number of their
    own that end it: a reply that was cut inside its analysis has none. An item's notes and an echo of the prompt's
    placeholder, `question 2.`, which small models repeat, are dropped.

    Example:
        >>> read_queries("## Analysis\\nA bridge.\\n## Queries\\nQuestion 1: Who built it?\\nQuestion 2: When?", 2)
        ('Who built it?', 'When?')
    """
    found = (_tidy(query) for query in _found(_RUN_ON.sub("\n", clean_reply(reply))))
    return tuple(dict.fromkeys(query for query in found if _is_query(query)))[:most]


def _found(text: str) -> Sequence[str]:
    if found := first_json(text, _of_object):
        return found
    for heading in reversed([*_HEADING.finditer(text)]):
        end = _OTHER_HEADING.search(text, heading.end())
        section = text[heading.end() : end.start() if end else len(text)]
        if found := _listed(section):
            return found
    if _OTHER_HEADING.search(text):
        return _last_labels(text)
    introductions = [*_INTRODUCTION.finditer(text)]
    return _listed(text[introductions[-1].end() :] if introductions else text)


def _listed(text: str) -> Sequence[str]:
    """Return the queries of a text that consists of them: JSON, tags, or items."""
    return first_json(text, _of_list) or [match["text"] for match in _TAG.finditer(text)] or _items(text)


def _items(text: str) -> list[str]:
    """Return the items of the first kind that there is: labels, numbers, bullets, questions.

    Of numbers and bullets the outermost count, and of bullets those that ask, if any does: others are notes.
    """
    lines = text.splitlines()
    for kind in (_LABEL, _NUMBER, _BULLET):
        matches = {place: match for place, line in enumerate(lines) if (match := kind.match(line))}
        if kind is _LABEL:
            outer = matches
        else:
            least = min((_width(match["indent"]) for match in matches.values()), default=0)
            outer = {place: match for place, match in matches.items() if _width(match["indent"]) == least}
        items = [_whole(match["text"], lines[place + 1 :]) for place, match in outer.items()]
        if kind is _BULLET and any(map(_asks, items)):
            items = [*filter(_asks, items)]
        if any(_is_query(_tidy(item)) for item in items):
            return items
    sentences = (part for line in lines if line[:1] not in "[{" for part in re.split(r"(?<=[?？])\s+", line))
    return [*filter(_asks, sentences)]


def _whole(item: str, following: Sequence[str]) -> str:
    """Return an item with its next line, if it is empty without it or goes on there."""
    after = next((line.strip() for line in following if line.strip()), "")
    if not item.strip(_AROUND):
        listed = _NUMBER.match(after) or _BULLET.match(after)
        return "" if _LABEL.match(after) else listed["text"] if listed else after
    goes_on = (
        bool(following)
        and following[0].strip()[:1].islower()
        and not item.rstrip(_AROUND).endswith((".", "?", "!", "？"))
    )
    return f"{item} {following[0].strip()}" if goes_on else item


def _last_labels(text: str) -> list[str]:
    """Return the numbered questions that end a text, if nothing else follows the first of them."""
    blocks = [block for block in text.splitlines() if block.strip()]
    first = next((place for place, line in enumerate(blocks) if (it := _LABEL.match(line)) and it["number"]), None)
    if first is None or any(not _LABEL.match(line) and not _BULLET.match(line) for line in blocks[first:]):
        return []
    return _items("\n".join(blocks[first:]))


def _tidy(query: str) -> str:
    """Remove a query's quotes and emphasis, and the note after it."""
    bold = _BOLD.match(query.strip())
    text = bold["text"] if bold and _asks(bold["text"]) else query
    return _NOTE.sub("", text.strip()).strip(_AROUND)


def _is_query(text: str) -> bool:
    return any(map(str.isalpha, text)) and not _ECHO.fullmatch(text)


def _asks(text: str) -> bool:
    return _NOTE.sub("", text).rstrip(_AROUND).endswith(("?", "？"))


def _width(indent: str) -> int:
    return len(indent) - len(indent.lstrip())


def _of_object(value: Any) -> Sequence[str]:
    """Return the queries of a JSON object.

    Raises:
        ValueError: There are none.
    """
    if not isinstance(value, dict) or not (found := [*_strings(value)]):
        raise ValueError("not an object with queries")
    return found


def _of_list(value: Any) -> Sequence[str]:
    """Return the queries of a JSON list: of objects, or of strings with several words.

    Raises:
        ValueError: There are none.
    """
    found = [*_strings(value)] if isinstance(value, list) else []
    if not any(" " in text or _asks(text) for text in found):
        raise ValueError("not a list of queries")
    return found


def _strings(value: Any) -> Iterator[str]:
    """Yield the strings of a JSON value that are queries: those under a key for them, under a list's key if one is."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        named = [item for key, item in value.items() if _KEY.fullmatch(str(key))]
        for item in [item for item in named if not isinstance(item, str)] or named:
            yield from _strings(item)
