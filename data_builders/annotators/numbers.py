"""Find numbers in a text that answer a question: within its range, and with its unit."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from reflectune.core.dates import MONTHS
from reflectune.core.numerals import canonical_number, grouped_numbers
from reflectune.core.tokens import NUMBER, UNSPACED, tokenize
from reflectune.core.types import Question

_MAGNITUDES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_MAGNITUDES |= dict.fromkeys("\u4e07\u842c\ub9cc", 10**4) | dict.fromkeys("\u5104\u4ebf\uc5b5", 10**8)  # East Asian
_BETWEEN = frozenset({"to", "and", "or", "by", "x"})
"""Words between the ends of a range. Its unit follows the second end."""

_LENGTHS = (
    "millimetre millimetres millimeter millimeters mm",
    "centimetre centimetres centimeter centimeters cm",
    "metre metres meter meters m",
    "kilometre kilometres kilometer kilometers km",
    "inch inches",
    "foot feet ft",
    "yard yards yd",
    "mile miles mi",
)
_OTHERS = (
    "hectare, hectares, ha",
    "acre, acres",
    "litre, litres, liter, liters, l",
    "milligram, milligrams, mg",
    "gram, grams, gramme, grammes, g",
    "kilogram, kilograms, kilogramme, kilogrammes, kg",
    "tonne, tonnes, metric ton, metric tons, t",
    "ounce, ounces, oz",
    "pound, pounds, lb, lbs",
    "second, seconds, s",
    "minute, minutes, min",
    "hour, hours, h",
    "day, days",
    "week, weeks",
    "month, months",
    "year, years",
    "degree celsius, degrees celsius, celsius, c",
    "degree fahrenheit, degrees fahrenheit, fahrenheit, f",
    "kelvin, k",
    "metre per second, metres per second, meter per second, meters per second, m s",
    "kilometre per hour, kilometres per hour, kilometer per hour, kilometers per hour, km h, kmh, kph",
    "mile per hour, miles per hour, mph",
    "watt, watts, w",
    "kilowatt, kilowatts, kw",
    "megawatt, megawatts, mw",
)
_LONGEST_UNIT = 3
"""Maximum tokens of a unit."""

_UNIT_IN_QUESTION = re.compile(r"\b(?:in|how many) (?P<words>\w\w+(?: \w+){0,2})|\((?:in )?(?P<bracketed>[^()]+)\)")


@dataclass(frozen=True)
class Unit:
    """The unit that a number must have.

    Attributes:
        key: Unit as `unit_at` returns it; "" accepts any.
        written: Spelling in the reference, "" if the question names the unit.
    """

    key: str = ""
    written: str = ""


def expected_unit(question: Question) -> Unit:
    """Return the unit of the first reference that has one, or else the question's; an empty unit if neither has one.

    A reference's unit may be any word (`people`). A question's unit is a unit of measure after `in`, after `how many`
    or in brackets. A magnitude is the unit if the range counts in it: `61 thousand` with a range of 55 to 67.

    Example:
        >>> expected_unit(Question("", "", "What is the length of this bird in centimetre?", ("120-170",))).key
        'centimetre'
    """
    low, high = question.range or (math.inf, math.inf)
    for answer in question.answers:
        tokens = tokenize(answer)
        for position, token in enumerate(tokens):
            if not NUMBER.fullmatch(token):
                continue
            is_scaled = _token(tokens, position + 1) in _MAGNITUDES and not low <= float(token) <= high
            start = position + (2 if is_scaled else 1)
            if _token(tokens, start).isalpha():
                words = tokens[start : start + _length_at(tokens, start)]
                key = unit_at(tokens, start)
                if re.match(f"[{UNSPACED}]", key):  # the first letter of a unit suffices to find it
                    return Unit(key)
                return Unit(key, " ".join(words) if all(map(str.isalpha, words)) else key)
    for match in _UNIT_IN_QUESTION.finditer(question.text.casefold()):
        tokens = tokenize(match["words"] or match["bracketed"])
        if tokens and (key := unit_at(tokens, 0)) in _units().values():
            return Unit(key)
    return Unit()


def unit_at(tokens: Sequence[str], position: int) -> str:
    """Return the unit at a position in its canonical spelling. Any other word is returned unchanged; "" at the end."""
    words = tuple(tokens[position : position + _length_at(tokens, position)])
    return _units().get(words, " ".join(words))


def number_in_range(text: str, limits: tuple[float, float], unit: Unit) -> str:
    """Return the first number of a text within the limits and with the unit, in digits, or "".

    `2 million` is also read and returned as 2000000, since the official score doesn't know magnitudes. Without a unit,
    parts of dates and years (`1000` to `2100` without groups of digits) don't count.

    Args:
        text: Any text.
        limits: The lowest and the highest accepted number. Descending limits accept none.
        unit: The unit that must follow the number or the range that it begins.
    """
    low, high = limits
    tokens = tokenize(text)
    grouped = grouped_numbers(text)
    for position, token in enumerate(tokens):
        if not NUMBER.fullmatch(token):
            continue
        for digits, following in _readings(tokens, position):
            if unit.key:
                is_candidate = unit.key in _units_after(tokens, following)
            else:
                is_candidate = token in grouped or not _is_date(tokens, position)
            if is_candidate and low <= float(digits) <= high:
                return f"{digits} {unit.written}".strip()
    return ""


@functools.cache
def _units() -> Mapping[tuple[str, ...], str]:
    """Return the first spelling of each unit by the tokens of each spelling."""
    groups = [group.split(", ") for group in _OTHERS]
    for names in map(str.split, _LENGTHS):
        groups.append(names)
        for word, short, power in (("square", "sq", 2), ("cubic", "cu", 3)):
            forms = (f"{word} {{}}", f"{short} {{}}", f"{{}} {power}")
            groups.append([form.format(name) for form in forms for name in names])
    return {tuple(spelling.split()): group[0] for group in groups for spelling in group}


def _token(tokens: Sequence[str], position: int) -> str:
    """Return the token at a position, "" beyond the end."""
    return tokens[position] if position < len(tokens) else ""


def _length_at(tokens: Sequence[str], position: int) -> int:
    """Return the number of tokens of the longest unit at a position, 1 without a unit."""
    lengths = range(_LONGEST_UNIT, 1, -1)
    return next((length for length in lengths if tuple(tokens[position : position + length]) in _units()), 1)


def _readings(tokens: Sequence[str], position: int) -> Iterator[tuple[str, int]]:
    """Yield a number in digits and the position of its unit: without and with the magnitude that follows."""
    yield tokens[position], position + 1
    if magnitude := _MAGNITUDES.get(_token(tokens, position + 1)):
        yield canonical_number(f"{Decimal(tokens[position]) * magnitude:f}"), position + 2


def _units_after(tokens: Sequence[str], position: int) -> set[str]:
    """Return the unit at a position, and that of the second number of a range: `m` after the 5 of `5 to 6 m`."""
    units = {unit_at(tokens, position)}
    position += _token(tokens, position) in _BETWEEN
    if NUMBER.fullmatch(_token(tokens, position)):
        units |= {unit_at(tokens, following) for _, following in _readings(tokens, position)}
    return units


def _is_date(tokens: Sequence[str], position: int) -> bool:
    """Return True if a number is next to a month, or looks like a year."""
    number = tokens[position]
    is_year = len(number) == 4 and number.isdecimal() and 1000 <= int(number) <= 2100
    return is_year or not set(MONTHS).isdisjoint(tokens[max(0, position - 1) : position + 2])
