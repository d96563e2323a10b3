"""Annotators that need no model: `string` reads the passage's text, `gold` what the data set names as evidence.

`string`: a passage is evidence if an accepted answer occurs in its text (mR²AG, section 3.3). It is also the paper's
strict filter: "ensuring answers appear only in evidence paragraphs". Answer and text are compared token by token after
numbers and dates have been normalised. InfoSeek accepts country codes too (`in`, `IN`, `us`, `USA`): an alias as short
as that is compared as it is written, and only if it has a capital.

`gold`: a passage is evidence if it stands in a section that the data set names as evidence. Encyclopedic-VQA names
evidence sections, Natural Questions has long answers; InfoSeek has neither.
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from decimal import Decimal

from reflectune.core.types import Evidence, Passage, Question
from reflectune.data_builders.annotators.protocol import IRRELEVANT, Case, Judgement
from reflectune.metrics import infoseek
from reflectune.metrics.vqa import DIGITS

NO_EVIDENCE_NAMED = Judgement("unclear", note="the data set names no evidence for the question")

_LETTERS = re.compile(r"[^\W\d_]+")
_LONGEST_CODE = 3
_TOKEN = re.compile(r"\d+s\b|(?:(?<![\w.])-)?\d+(?:\.\d+)?|[^\W\d_]+")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d)")
_MONTHS = tuple("january february march april may june july august september october november december".split())
_MONTH = "|".join(_MONTHS)
_DATES = (
    # Each pattern names year, month and day; a date is rewritten in that order, so that "1999" and "March 1999" occur
    # in "12 March 1999" as runs of tokens, however it was written.
    re.compile(r"\b(?P<y>\d{4})-(?P<m>0[1-9]|1[0-2])-(?P<d>0[1-9]|[12]\d|3[01])\b"),
    re.compile(rf"\b(?P<d>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? (?P<m>{_MONTH}),? (?P<y>\d{{4}})\b"),
    re.compile(rf"\b(?P<m>{_MONTH}) (?P<d>\d{{1,2}})(?:st|nd|rd|th)?,? (?P<y>\d{{4}})\b"),
    re.compile(rf"\b(?P<m>{_MONTH}),? (?:of )?(?P<y>\d{{4}})\b"),
)
_ARTICLES = frozenset({"a", "an", "the"})
_MAGNITUDES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}


def by_string(cases: Sequence[Case]) -> list[Judgement]:
    """The annotator: `annotate_by_string` of each case."""
    return [annotate_by_string(question, passage) for question, passage in cases]


def annotate_by_string(question: Question, passage: Passage) -> Judgement:
    """Judge a passage by whether an accepted answer occurs in its text; title, lead and heading don't count.

    A `multi_answer` needs every part of one of its lists. A `numerical` answer occurs also where a number within the
    question's range stands in the text with the reference's unit after it, if the reference has one.
    """
    answer = stated_answer(question, passage)
    return Judgement("relevant", answer) if answer else IRRELEVANT


def stated_answer(question: Question, passage: Passage) -> str:
    """The accepted answer that occurs in the passage's text, "" if none does; see `annotate_by_string`.

    Where only a code occurs (`US`), it is the first accepted answer. Of a number with a range it is one that the
    official score accepts, if the text states one: `1900000`, not `1.9 million`, of which that score reads 1.9.
    """
    stated = _stated(question, passage.text)
    if question.answer_type == "numerical" and question.range is not None:
        return _stated_number(list(stated), question, question.range, passage.text)
    return next(stated, "")


def states_a_part(question: Question, passage: Passage) -> bool:
    """Whether a part of a list of answers, or any other answer, occurs in the passage's text."""
    parts = itertools.chain.from_iterable(_parts(question, answer) for answer in question.answers)
    return any(_states(question, part, passage.text) for part in parts)


def canonical_answer(question: Question) -> str:
    """The first accepted answer that isn't empty, the parts of a list joined by ` && `."""
    return next((" && ".join(parts) for a in question.answers if any(parts := _parts(question, a))), "")


@functools.lru_cache(maxsize=65536)
def tokenize(text: str) -> tuple[str, ...]:
    """Lower-case words and numbers, without accents and punctuation; every date in the order year, month, day.

    Example:
        >>> tokenize("On 12 March 1999, 1,234 guests came.")
        ('on', '1999', 'march', '12', '1234', 'guests', 'came')
    """
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    plain = "".join(character for character in decomposed if not unicodedata.combining(character))
    plain = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), plain.replace("\N{MINUS SIGN}", "-"))
    for pattern in _DATES:
        plain = pattern.sub(_year_first, plain)
    return tuple(_canonical_number(token) if _NUMBER.fullmatch(token) else token for token in _TOKEN.findall(plain))


def _year_first(match: re.Match[str]) -> str:
    parts = match.groupdict()
    month = parts["m"] if parts["m"].isalpha() else _MONTHS[int(parts["m"]) - 1]
    # Underscores keep a later pattern from reading a rewritten date again; they separate tokens.
    return "_".join(part for part in (parts["y"], month, str(int(parts["d"])) if parts.get("d") else "") if part)


