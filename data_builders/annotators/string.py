"""Annotators without a model: `string` searches the passage's text for an answer, `gold` reads the named evidence.

`string`: a passage is evidence if an accepted answer occurs in its text (mR²AG, section 3.3). It is also the paper's
strict filter: "ensuring answers appear only in evidence paragraphs". Answer and text are compared by tokens, with
numbers and dates normalised. InfoSeek accepts country codes (`in`, `IN`, `us`, `USA`): an alias of at most three
letters must occur in the same case, and needs a capital. Answers "yes" and "no" are not searched, since these words
occur anywhere.

`gold`: a passage is evidence if its section is among the evidence that the data set names. Encyclopedic-VQA names
evidence sections, Natural Questions has long answers, InfoSeek has neither.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from reflectune.core.tokens import NUMBER, UNSPACED, tokenize
from reflectune.core.types import Evidence, Passage, Question
from reflectune.data_builders.annotators.numbers import expected_unit, number_in_range
from reflectune.data_builders.annotators.protocol import IRRELEVANT, UNCLEAR, Annotation, Case
from reflectune.metrics.official import infoseek
from reflectune.metrics.official.vqa import DIGITS

_LETTERS = re.compile(rf"[^\W\d_{UNSPACED}]+")
_LONGEST_CODE = 3
_ARTICLES = frozenset({"a", "an", "the"})


def by_string(cases: Sequence[Case]) -> list[Annotation]:
    """Label each case by `annotate_by_string`."""
    return [annotate_by_string(question, passage) for question, passage in cases]


def annotate_by_string(question: Question, passage: Passage) -> Annotation:
    """Label a passage relevant if an accepted answer occurs in its text; title, lead and heading don't count.

    A `multi_answer` needs every part of one of its lists. A `numerical` answer also occurs as a number within the
    question's range, followed by the unit if the reference or the question names one (`in metre`). If the answer is yes
    or no, every passage is `unclear`.
    """
    if is_yes_or_no(question):
        return UNCLEAR
    answer = stated_answer(question, passage)
    return Annotation("relevant", answer) if answer else IRRELEVANT


def stated_answer(question: Question, passage: Passage) -> str:
    """Return the accepted answer that occurs in the passage's text, or ""; see `annotate_by_string`.

    If only a code occurs (`US`), the first accepted answer is returned. For a number with a range, one that the
    official score accepts is preferred: `1900000` to `1.9 million`, which that score parses as 1.9.
    """
    stated = _stated(question, passage.text)
    if question.answer_type == "numerical" and question.range is not None:
        return _stated_number(list(stated), question, question.range, passage.text)
    return next(stated, "")


def states_a_part(question: Question, passage: Passage) -> bool:
    """Return True if a part of a list of answers, or any other answer, occurs in the passage's text."""
    parts = itertools.chain.from_iterable(_parts(question, answer) for answer in question.answers)
    return any(_states(question, part, passage.text) for part in parts)


def is_yes_or_no(question: Question) -> bool:
    """Return True if the answer is yes or no."""
    return tokenize(canonical_answer(question)) in (("yes",), ("no",))


def canonical_answer(question: Question) -> str:
    """Return the first accepted answer that isn't empty, with the parts of a list joined by ` && `."""
    return next((" && ".join(parts) for a in question.answers if any(parts := _parts(question, a))), "")


def _parts(question: Question, answer: str) -> list[str]:
    """Split a list at `&&`, without empty parts; any other answer is one part."""
    if question.answer_type != "multi_answer":
        return [answer.strip()]
    return [part.strip() for part in answer.split("&&") if part.strip()]


def _stated(question: Question, text: str) -> Iterator[str]:
    """Yield the accepted answers that occur in a text, in their order."""
    for answer in question.answers:
        parts = _parts(question, answer)
        if parts and all(_states(question, part, text) for part in parts):
            yield canonical_answer(question) if _code(question, answer) else " && ".join(parts)


def _stated_number(stated: Sequence[str], question: Question, limits: tuple[float, float], text: str) -> str:
    """Return the first stated answer that scores, else the first number that does, else the first stated answer.

    If there is a unit, a bare number (`1`) doesn't count without it.
    """
    unit = expected_unit(question)
    if unit.key and limits[0] <= limits[1]:
        stated = [answer for answer in stated if not _is_bare_number(answer)]
    if scoring := [answer for answer in stated if infoseek.numerical(answer, limits)]:
        return scoring[0]
    return number_in_range(text, limits, unit) or next(iter(stated), "")


def _is_bare_number(answer: str) -> bool:
    tokens = tokenize(answer)
    return len(tokens) == 1 and NUMBER.fullmatch(tokens[0]) is not None


def _states(question: Question, part: str, text: str) -> bool:
    """Return True if an answer, or a part of a list, occurs in a text; "yes" and "no" don't."""
    if is_yes_or_no(question):
        return False
    if code := _code(question, part):
        return not code.islower() and code in _LETTERS.findall(text)
    return _occurs(tokenize(part), tokenize(text))


def _code(question: Question, answer: str) -> str:
    """Return the letters of an alias of at most three ASCII letters, without an article, or "".

    The first answer and number words (`two`) don't count. Only a `string` has codes among its aliases.
    """
    words = _LETTERS.findall(answer)
    if len(words) > 1 and words[0].casefold() in _ARTICLES:
        words = words[1:]
    if question.answer_type != "string" or len(words) != 1 or any(map(str.isdigit, answer)):
        return ""
    (word,) = words
    is_short = len(word) <= _LONGEST_CODE and answer.isascii() and word.casefold() not in DIGITS
    return word if is_short and answer.strip() != canonical_answer(question) else ""


def _occurs(answer: Sequence[str], text: Sequence[str]) -> bool:
    """Return True if the answer's tokens, without a leading article, are a run of the text's tokens."""
    needle = tuple(answer[1:] if len(answer) > 1 and answer[0] in _ARTICLES else answer)
    length = len(needle)
    return length > 0 and any(tuple(text[i : i + length]) == needle for i in range(len(text) - length + 1))


def by_gold(cases: Sequence[Case]) -> list[Annotation]:
    """Label passages by the data set's evidence sections.

    The answer of an evidence passage is the accepted one that occurs in it, else the question's first. All paragraphs
    of a section are evidence; the strict string filter then keeps those with the answer.
    """
    return [_judge(case) for case in cases]


def _judge(case: Case) -> Annotation:
    question, passage = case
    if not question.evidence:
        return UNCLEAR
    if Evidence(passage.entry_id, passage.section) not in question.evidence:
        return IRRELEVANT
    return Annotation("relevant", stated_answer(question, passage) or canonical_answer(question))
