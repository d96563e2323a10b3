"""Interface of search tools: queries in, pages out. The default is a local knowledge base, without a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from reflectune.core.types import Passage
from reflectune.formats.hits import PassageHit
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.retrieval.retrievers.queries import Query
from reflectune.retrieval.retrievers.two_stage import article_of

if TYPE_CHECKING:  # slow to import
    from reflectune.retrieval.retrievers.text_retriever import TextRetriever

WEB: Final = "web"
"""The name of a search tool among the knowledge bases that a step searches."""
MOST_CHARACTERS: Final = 20_000
"""Longest text of a page, in characters; the rest is cut off."""
_PASSAGES: Final = 4
"""Passages that the local tool looks at for a page: an article may be found by several of its own."""


@dataclass(frozen=True)
class Page:
    """Page that a search found. It is untrusted text and is tokenized as plain text.

    Attributes:
        id: Address, or the id of a knowledge base's entry.
        title: Title.
        text: Text without markup, at most `MOST_CHARACTERS`.
    """

    id: str
    title: str
    text: str


class SearchTool(Protocol):
    """Finds pages for queries."""

    def pages(self, queries: Sequence[str], top: int) -> list[list[Page]]:
        """For each query, in order, at most `top` pages, best first."""
        ...


class KnowledgePages:
    """The local tool: the articles of a knowledge base, each by its passage that is nearest to the query.

    Args:
        retriever: Over the knowledge base's passages.
        knowledge: The knowledge base.
    """

    def __init__(self, retriever: TextRetriever, knowledge: KnowledgeBase) -> None:
        self._retriever, self._knowledge = retriever, knowledge

    def pages(self, queries: Sequence[str], top: int) -> list[list[Page]]:
        """For each query the articles of its best passages, best first."""
        hits_by_query = self._retriever.search(queries, _PASSAGES * top)
        entries = [list(dict.fromkeys(hit.passage.entry_id for hit in hits))[:top] for hits in hits_by_query]
        return [[self._page(entry_id) for entry_id in row] for row in entries]

    def _page(self, entry_id: str) -> Page:
        entry = self._knowledge.get(entry_id)
        article = article_of(entry)
        return Page(entry.id, entry.title, article.text[:MOST_CHARACTERS] if article is not None else "")


class Pages:
    """A search tool as one of several knowledge bases; a query without text finds nothing.

    Args:
        tool: Finds pages.
    """

    name = WEB

    def __init__(self, tool: SearchTool) -> None:
        self._tool = tool

    def search(self, queries: Sequence[Query], top: int) -> list[list[PassageHit]]:
        """For each query its pages, each as one passage without a heading; the best has the highest score."""
        answers = iter(self._tool.pages([query.text for query in queries if query.has_text], top))
        pages = [next(answers) if query.has_text else [] for query in queries]
        return [
            [PassageHit(_passage(page), 1.0 / rank, rank, WEB) for rank, page in enumerate(row, start=1)]
            for row in pages
        ]


def _passage(page: Page) -> Passage:
    return Passage(page.id, 0, 0, page.title, "", "", page.text)
