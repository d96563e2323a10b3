"""Tolerant parsers of free replies: queries, an order, a choice, an answer. An unreadable reply parses as empty."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, TypeVar

from reflectune.inference.operators.requests import Box, Form
from reflectune.metrics.judging.extraction import short_answer
from reflectune.models.rendering.thoughts import without_thoughts

Value = TypeVar("Value")
STATE_FIELDS: Final = ("need", "referent", "constraints")
"""Names of the values of MM-R2's state."""
Letter: TypeAlias = Literal["A", "B"]
"""Name of one of two documents in a prompt."""

_FENCE = re.compile(r"```\w*\n?|```")
_SECTION = re.compile(r"^\W*(?:queries|output|questions?)\W*$", re.IGNORECASE | re.MULTILINE)
_NUMBERED = re.compile(r"^\W*(?:(?:question|query)\s*\d*\s*[:.)]|\d+\s*[:.)]|[-*•])\s*(?P<text>\S.*)$", re.IGNORECASE)
_ECHO = re.compile(r"(?:(?:the )?(?:question|query))?[\s\d]*[.:]?", re.IGNORECASE)
_DOCUMENT = re.compile(r"\[?\s*(?:document|doc|passage)\s*(?P<long>\d+)\s*\]?|\[\s*(?P<short>\d+)\s*\]", re.IGNORECASE)
_ANSWER = re.compile(r"<answer>(?P<text>.*?)(?:</answer>|\Z)", re.DOTALL | re.IGNORECASE)
_CHOICE = re.compile(r"^[^\w\n]*answers?[^\w\n:=]*[:=](?P<text>.*)$", re.IGNORECASE | re.MULTILINE)
_LETTERS = re.compile(r"\W*(?:[A-Z](?:\W+|\W*\band\W+|\Z))+", re.DOTALL)
_OPTION = re.compile(r"\b[A-Z]\b")
_NUMBER = re.compile(r"\d*\.?\d+")
_LIST = re.compile(r"\[[^\[\]]*\]")
_LETTER = re.compile(r"\bdocument\s*(?P<long>[ab])\b|^\W*(?P<short>[ab])\W*$", re.IGNORECASE)

_MOST_BRACKETS = 64
"""Maximum number of brackets tried as the start of a reply's JSON: a repetitive reply has thousands."""


def is_readable(reply: str, form: Form, shown: int, count: int) -> bool:
    """Return True if a reply has a form: about `count` documents, `shown` of them within the context."""
    return bool(FORMS[form](reply, shown, count))


def spoken(reply: str) -> str:
    """Remove thoughts and code fences from a reply."""
    return _FENCE.sub("", without_thoughts(reply)).strip()


def queries(reply: str, most: int) -> tuple[str, ...]:
    """Parse at most `most` distinct queries from a JSON value, or from a list after `## Queries`.

    A reply without the heading may be the list itself. If no line is numbered, a line that ends with a question mark is
    a query. An echo of the prompt's placeholder, `question 2.`, which small models repeat, is dropped.

    Example:
        >>> queries("## Analysis\\nIt is a bridge.\\n## Queries\\nQuestion 1: Who built it?\\nQuestion 2: When?", 2)
        ('Who built it?', 'When?')
    """
    text = spoken(reply)
    found = _in_json(text, lambda value: [*_strings(value)]) or []
    if not found:
        headings = list(_SECTION.finditer(text))
        listed = text[headings[-1].end() :] if headings else text
        lines = [line.strip() for line in listed.splitlines() if line.strip()]
        found = [match["text"] for line in lines if (match := _NUMBERED.match(line))]
        found = found or [line for line in lines if line.endswith("?")]
    tidy = (query.strip().strip('"*').strip() for query in found)
    return tuple(dict.fromkeys(query for query in tidy if not _ECHO.fullmatch(query)))[:most]


def order(reply: str, count: int) -> tuple[int, ...] | None:
    """Parse an order of `count` documents, such as `[Document 2] > [Document 1]`, as indices from 0.

    Documents that are left out follow in their previous order; numbers out of range are ignored.

    Returns:
        None if no document is named.
    """
    known = named_documents(reply, count)
    return (*known, *(number for number in range(count) if number not in known)) if known else None


def named_documents(reply: str, count: int) -> tuple[int, ...]:
    """Parse the numbers of `count` documents that a reply names, each once, in its order, as indices from 0.

    Example:
        >>> named_documents("[3] > [1] > [9]", 4)
        (2, 0)
    """
    named = (int(match["long"] or match["short"]) - 1 for match in _DOCUMENT.finditer(spoken(reply)))
    return tuple(dict.fromkeys(number for number in named if 0 <= number < count))


