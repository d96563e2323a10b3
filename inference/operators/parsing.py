"""Tolerant parsers of free replies: an order, a choice, an answer. An unreadable reply parses as empty.

A server may constrain replies to JSON schemas, which the parsers read as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from reflectune.inference.operators.query_reply import read_queries
from reflectune.inference.operators.reply_text import clean_reply, first_json
from reflectune.inference.operators.requests import Box, Form
from reflectune.inference.operators.tool_calls import read_action
from reflectune.metrics.judging.extraction import short_answer

STATE_FIELDS: Final = ("need", "referent", "constraints")
"""Names of the values of MM-R2's state."""
Letter: TypeAlias = Literal["A", "B"]
"""Name of one of two documents in a prompt."""

_DOCUMENT = re.compile(r"\[?\s*(?:document|doc|passage)\s*(?P<long>\d+)\s*\]?|\[\s*(?P<short>\d+)\s*\]", re.IGNORECASE)
_ANSWER = re.compile(r"<answer>(?P<text>.*?)(?:</answer>|\Z)", re.DOTALL | re.IGNORECASE)
_CHOICE = re.compile(r"^[^\w\n]*answers?[^\w\n:=]*[:=](?P<text>.*)$", re.IGNORECASE | re.MULTILINE)
_LETTERS = re.compile(r"\W*(?:[A-Z](?:\W+|\W*\band\W+|\Z))+", re.DOTALL)
_OPTION = re.compile(r"\b[A-Z]\b")
_NUMBER = re.compile(r"\d*\.?\d+")
_LIST = re.compile(r"\[[^\[\]]*\]")
_LETTER = re.compile(r"\bdocument\W{0,4}(?P<long>[ab])\b(?!')|^\W{0,8}(?P<short>[ab])\W{0,8}$", re.IGNORECASE)
_CHAIN = re.compile(r"(?:\[?(?:document\s?)?\d+\]?\s?>\s?)+(?:\[?(?:document\s?)?\d+\]?)?", re.IGNORECASE)
_ITEM = re.compile(r"^\W{0,8}\d{1,2}[.):]\W{0,8}((?:document|doc|passage)\s?\d+|\[\d+\])", re.IGNORECASE | re.MULTILINE)
_EXAMPLE = "[Document 4] > [Document 2] > ..."
_ORDERING = frozenset(
    "a and are best by comes document documents doc finally first followed is last least more most my next one order "
    "passage ranking relevant second the then third to with".split()
)
_DENIAL = re.compile(r"\b(?:not|no|none|neither|never|isn't|doesn't|irrelevant|unrelated|worse|less)\b", re.IGNORECASE)


