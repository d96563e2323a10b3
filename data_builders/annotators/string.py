"""Annotators that need no model: `string` reads the passage's text, `gold` what the data set names as evidence.

`string`: a passage is evidence if an accepted answer occurs in its text (mR²AG, section 3.3). It is also the paper's
strict filter: "ensuring answers appear only in evidence paragraphs". Answer and text are compared token by token after
numbers and dates have been normalised. InfoSeek accepts country codes too (`in`, `IN`, `us`, `USA`): an alias as short
as that is compared as it is written, and only if it has a capital. "Yes" and "no" are not searched for: of a question
that is answered so, no passage can be told by its words.

`gold`: a passage is evidence if it stands in a section that the data set names as evidence. Encyclopedic-VQA names
evidence sections, Natural Questions has long answers; InfoSeek has neither.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from reflectune.core.types import Evidence, Passage, Question
from reflectune.data_builders.annotators.numbers import number_in_range, wanted_unit
from reflectune.data_builders.annotators.protocol import IRRELEVANT, Annotation, Case
from reflectune.data_builders.annotators.tokens import NUMBER, tokenize
from reflectune.metrics.judging.cover import UNSPACED
from reflectune.metrics.official import infoseek
from reflectune.metrics.official.vqa import DIGITS

NO_EVIDENCE_NAMED = Annotation("unclear", note="the data set names no evidence for the question")

YES_OR_NO = Annotation("unclear", note="the answer is yes or no, which no search for words finds")

_LETTERS = re.compile(rf"[^\W\d_{UNSPACED}]+")
_LONGEST_CODE = 3
_ARTICLES = frozenset({"a", "an", "the"})


def by_string(cases: Sequence[Case]) -> list[Annotation]:
    """The annotator: `annotate_by_string` of each case."""
    return [annotate_by_string(question, passage) for question, passage in cases]


def annotate_by_string(question: Question, passage: Passage) -> Annotation:
    """Judge a passage by whether an accepted answer occurs in its text; title, lead and heading don't count.

    A `multi_answer` needs every part of one of its lists. A `numerical` answer occurs also where a number within the
    question's range stands in the text; if the reference has a unit or the question names one (`in metre`), with that
    behind it. Of a question that is answered with yes or no, every passage is `unclear`.
    """
    if is_yes_or_no(question):
        return YES_OR_NO
    answer = stated_answer(question, passage)
    return Annotation("relevant", answer) if answer else IRRELEVANT


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


def is_yes_or_no(question: Question) -> bool:
    """Whether the question is answered with yes or no."""
    return tokenize(canonical_answer(question)) in (("yes",), ("no",))


def canonical_answer(question: Question) -> str:
    """The first accepted answer that isn't empty, the parts of a list joined by ` && `."""
    return next((" && ".join(parts) for a in question.answers if any(parts := _parts(question, a))), "")


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
    """Of the answers that occur in a text the first that scores; else the first number that does; else what occurs.

    Where the question names a unit, a bare number (`1`) that occurs says nothing: it needs the unit, too.
    """
    unit = wanted_unit(question)
    if unit.key and limits[0] <= limits[1]:
        stated = [answer for answer in stated if not _is_bare_number(answer)]
    if scoring := [answer for answer in stated if infoseek.numerical(answer, limits)]:
        return scoring[0]
    return number_in_range(text, limits, unit) or next(iter(stated), "")


def _is_bare_number(answer: str) -> bool:
    tokens = tokenize(answer)
    return len(tokens) == 1 and NUMBER.fullmatch(tokens[0]) is not None


def _states(question: Question, part: str, text: str) -> bool:
    """Whether an answer, or a part of a list, occurs in a text; "yes" and "no" don't."""
    if is_yes_or_no(question):
        return False
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
    is_short = len(word) <= _LONGEST_CODE and answer.isascii() and word.casefold() not in DIGITS
    return word if is_short and answer.strip() != canonical_answer(question) else ""


def _occurs(answer: Sequence[str], text: Sequence[str]) -> bool:
    """Whether the answer's tokens, without a leading article, are a run of the text's tokens."""
    needle = tuple(answer[1:] if len(answer) > 1 and answer[0] in _ARTICLES else answer)
    length = len(needle)
    return length > 0 and any(tuple(text[i : i + length]) == needle for i in range(len(text) - length + 1))


def by_gold(cases: Sequence[Case]) -> list[Annotation]:
    """Judge passages by the data set's evidence sections.

    The answer of an evidence passage is the accepted one that occurs in it, else the question's first. A section of
    several paragraphs is evidence as a whole: the strict string filter then keeps those that hold the answer.
    """
    return [_judge(case) for case in cases]


def _judge(case: Case) -> Annotation:
    question, passage = case
    if not question.evidence:
        return NO_EVIDENCE_NAMED
    if Evidence(passage.entry_id, passage.section) not in question.evidence:
        return IRRELEVANT
    return Annotation("relevant", stated_answer(question, passage) or canonical_answer(question))