def fields(reply: str, names: Sequence[str]) -> dict[str, str]:
    """Parse named values from the first JSON object that has one, or from lines such as `Name: text`.

    Returns:
        By name, in the order of `names`; missing ones are left out.

    Example:
        >>> fields("Need: its diet\\n**Referent:** kestrel", ["referent", "need", "constraints"])
        {'referent': 'kestrel', 'need': 'its diet'}
    """
    text = spoken(reply)
    values = _in_json(text, lambda value: _under(value, names)) or {}
    for name in () if values else names:
        match = re.search(
            rf"^[^\w\n{{\[]*{re.escape(name)}[^\w\n:=]*[:=](?P<text>.*)$", text, re.IGNORECASE | re.MULTILINE
        )
        if match and (words := match["text"].strip(' \t*"')):
            values[name] = words
    return values


def preferred(reply: str) -> Letter | None:
    """Parse which of two documents a reply prefers, `A` or `B`, from its first line.

    Returns:
        None if the line names neither, or both: `[Document A] or [Document B]` is an echo of the question.
    """
    first = next((line for line in spoken(reply).splitlines() if line.strip()), "")
    named = {(match["long"] or match["short"]).upper() for match in _LETTER.finditer(first)}
    if len(named) != 1:
        return None
    return "A" if "A" in named else "B"


def answer(reply: str) -> str:
    """Parse the answer of a reasoning model: the text inside `<answer>`, or everything after its thoughts.

    Example:
        >>> answer("<think>A kestrel eats mice.</think><answer>mice</answer>")
        'mice'
    """
    matches = list(_ANSWER.finditer(reply))
    return matches[-1]["text"].strip() if matches else spoken(reply)


def box(text: str) -> Box | None:
    """Parse left, top, right and bottom as shares of a picture, such as `0.1 0 0.9 0.75`; None if invalid."""
    numbers = [float(number) for number in _NUMBER.findall(text)]
    if len(numbers) != 4 or re.search(r"[^\d\s.,;()\[\]]", text):
        return None
    left, top, right, bottom = numbers
    return (left, top, right, bottom) if left < right <= 1 and top < bottom <= 1 else None


def letters(reply: str, count: int) -> tuple[int, ...]:
    """Parse which of `count` lettered options a reply names, best first, as indices from 0: `Answer: C, A` is (2, 0).

    Letters follow "Answer:"; without it, the reply must consist of letters alone, since "A" may be an article.
    """
    text = spoken(reply)
    lines = [match["text"] for match in _CHOICE.finditer(text)]
    named = lines[-1] if lines else text if _LETTERS.fullmatch(text) else ""
    places = (ord(letter) - ord("A") for letter in _OPTION.findall(named))
    return tuple(dict.fromkeys(place for place in places if place < count))


def shares(reply: str, count: int) -> tuple[float, ...] | None:
    """Parse the first list of `count` numbers from 0 to 1, such as `{"probabilities": [0.7, 0.2, 0.1]}`.

    Returns:
        None if there is none.
    """
    for match in _LIST.finditer(spoken(reply)):
        numbers = tuple(float(number) for number in _NUMBER.findall(match[0]))
        if len(numbers) == count and all(number <= 1 for number in numbers):
            return numbers
    return None


def _in_json(text: str, read: Callable[[Any], Value]) -> Value | None:
    """Return the first result of `read`, which rejects by ValueError, for JSON in a text, cut off or not; else None."""
    for match in itertools.islice(re.finditer(r"[{\[]", text), _MOST_BRACKETS):
        try:
            return read(json.JSONDecoder().raw_decode(text, match.start())[0])
        except (ValueError, RecursionError):
            continue
    return None


def _under(value: Any, names: Sequence[str]) -> dict[str, str]:
    """Return the texts of a JSON object under these names, ignoring case; a list's items are joined by commas."""
    if not isinstance(value, dict):
        raise ValueError("not an object")
    by_name = {str(key).lower(): item for key, item in value.items()}
    items = {name: by_name.get(name) for name in names}
    texts = {name: ", ".join(map(str, item)) if isinstance(item, list) else item for name, item in items.items()}
    if not (named := {name: text.strip() for name, text in texts.items() if isinstance(text, str) and text.strip()}):
        raise ValueError("it has none of the names")
    return named


def _strings(value: Any) -> Iterator[str]:
    """Yield the queries of a JSON value: its strings, without those under a key that names something else."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if re.search("quer|question|output", str(key), re.IGNORECASE):
                yield from _strings(item)


FORMS: Final[Mapping[Form, Callable[[str, int, int], object]]] = {
    "free": lambda reply, shown, count: True,
    "text": lambda reply, shown, count: spoken(reply),
    "queries": lambda reply, shown, count: queries(reply, 1),
    "order": lambda reply, shown, count: order(reply, shown),
    "preferred": lambda reply, shown, count: shown == count and preferred(reply),
    "letters": lambda reply, shown, count: letters(reply, count),
    "shares": lambda reply, shown, count: shares(reply, count),
    "state": lambda reply, shown, count: fields(reply, STATE_FIELDS),
    "documents": lambda reply, shown, count: named_documents(reply, count),
    "short": lambda reply, shown, count: short_answer(spoken(reply)),
}
"""Parser of each form of a reply; nothing or None if it can't be read."""