def _object(**properties: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


_TEXT: Final = {"type": "string"}


SCHEMAS: Final[Mapping[Form, Mapping[str, Any]]] = {
    "queries": _object(analysis=_TEXT, queries={"type": "array", "items": _TEXT}),
    "order": _object(ranking={"type": "array", "items": {"type": "integer"}}),
    "preferred": _object(document={"type": "string", "enum": ["A", "B"]}),
    "state": _object(**dict.fromkeys(STATE_FIELDS, _TEXT)),
}
"""JSON schema of each form that is more than a text, for a server that constrains replies."""


def response_format(form: Form) -> dict[str, Any]:
    """Return the fields of a request that constrain its reply to a form; {} for a free one."""
    if form not in SCHEMAS:
        return {}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": form, "schema": SCHEMAS[form]}}}


def is_readable(reply: str, form: Form, shown: int, count: int) -> bool:
    """Return True if a reply has a form: about `count` documents, `shown` of them within the context."""
    return bool(FORMS[form](reply, shown, count))


def order(reply: str, count: int) -> tuple[int, ...] | None:
    """Parse an order of `count` documents, such as `[Document 2] > [Document 1]`, as indices from 0.

    The order is a chain, a list, or words of ordering: prose about the documents is none, and neither is the prompt's
    example. Documents that are left out follow in their previous order; numbers out of range are ignored.

    Returns:
        None if no document is named.
    """
    text = clean_reply(reply).replace(_EXAMPLE, "")
    if chains := _CHAIN.findall(text):
        listed = _bracketed(chains[-1])
    elif (numbers := first_json(text, _whole_numbers)) is not None:
        listed = _bracketed(" ".join(map(str, numbers)))
    elif items := _ITEM.findall(text):
        listed = "".join(items)
    else:
        listed = text if set(re.findall(r"[^\W\d]+", text.lower())) <= _ORDERING else ""
    known = named_documents(listed, count)
    return (*known, *(number for number in range(count) if number not in known)) if known else None


def named_documents(reply: str, count: int) -> tuple[int, ...]:
    """Parse the numbers of `count` documents that a reply names, each once, in its order, as indices from 0.

    Example:
        >>> named_documents("[3] > [1] > [9]", 4)
        (2, 0)
    """
    named = (int(match["long"] or match["short"]) - 1 for match in _DOCUMENT.finditer(clean_reply(reply)))
    return tuple(dict.fromkeys(number for number in named if 0 <= number < count))


def fields(reply: str, names: Sequence[str]) -> dict[str, str]:
    """Parse named values from the first JSON object that has one, or from lines such as `Name: text`.

    Returns:
        By name, in the order of `names`; missing ones are left out.

    Example:
        >>> fields("Need: its diet\\n**Referent:** kestrel", ["referent", "need", "constraints"])
        {'referent': 'kestrel', 'need': 'its diet'}
    """
    text = clean_reply(reply)
    values = first_json(text, lambda value: _under(value, names)) or {}
    for name in () if values else names:
        match = re.search(
            rf"^[^\w\n{{\[]*{re.escape(name)}[^\w\n:=]*[:=](?P<text>.*)$", text, re.IGNORECASE | re.MULTILINE
        )
        if match and (words := match["text"].strip(' \t*"')):
            values[name] = words
    return values


def preferred(reply: str) -> Letter | None:
    """Parse which of two documents a reply prefers, `A` or `B`, from its first line that names one.

    Returns:
        None if the line names both, or denies: `[Document A] or [Document B]` is an echo of the question.
    """
    for line in clean_reply(reply).splitlines():
        if named := {(match["long"] or match["short"]).upper() for match in _LETTER.finditer(line)}:
            return None if len(named) > 1 or _DENIAL.search(line) else "A" if "A" in named else "B"
    return None


def label(reply: str, yes: str, no: str) -> bool | None:
    """Parse which of two words the first line of a reply has; None if neither, or both."""
    first = next(iter(clean_reply(reply).splitlines()), "")
    said = [bool(re.search(rf"\b{re.escape(word)}\b", first, re.IGNORECASE)) for word in (yes, no)]
    return said[0] if sum(said) == 1 else None


def answer(reply: str) -> str:
    """Parse the answer of a reasoning model: the text inside `<answer>`, or everything after its thoughts.

    Example:
        >>> answer("<think>A kestrel eats mice.</think><answer>mice</answer>")
        'mice'
    """
    matches = list(_ANSWER.finditer(reply))
    return matches[-1]["text"].strip() if matches else clean_reply(reply)


def box(text: str) -> Box | None:
    """Parse left, top, right and bottom as shares of an image, such as `0.1 0 0.9 0.75`; None if invalid."""
    numbers = [float(number) for number in _NUMBER.findall(text)]
    if len(numbers) != 4 or re.search(r"[^\d\s.,;()\[\]]", text):
        return None
    left, top, right, bottom = numbers
    return (left, top, right, bottom) if left < right <= 1 and top < bottom <= 1 else None


def letters(reply: str, count: int) -> tuple[int, ...]:
    """Parse which of `count` lettered options a reply names, best first, as indices from 0: `Answer: C, A` is (2, 0).

    Letters alone follow "Answer:", or are the whole reply, since "A" may be an article and "I" a person.
    """
    text = clean_reply(reply)
    lines = [match["text"] for match in _CHOICE.finditer(text)]
    named = lines[-1] if lines else text
    places = (ord(letter) - ord("A") for letter in _OPTION.findall(named if _LETTERS.fullmatch(named) else ""))
    return tuple(dict.fromkeys(place for place in places if place < count))


def shares(reply: str, count: int) -> tuple[float, ...] | None:
    """Parse the first list of `count` numbers from 0 to 1, such as `{"probabilities": [0.7, 0.2, 0.1]}`.

    Returns:
        None if there is none.
    """
    for match in _LIST.finditer(clean_reply(reply)):
        numbers = tuple(float(number) for number in _NUMBER.findall(match[0]))
        if len(numbers) == count and all(number <= 1 for number in numbers):
            return numbers
    return None


def _bracketed(numbers: str) -> str:
    return " ".join(f"[{number}]" for number in re.findall(r"\d+", numbers))


def _whole_numbers(value: Any) -> list[int]:
    """Return a JSON value's list of several numbers.

    Raises:
        ValueError: It has none.
    """
    lists = value.values() if isinstance(value, dict) else [value]
    for listed in lists:
        if isinstance(listed, list) and len(listed) > 1 and all(type(number) is int for number in listed):
            return listed
    raise ValueError("no list of numbers")


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


FORMS: Final[Mapping[Form, Callable[[str, int, int], object]]] = {
    "free": lambda reply, shown, count: True,
    "text": lambda reply, shown, count: clean_reply(reply),
    "queries": lambda reply, shown, count: read_queries(reply, 1),
    "order": lambda reply, shown, count: order(reply, shown),
    "preferred": lambda reply, shown, count: shown == count and preferred(reply),
    "letters": lambda reply, shown, count: letters(reply, count),
    "shares": lambda reply, shown, count: shares(reply, count),
    "state": lambda reply, shown, count: fields(reply, STATE_FIELDS),
    "documents": lambda reply, shown, count: named_documents(reply, count),
    "short": lambda reply, shown, count: short_answer(clean_reply(reply)),
    "action": lambda reply, shown, count: read_action(reply) is not None,
}
"""Parser of each form of a reply; nothing or None if it can't be read."""
