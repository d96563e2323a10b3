"""Tokenize texts for comparison: numbers and dates in one form, words without case and accents.

The annotator, cover match and BM25 compare texts by `tokenize`; metrics of our own read numbers by `plain_numbers`.
The official scores have their own rules.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from decimal import Decimal
from typing import Final

UNSPACED: Final = (
    r"\u0e01-\u0e3a\u0e40-\u0e4e"  # Thai
    r"\u0e81-\u0ebd\u0ec0-\u0ecd"  # Lao
    r"\u1000-\u103f\u1050-\u108f\u109a-\u109d"  # Burmese
    r"\u1780-\u17d3\u17d7\u17dc\u17dd"  # Khmer
    r"\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"  # kana and iteration marks
    r"\u3105-\u312f\u31a0-\u31bf"  # Bopomofo
    r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
"""Letters of scripts that put no spaces between words, as ranges of a regular expression's set: each is a token."""

VOWEL_SIGNS: Final = "".join(
    chr(code)
    for code in range(0x0900, 0x1000)
    if unicodedata.category(chr(code)) in ("Mn", "Mc") and not re.match(f"[{UNSPACED}]", chr(code))
)
"""Marks of the scripts of India that spell a word as letters do; no `\\w` of a regular expression."""

NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?")
"""A token that is a number."""

MONTHS: Final = tuple("january february march april may june july august september october november december".split())
_MONTH = "|".join(MONTHS)
_DATES = (
    # A date is rewritten as year, month, day, so that "1999" and "March 1999" are runs of tokens of "12 March 1999".
    re.compile(r"(?<!\w)(?P<y>\d{4})-(?P<m>0[1-9]|1[0-2])-(?P<d>0[1-9]|[12]\d|3[01])\b"),
    re.compile(rf"\b(?P<d>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? (?P<m>{_MONTH}),? (?P<y>\d{{4}})\b"),
    re.compile(rf"\b(?P<m>{_MONTH}) (?P<d>\d{{1,2}})(?:st|nd|rd|th)?,? (?P<y>\d{{4}})\b"),
    re.compile(rf"\b(?P<m>{_MONTH}),? (?:of )?(?P<y>\d{{4}})\b"),
)
_SIGN = r"(?<![\w.)\]}%\u00b0\u2032\u2033-])(?<!\d[ \"'])-"
"""A hyphen that is a minus sign: none stands between the ends of a range or the parts of a word."""

_WITH_DIGITS = rf"\d+s\b|(?:{_SIGN})?\d+(?:\.\d+)?"
_TOKEN = re.compile(rf"(?:[^\W\d_{UNSPACED}]|[{VOWEL_SIGNS}])+|{_WITH_DIGITS}|[{UNSPACED}]")
_ASCII_TOKEN = re.compile(rf"[a-z]+|{_WITH_DIGITS}")
_DIGITS = frozenset("0123456789")

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
_WITHOUT_MARKS = str.maketrans(
    {
        **dict(zip("\u0142\u00f8\u0111\u00f0\u0127\u0167\u0131", "loddhti", strict=True)),
        "\u00e6": "ae",
        "\u0153": "oe",
        "\u00fe": "th",
    }
)
"""Letters with a stroke and ligatures, which Unicode doesn't decompose."""

_DIGIT = re.compile(r"\d")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_NEGATIVE_END = re.compile(r"(?<=\S)[-\u2010-\u2013](?=\u2212\d)")
_KEPT_SPACE = re.compile(r"(?<=\d)[\u00a0\u2007\u2009\u202f](?=\d{3}(?!\d))")
"""A space between groups of digits at which no line breaks: no space between two numbers of a list."""