def _canonical_number(token: str) -> str:
    """`45.0` and `045` as `45`, `2.50` as `2.5`."""
    sign = "-" if token.startswith("-") else ""
    whole, _, fraction = token.removeprefix("-").partition(".")
    fraction = fraction.rstrip("0")
    whole = whole.lstrip("0") or "0"
    return sign + (f"{whole}.{fraction}" if fraction else whole)


def _parts(question: Question, answer: str) -> list[str]:
    """The parts of a list joined by `&&`, without empty ones; any other answer is one part."""
    if question.answer_type != "multi_answer":
        return [answer.strip()]
    return [part.strip() for part in answer.split("&&") if part.strip()]


def _stated(question: Question, text: str) -> Iterator[str]:
    """The accepted answers that occur in a text, in their order."""
    for answer in question.answers:
        parts = _parts(question, answer)
        if parts and all(_states(question, part, text) for part in parts):
            yield canonical_answer(question) if _code(question, answer) else " && ".join(parts)


def _stated_number(stated: Sequence[str], question: Question, limits: tuple[float, float], text: str) -> str:
    """Of the answers that occur in a text the first that scores; else the first number that does; else what occurs."""
    if scoring := [answer for answer in stated if infoseek.numerical(answer, limits)]:
        return scoring[0]
    return _number_in_range(tokenize(text), limits, _unit(question.answers)) or next(iter(stated), "")


def _states(question: Question, part: str, text: str) -> bool:
    """Whether an answer, or a part of a list, occurs in a text."""
    if code := _code(question, part):
        return not code.islower() and code in _LETTERS.findall(text)
    return _occurs(tokenize(part), tokenize(text))


def _code(question: Question, answer: str) -> str:
    """The letters of an alias of at most three ASCII letters, an article left out; "" if the answer is none.

    The first answer is no alias, and a number word (`two`) is no code. Only a `string` has codes among its aliases.
    """
    words = _LETTERS.findall(answer)
    if len(words) > 1 and words[0].casefold() in _ARTICLES:
        words = words[1:]
    if question.answer_type != "string" or len(words) != 1 or any(map(str.isdigit, answer)):
        return ""
    (word,) = words
    is_short = len(word) <= _LONGEST_CODE and word.isascii() and word.casefold() not in DIGITS
    return word if is_short and answer.strip() != canonical_answer(question) else ""


def _occurs(answer: Sequence[str], text: Sequence[str]) -> bool:
    """Whether the answer's tokens, without a leading article, are a run of the text's tokens."""
    needle = tuple(answer[1:] if len(answer) > 1 and answer[0] in _ARTICLES else answer)
    length = len(needle)
    return length > 0 and any(tuple(text[i : i + length]) == needle for i in range(len(text) - length + 1))


def _unit(answers: Sequence[str]) -> str:
    """The word after the number and its magnitude in the first reference that has one: `metres` in `45 metres`."""
    for answer in answers:
        tokens = tokenize(answer)
        for position, token in enumerate(tokens):
            first, second = _after(tokens, position + 1)
            word = second if first in _MAGNITUDES else first
            if _NUMBER.fullmatch(token) and word.isalpha():
                return word
    return ""


def _number_in_range(tokens: Sequence[str], limits: tuple[float, float], unit: str) -> str:
    """The first number within the limits (and with the unit) in digits, or "". `2 million` is also read as 2000000.

    The official score knows no magnitudes, so `1.9 million` comes back as 1900000.
    """
    low, high = limits
    for position, token in enumerate(tokens):
        if not _NUMBER.fullmatch(token):
            continue
        first, second = _after(tokens, position + 1)
        readings = [(token, first)]
        if first in _MAGNITUDES:
            readings.append((_scaled(token, _MAGNITUDES[first]), second))
        for digits, word in readings:
            if low <= float(digits) <= high and unit in ("", word):
                return f"{digits} {unit}".strip()
    return ""


def _after(tokens: Sequence[str], position: int) -> tuple[str, str]:
    """Two tokens from a position on, "" beyond the end."""
    first, second, *_ = (*tokens[position : position + 2], "", "")
    return first, second


def _scaled(number: str, magnitude: int) -> str:
    """A number times a magnitude, in digits and without a float's error: `1900000` for `1.9` million."""
    return _canonical_number(f"{Decimal(number) * magnitude:f}")


def by_gold(cases: Sequence[Case]) -> list[Judgement]:
    """Judge passages by the data set's evidence sections.

    The answer of an evidence passage is the accepted one that occurs in it, else the question's first. A section of
    several paragraphs is evidence as a whole: the strict string filter then keeps those that hold the answer.
    """
    return [_judge(case) for case in cases]


def _judge(case: Case) -> Judgement:
    question, passage = case
    if not question.evidence:
        return NO_EVIDENCE_NAMED
    if Evidence(passage.entry_id, passage.section) not in question.evidence:
        return IRRELEVANT
    return Judgement("relevant", stated_answer(question, passage) or canonical_answer(question))
