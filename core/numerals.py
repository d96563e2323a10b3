"""Rewrite the numbers of a text in one form: groups of digits, fractions, powers, any script's digits."""

from __future__ import annotations

import functools
import re
import unicodedata
from decimal import Decimal

from reflectune.core.dates import MONTH

_RAISED, _JOINED = "\ufdd0", "\ufdd1"  # noncharacters: before a raised or lowered character, before a vulgar fraction
_RUN = rf"(?:{_RAISED}.)+"
_SINGLE = {
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d", "-"),
    **dict.fromkeys("\u2018\u2019\u02b9\u02bb\u02bc\u02be\u02bf", "'"),
    **dict.fromkeys("\u207b\u208b", f"{_RAISED}-"),
    "\u2215": "/",
    "\u066b": ".",  # Arabic decimal point
    "\u066c": ",",  # Arabic separator of thousands
    "\u0640": "",  # Arabic elongation
}

_DIGIT = re.compile(r"\d")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_NEGATIVE_END = re.compile(r"(?<=\S)[-\u2010-\u2013](?=\u2212\d)")
_KEPT_SPACE = re.compile(r"(?<=\d)[\u00a0\u2007\u2009\u202f](?=\d{3}(?!\d))")
"""A no-break space between groups of digits. It never separates two numbers of a list."""

_FOOTNOTE = re.compile(r"(?<=[\w.%)\"'])\[(?:(?:note|nb|fn) )?\d{1,3}\]")
_MINUS = re.compile(r"(?<!\d )\bminus (?=\d)", re.IGNORECASE)
_GROUPS = re.compile(
    r"(?<![\d.,'])(?:\d{1,3}(?:,\d{3})+|\d{1,2}(?:,\d\d)+,\d{3}"  # also of lakhs
    r"|(?:\d{1,3}(?:'\d{3})+|\d{1,3}(?:\.\d{3}){2,}(?!\.)"
    r"|(?<!\d )[1-9]\d{0,2}(?: \d{3})+(?! \d)|[1-9]\d{0,2}(?: \d{3})*?(?: 000)+(?! 000)"
    r"|\d{1,3}\.\d{3}(?=,\d\d?(?!\d)))(?P<decimals>,\d\d?(?!\d))?)(?!\d)"
)
_AFTER_MONTH = re.compile(rf"(?:{MONTH}) $", re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"(?<![\d.,])(\d{1,3}|\d{5,}),(\d\d?)(?![\d,]|\.\d)")
_POINT_FIRST = re.compile(r"(?<![\w.)\]\"'])\.(?=\d)")
_POWER = re.compile(
    r"(?<![\w.,])(?:(?P<times>\d+(?:\.\d+)?) ?[x\u00d7\u00b7\u22c5*] ?)?"
    rf"10(?:\^(?P<plain>[-+]?\d{{1,2}})|(?P<raised>{_RUN}))(?!\d)"
)
_EXPONENT = re.compile(r"(?<![\w.])(?P<times>\d+(?:\.\d+)?)[eE](?P<plain>[-+]?\d{1,2})(?!\w|\.\d)")
_STACKED = re.compile(rf"({_RUN})[\u2044/]({_RUN})")
_FRACTION = re.compile(
    rf"(?<![\w.,/\u2044])(?:(?P<whole>\d{{1,15}})(?P<gap>[ -]?){_JOINED}?(?<!\d))?{_JOINED}?"
    r"(?P<over>[1-9]\d{0,2})(?P<bar>[\u2044/])(?P<under>[1-9]\d{0,2})(?!\d|[/\u2044]|[.,]\d)"
)
_MEASURED = frozenset({2, 3, 4, 5, 6, 8, 10, 12, 16, 32, 64, 100})
"""Denominators of fractions that are written with an ordinary slash. `9/11` isn't read as a fraction."""

_UNIT_POWER = re.compile(
    rf"((?<![^\W\d_])[^\W\d_]{{1,3}}|met(?:er|re)s?|inch(?:es)?|f(?:oo|ee)t|yards?|miles?)({_RUN})", re.IGNORECASE
)
_TO_RAISED = str.maketrans("0123456789-", "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b", _RAISED)
_MARK = re.compile(rf"{_RUN}(?P<next>\w?)")


def plain_numbers(text: str) -> str:
    """Rewrite the numbers of a text in ASCII digits with a decimal point; letters are composed (NFKC).

    It reads digits of any script; groups of thousands (by a comma, an apostrophe, any space, or several points); vulgar
    fractions; powers of ten; a decimal comma before one or two digits (`3,5`); and dashes as minus signs. It drops
    footnote marks. A single point is a decimal point. A row of numbers (`100 200 300`) reads as one number with groups,
    unless a number of another length is next to it.

    Example:
        >>> plain_numbers("−5½ kg, 3×10⁵ m², 50 000 in 1872³")
        '-5.5 kg, 300000 m², 50000 in 1872'
    """
    return _rewritten(text)[0]


