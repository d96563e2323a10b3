"""What a free reply says, read tolerantly: queries, an order, a choice, an answer. What says nothing is empty."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

from reflectune.inference.operators.requests import Box
from reflectune.models.rendering.thoughts import without_thoughts

Value = TypeVar("Value")
Letter: TypeAlias = Literal["A", "B"]
"""One of two documents, as a prompt calls them."""

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
_VERDICT = re.compile(r"\W*(?P<word>yes|no)\b", re.IGNORECASE)

_MOST_BRACKETS = 64
"""How many brackets of a reply may begin its JSON: one that repeats itself has thousands."""


def spoken(reply: str) -> str:
    """A reply without thoughts, and without code fences."""
    return _FENCE.sub("", without_thoughts(reply)).strip()


def queries(reply: str, most: int) -> tuple[str, ...]:
    """The queries that a reply holds, each once, at most `most`: of a JSON value, or of a list behind `## Queries`.

    A reply without the heading may be the list itself. Where no line is numbered, a line that ends with a question mark
    is a query. The prompt's own `question 2.`, which small models say again, is none.

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
    """The order of `count` documents that a reply gives, as `[Document 2] > [Document 1]`; counted from 0 here.

    Documents that it leaves out follow in the order that they had; numbers that are none of theirs are passed over.

    Returns:
        None if it names no document.
    """
    known = named_documents(reply, count)
    return (*known, *(number for number in range(count) if number not in known)) if known else None


def named_documents(reply: str, count: int) -> tuple[int, ...]:
    """Which of `count` documents a reply names by number, each once, in its order; counted from 0 here.

    Example:
        >>> named_documents("[3] > [1] > [9]", 4)
        (2, 0)
    """
    named = (int(match["long"] or match["short"]) - 1 for match in _DOCUMENT.finditer(spoken(reply)))
    return tuple(dict.fromkeys(number for number in named if 0 <= number < count))


def fields(reply: str, names: Sequence[str]) -> dict[str, str]:
    """What a reply says under names: in the first JSON object that has one, or in lines such as `Name: text`.

    Returns:
        By name, in the order of `names`; one of which nothing is said is left out.

    Example:
        >>> fields("Need: its diet\\n**Referent:** kestrel", ["referent", "need", "constraints"])
        {'referent': 'kestrel', 'need': 'its diet'}
    """
    text = spoken(reply)
    said = _in_json(text, lambda value: _under(value, names)) or {}
    for name in () if said else names:
        match = re.search(
            rf"^[^\w\n{{\[]*{re.escape(name)}[^\w\n:=]*[:=](?P<text>.*)$", text, re.IGNORECASE | re.MULTILINE
        )
        if match and (words := match["text"].strip(' \t*"')):
            said[name] = words
    return said


def preferred(reply: str) -> Letter | None:
    """Which of two documents a reply prefers, `A` or `B`: the one that its first line names.

    Returns:
        None if that names neither, or both: `[Document A] or [Document B]` is the question said again.
    """
    first = next((line for line in spoken(reply).splitlines() if line.strip()), "")
    named = {(match["long"] or match["short"]).upper() for match in _LETTER.finditer(first)}
    if len(named) != 1:
        return None
    return "A" if "A" in named else "B"


def verdict(reply: str) -> bool | None:
    """Whether a reply begins with yes or with no; None if with neither."""
    match = _VERDICT.match(spoken(reply))
    return match["word"].lower() == "yes" if match else None


def answer(reply: str) -> str:
    """The answer of a model that thinks first: what stands in `<answer>`, or all that it says behind its thoughts.

    Example:
        >>> answer("<think>A kestrel eats mice.</think><answer>mice</answer>")
        'mice'
    """
    matches = list(_ANSWER.finditer(reply))
    return matches[-1]["text"].strip() if matches else spoken(reply)


def box(text: str) -> Box | None:
    """Left, top, right and bottom as shares of a picture, such as `0.1 0 0.9 0.75`; None if a text is no such box."""
    numbers = [float(number) for number in _NUMBER.findall(text)]
    if len(numbers) != 4 or re.search(r"[^\d\s.,;()\[\]]", text):
        return None
    left, top, right, bottom = numbers
    return (left, top, right, bottom) if left < right <= 1 and top < bottom <= 1 else None


def letters(reply: str, count: int) -> tuple[int, ...]:
    """Which of `count` lettered options a reply names, best first and counted from 0: `Answer: C, A` is (2, 0).

    They stand behind "Answer:"; without it, the reply must be letters alone: "A" may be an article.
    """
    text = spoken(reply)
    lines = [match["text"] for match in _CHOICE.finditer(text)]
    named = lines[-1] if lines else text if _LETTERS.fullmatch(text) else ""
    places = (ord(letter) - ord("A") for letter in _OPTION.findall(named))
    return tuple(dict.fromkeys(place for place in places if place < count))


def shares(reply: str, count: int) -> tuple[float, ...] | None:
    """The first list of `count` numbers from 0 to 1 in a reply, as `{"probabilities": [0.7, 0.2, 0.1]}` has one.

    Returns:
        None if there is none.
    """
    for match in _LIST.finditer(spoken(reply)):
        numbers = tuple(float(number) for number in _NUMBER.findall(match[0]))
        if len(numbers) == count and all(number <= 1 for number in numbers):
            return numbers
    return None


def _in_json(text: str, read: Callable[[Any], Value]) -> Value | None:
    """What `read` makes of the first JSON object or list in a text that it takes; None if there is none.

    Args:
        text: A reply; its JSON may be cut off.
        read: Raises ValueError for a value that it doesn't take.
    """
    for match in itertools.islice(re.finditer(r"[{\[]", text), _MOST_BRACKETS):
        try:
            return read(json.JSONDecoder().raw_decode(text, match.start())[0])
        except (ValueError, RecursionError):
            continue
    return None


def _under(value: Any, names: Sequence[str]) -> dict[str, str]:
    """The texts of a JSON object under these names, in any case; a list's items are joined by commas."""
    if not isinstance(value, dict):
        raise ValueError("not an object")
    by_name = {str(key).lower(): each for key, each in value.items()}
    given = {name: by_name.get(name) for name in names}
    texts = {name: ", ".join(map(str, each)) if isinstance(each, list) else each for name, each in given.items()}
    if not (said := {name: text.strip() for name, text in texts.items() if isinstance(text, str) and text.strip()}):
        raise ValueError("it has none of the names")
    return said


def _strings(value: Any) -> Iterator[str]:
    """The queries of a JSON value: its strings, but for those under a key that says they are something else."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)
    elif isinstance(value, dict):
        for key, each in value.items():
            if re.search("quer|question|output", str(key), re.IGNORECASE):
                yield from _strings(each)
