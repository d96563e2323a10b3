"""Rewrite the dates of a text as year, month, day."""

from __future__ import annotations

import re
from typing import Final

MONTHS: Final = tuple("january february march april may june july august september october november december".split())
MONTH: Final = "|".join(MONTHS)
"""A month as a regular expression."""
_DATES = (
    re.compile(r"(?<!\w)(?P<y>\d{4})-(?P<m>0[1-9]|1[0-2])-(?P<d>0[1-9]|[12]\d|3[01])\b"),
    re.compile(rf"\b(?P<d>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? (?P<m>{MONTH}),? (?P<y>\d{{4}})\b"),
    re.compile(rf"\b(?P<m>{MONTH}) (?P<d>\d{{1,2}})(?:st|nd|rd|th)?,? (?P<y>\d{{4}})\b"),
    re.compile(rf"\b(?P<m>{MONTH}),? (?:of )?(?P<y>\d{{4}})\b"),
)


def years_first(text: str) -> str:
    """Join the parts of each date in a text in lower case by underscores, the year first.

    "1999" and "March 1999" are then runs of the tokens of "12 March 1999".

    Example:
        >>> years_first("on 12 march 1999")
        'on 1999_march_12'
    """
    for pattern in _DATES:
        text = pattern.sub(_year_first, text)
    return text


def _year_first(match: re.Match[str]) -> str:
    parts = match.groupdict()
    month = parts["m"] if parts["m"].isalpha() else MONTHS[int(parts["m"]) - 1]
    # Underscores keep a later pattern from matching a rewritten date.
    return "_".join(part for part in (parts["y"], month, str(int(parts["d"])) if parts.get("d") else "") if part)