def grouped_numbers(text: str) -> frozenset[str]:
    """Return the numbers of a text that are written in groups of digits (`1,872`), which years never are."""
    return _rewritten(text)[1]


def canonical_number(token: str) -> str:
    """Return `45` for `45.0` and `045`, `2.5` for `2.50`."""
    sign = "-" if token.startswith("-") else ""
    whole, _, fraction = token.removeprefix("-").partition(".")
    fraction = fraction.rstrip("0")
    whole = whole.lstrip("0") or "0"
    return sign + (f"{whole}.{fraction}" if fraction else whole)


@functools.lru_cache(maxsize=1024)
def _rewritten(text: str) -> tuple[str, frozenset[str]]:
    """Return a text with plain numbers, and those that were written in groups."""
    if not text.isascii():
        marked = _NEGATIVE_END.sub(", ", _KEPT_SPACE.sub("'", text))
        marked = _NOT_ASCII.sub(lambda match: _marked(match[0]), marked)
        text = unicodedata.normalize("NFKC", marked)
    if not _DIGIT.search(text):
        return text.replace(_RAISED, ""), frozenset()
    grouped: set[str] = set()

    def join(match: re.Match[str]) -> str:
        if " " in match[0] and _AFTER_MONTH.search(match.string[: match.start()][-10:]):  # a day before a number
            return match[0]
        decimals = match["decimals"] or ""
        number = re.sub(r"\D", "", match[0].removesuffix(decimals)) + decimals.replace(",", ".")
        grouped.add(canonical_number(number))
        return number

    plain = _GROUPS.sub(join, _MINUS.sub("-", _FOOTNOTE.sub("", text)))
    plain = _POINT_FIRST.sub("0.", _DECIMAL_COMMA.sub(r"\1.\2", plain))
    if "/" in plain or "\N{FRACTION SLASH}" in plain:
        plain = _FRACTION.sub(_decimal, _STACKED.sub(_unstacked, plain)).replace(_JOINED, " ")
    if "^" in plain or _RAISED in plain:
        plain = _POWER.sub(_multiplied, plain)
        plain = _UNIT_POWER.sub(lambda match: match[1] + match[2].translate(_TO_RAISED), plain)
        plain = _MARK.sub(lambda match: match["next"] and f" {match['next']}", plain)
    return _EXPONENT.sub(_multiplied, plain), frozenset(grouped)


@functools.cache
def _marked(letter: str) -> str:
    """Return a character with digits in ASCII: raised and lowered ones and fractions marked, invisible ones dropped."""
    if letter in _SINGLE:
        return _SINGLE[letter]
    match unicodedata.category(letter):
        case "Nd":
            return str(unicodedata.decimal(letter))
        case "Cf":
            return ""
        case "So":  # a unit in one character: a square metre
            return re.sub(r"(?<=[a-z])(\d)", rf"{_RAISED}\1", unicodedata.normalize("NFKC", letter))
        case "No":
            digits = unicodedata.normalize("NFKD", letter)
            if "\N{FRACTION SLASH}" in digits:
                return _JOINED + digits
            return "".join(_RAISED + digit for digit in digits if digit in "0123456789") or letter
    return letter


def _unstacked(match: re.Match[str]) -> str:
    over, under = (part.replace(_RAISED, "") for part in match.groups())
    return f"{_JOINED}{over}\N{FRACTION SLASH}{under}"


def _decimal(match: re.Match[str]) -> str:
    """Return a fraction, perhaps after a whole number, as a decimal number with six digits."""
    whole, over, under = (int(match[name] or 0) for name in ("whole", "over", "under"))
    if match["bar"] == "/" and (under not in _MEASURED or over >= under):
        return match[0]
    fraction = Decimal(over) / under
    if match["gap"] and len(match["whole"]) > 3:  # a year before a fraction
        return f"{match['whole']}{match['gap']}{canonical_number(f'{fraction:.6f}')}"
    return canonical_number(f"{whole + fraction:.6f}")


def _multiplied(match: re.Match[str]) -> str:
    """Return a number times a power of ten in digits."""
    times = Decimal(match["times"] or 1)
    exponent = match["plain"] or match["raised"].replace(_RAISED, "")
    if not re.fullmatch(r"[-+]?\d{1,2}", exponent):  # no number that a text means
        return ""
    return canonical_number(f"{times.scaleb(int(exponent)):f}")
