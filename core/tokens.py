"""Tokenize texts for comparison: numbers and dates in one form, words without case and accents.

The annotator, cover match and BM25 compare texts by `tokenize`. The official scores have their own rules.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import Final

from reflectune.core.dates import years_first
from reflectune.core.numerals import canonical_number, plain_numbers

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
"""Vowel signs of Indic scripts, which are part of a word but don't match `\\w`."""

NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?")
"""A token that is a number."""
_SIGN = r"(?<![\w.)\]}%\u00b0\u2032\u2033-])(?<!\d[ \"'])-"
"""A hyphen that is a minus sign, and doesn't join the ends of a range or the parts of a word."""

_WITH_DIGITS = rf"\d+s\b|(?:{_SIGN})?\d+(?:\.\d+)?"
_TOKEN = re.compile(rf"(?:[^\W\d_{UNSPACED}]|[{VOWEL_SIGNS}])+|{_WITH_DIGITS}|[{UNSPACED}]")
_ASCII_TOKEN = re.compile(rf"[a-z]+|{_WITH_DIGITS}")
_DIGITS = frozenset("0123456789")

_WITHOUT_MARKS = str.maketrans(
    {
        **dict(zip("\u0142\u00f8\u0111\u00f0\u0127\u0167\u0131", "loddhti", strict=True)),
        "\u00e6": "ae",
        "\u0153": "oe",
        "\u00fe": "th",
    }
)
"""Letters with a stroke and ligatures, which Unicode doesn't decompose."""


@functools.lru_cache(maxsize=8192)
def tokenize(text: str) -> tuple[str, ...]:
    """Return lower-case words and numbers, without accents and punctuation, and dates as year, month, day.

    - Letters: compatibility forms are resolved (NFKC), case is folded, accents are dropped (`Zürich`, `Łódź` are
      `zurich`, `lodz`); vowel signs, a kana's voicing and tones are part of a word. Invisible characters don't count.
    - Scripts without spaces (Chinese, Japanese, Thai, Lao, Burmese, Khmer): each letter is a token. Korean has spaces,
      so that a word with its particle is a token.
    - Numbers: see `plain_numbers`. `045` is `45`, and `2.50` is `2.5`. A number is split from letters next to it.

    Example:
        >>> tokenize("On 12 March 1999, 1,234 guests came.")
        ('on', '1999', 'march', '12', '1234', 'guests', 'came')
    """
    plain = years_first(_folded(plain_numbers(text)))
    found = (_ASCII_TOKEN if plain.isascii() else _TOKEN).findall(plain)
    return tuple(canonical_number(token) if token[-1] in _DIGITS else token for token in found)


def _folded(text: str) -> str:
    """Return a text without case and accents."""
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    plain = unicodedata.normalize("NFC", "".join(c for c in decomposed if c < "\u0300" or not _is_accent(c)))
    return plain.translate(_WITHOUT_MARKS)


def _is_accent(letter: str) -> bool:
    """Return True for an optional mark: an accent, a point of Hebrew or Arabic, a nukta.

    Other classes are part of the spelling: a kana's voicing (8), a virama (9), vowel signs and tones (84 to 132).
    """
    mark_class = unicodedata.combining(letter)
    return 0 < mark_class < 8 or 9 < mark_class < 84 or mark_class > 132
