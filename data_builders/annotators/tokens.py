"""Tokenize texts for comparison: numbers and dates in one form, words without case and accents."""

from __future__ import annotations

import functools
import re
import unicodedata

from reflectune.metrics.judging.cover import UNSPACED, VOWEL_SIGNS

_TOKEN = re.compile(rf"\d+s\b|(?:(?<![\w.])-)?\d+(?:\.\d+)?|[{UNSPACED}]|(?:[^\W\d_{UNSPACED}]|[{VOWEL_SIGNS}])+")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d)")
MONTHS = tuple("january february march april may june july august september october november december".split())
_MONTH = "|".join(MONTHS)
_DATES = (
    # A date is rewritten as year, month, day, so that "1999" and "March 1999" are runs of tokens of "12 March 1999".
    re.compile(r"\b(?P<y>\d{4})-(?P<m>0[1-9]|1[0-2])-(?P<d>0[1-9]|[12]\d|3[01])\b"),
    re.compile(rf"\b(?P<d>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? (?P<m>{_MONTH}),? (?P<y>\d{{4}})\b"),
    re.compile(rf"\b(?P<m>{_MONTH}) (?P<d>\d{{1,2}})(?:st|nd|rd|th)?,? (?P<y>\d{{4}})\b"),
    re.compile(rf"\b(?P<m>{_MONTH}),? (?:of )?(?P<y>\d{{4}})\b"),
)


@functools.lru_cache(maxsize=65536)
def tokenize(text: str) -> tuple[str, ...]:
    """Return lower-case words and numbers, without accents and punctuation, and dates as year, month, day.

    Each letter of Chinese, Japanese and Thai is a token, since they don't separate words.

    Example:
        >>> tokenize("On 12 March 1999, 1,234 guests came.")
        ('on', '1999', 'march', '12', '1234', 'guests', 'came')
    """
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    plain = unicodedata.normalize("NFC", "".join(letter for letter in decomposed if not _is_accent(letter)))
    plain = THOUSANDS.sub(lambda match: match[0].replace(",", ""), plain.replace("\N{MINUS SIGN}", "-"))
    for pattern in _DATES:
        plain = pattern.sub(_year_first, plain)
    return tuple(canonical_number(token) if NUMBER.fullmatch(token) else token for token in _TOKEN.findall(plain))


def _is_accent(letter: str) -> bool:
    """Return True for an optional mark: an accent, a point of Hebrew or Arabic, a nukta.

    The other combining classes are part of the spelling: a kana's voicing (8), a virama (9), vowel signs and tones (84
    to 132).
    """
    mark_class = unicodedata.combining(letter)
    return 0 < mark_class < 8 or 9 < mark_class < 84 or mark_class > 132


def _year_first(match: re.Match[str]) -> str:
    parts = match.groupdict()
    month = parts["m"] if parts["m"].isalpha() else MONTHS[int(parts["m"]) - 1]
    # Underscores separate tokens, and keep a later pattern from matching a rewritten date.
    return "_".join(part for part in (parts["y"], month, str(int(parts["d"])) if parts.get("d") else "") if part)


def canonical_number(token: str) -> str:
    """Return `45` for `45.0` and `045`, `2.5` for `2.50`."""
    sign = "-" if token.startswith("-") else ""
    whole, _, fraction = token.removeprefix("-").partition(".")
    fraction = fraction.rstrip("0")
    whole = whole.lstrip("0") or "0"
    return sign + (f"{whole}.{fraction}" if fraction else whole)