_FOOTNOTE = re.compile(r"(?<=[\w.%)\"'])\[(?:(?:note|nb|fn) )?\d{1,3}\]")
_MINUS = re.compile(r"(?<!\d )\bminus (?=\d)", re.IGNORECASE)
_GROUPS = re.compile(
    r"(?<![\d.,'])(?:\d{1,3}(?:,\d{3})+|\d{1,2}(?:,\d\d)+,\d{3}"  # also of lakhs
    r"|(?:\d{1,3}(?:'\d{3})+|\d{1,3}(?:\.\d{3}){2,}(?!\.)"
    r"|(?<!\d )[1-9]\d{0,2}(?: \d{3})+(?! \d)|[1-9]\d{0,2}(?: \d{3})*?(?: 000)+(?! 000)"
    r"|\d{1,3}\.\d{3}(?=,\d\d?(?!\d)))(?P<decimals>,\d\d?(?!\d))?)(?!\d)"
)
_AFTER_MONTH = re.compile(rf"(?:{_MONTH}) $", re.IGNORECASE)
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
"""Denominators of fractions with an ordinary slash; `9/11` is none."""

_UNIT_POWER = re.compile(
    rf"((?<![^\W\d_])[^\W\d_]{{1,3}}|met(?:er|re)s?|inch(?:es)?|f(?:oo|ee)t|yards?|miles?)({_RUN})", re.IGNORECASE
)
_TO_RAISED = str.maketrans("0123456789-", "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b", _RAISED)
_MARK = re.compile(rf"{_RUN}(?P<next>\w?)")


@functools.lru_cache(maxsize=8192)
def tokenize(text: str) -> tuple[str, ...]:
    """Return lower-case words and numbers, without accents and punctuation, and dates as year, month, day.

    - Letters: compatibility forms are resolved (NFKC), case is folded, accents are dropped (`Zürich`, `Łódź` are
      `zurich`, `lodz`); vowel signs, a kana's voicing and tones are part of a word. Invisible characters don't count.
    - Scripts without spaces (Chinese, Japanese, Thai, Lao, Burmese, Khmer): each letter is a token. Korean has spaces,
      so that a word with its particle is a token.
    - Numbers: see `plain_numbers`. `045` is `45`, and `2.50` is `2.5`. A number is parted from letters next to it.

    Example:
        >>> tokenize("On 12 March 1999, 1,234 guests came.")
        ('on', '1999', 'march', '12', '1234', 'guests', 'came')
    """
    plain = _folded(plain_numbers(text))
    for pattern in _DATES:
        plain = pattern.sub(_year_first, plain)
    found = (_ASCII_TOKEN if plain.isascii() else _TOKEN).findall(plain)
    return tuple(canonical_number(token) if token[-1] in _DIGITS else token for token in found)


def plain_numbers(text: str) -> str:
    """Rewrite the numbers of a text in ASCII digits with a decimal point; letters are composed (NFKC).

    Read are digits of any script; groups of thousands (by a comma, an apostrophe, any space, or several points); vulgar
    fractions; powers of ten; a decimal comma before one or two digits (`3,5`); and dashes as minus signs. A footnote's
    mark is dropped. A single point is a decimal point, and a row of numbers (`100 200 300`) reads as one with groups,
    unless a number of another length is next to it.

    Example:
        >>> plain_numbers("−5½ kg, 3×10⁵ m², 50 000 in 1872³")
        '-5.5 kg, 300000 m², 50000 in 1872'
    """
    return _rewritten(text)[0]


def grouped_numbers(text: str) -> frozenset[str]:
    """Return the whole numbers of a text that are written in groups of digits, so that none is a year."""
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


def _folded(text: str) -> str:
    """Return a text without case and accents."""
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    plain = unicodedata.normalize("NFC", "".join(it for it in decomposed if it < "\u0300" or not _is_accent(it)))
    return plain.translate(_WITHOUT_MARKS)


def _is_accent(letter: str) -> bool:
    """Return True for an optional mark: an accent, a point of Hebrew or Arabic, a nukta.

    Other classes are part of the spelling: a kana's voicing (8), a virama (9), vowel signs and tones (84 to 132).
    """
    mark_class = unicodedata.combining(letter)
    return 0 < mark_class < 8 or 9 < mark_class < 84 or mark_class > 132


def _year_first(match: re.Match[str]) -> str:
    parts = match.groupdict()
    month = parts["m"] if parts["m"].isalpha() else MONTHS[int(parts["m"]) - 1]
    # Underscores separate tokens, and keep a later pattern from matching a rewritten date.
    return "_".join(part for part in (parts["y"], month, str(int(parts["d"])) if parts.get("d") else "") if part)
