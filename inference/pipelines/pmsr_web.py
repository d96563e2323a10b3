"""PMSR over a search tool (its appendices B and C): search, condense, summarise; the rest is PMSR.

Iteration 0 searches the multimodal knowledge base with the image alone. Iteration t searches with the last record,
condensed to a short query if it is long (equation C.11, figure A5), and with the trajectory's query. Each page found is
summarised for the query that found it (figure A6), and the record is written from these summaries and the pairs. The
search tool is a local knowledge base unless a server is named: by default nothing is sent over a network.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from reflectune.core.config import setting
from reflectune.core.types import Passage, Question
from reflectune.inference.operators.query_reply import read_queries
from reflectune.inference.operators.reply_text import clean_reply
from reflectune.inference.operators.requests import SearchReply
from reflectune.inference.operators.vocabulary import Steps, gather, merge, search, write
from reflectune.inference.pipelines.iterative import expand, iterative_recipe, split
from reflectune.inference.pipelines.mi_rag import Retrieved, with_options
from reflectune.inference.pipelines.pmsr import Pmsr, PmsrSettings
from reflectune.inference.pipelines.recipe import PipelineParts
from reflectune.inference.pipelines.requirements import ENTRY_INDEX, OPTIONAL_TEXTS, PAGES
from reflectune.retrieval.retrievers.web import WEB

CONDENSE: Final = """\
Rewrite this query to be a concise question for search engine including main entity and essential point.

Query: {query}
"""
SUMMARIZE: Final = """\
Query: {query}

Summarize the following web content, focusing on information relevant to the query. Provide a concise summary in a \
single paragraph:

Title: {title}
Content: {documents}
"""
"""Figures A5 and A6; the model sees no image with either."""

_PIECE = 1_000
"""Characters of a piece of a page: the leading pieces that fit the model's context are read."""


class PmsrWebSettings(PmsrSettings):
    """Settings of PMSR over a search tool."""

    web_results: int = setting(3, "pmsr_web: pages of each query", ge=1, le=100)
    condense_above: int = setting(
        400, "pmsr_web: characters above which a record's query is condensed for the search tool, as in the paper", ge=0
    )


@dataclass(frozen=True)
class PmsrWeb(Pmsr):
    """PMSR's trajectory of one question over a search tool."""

    settings: PmsrWebSettings

    def _first(self, question: Question) -> Steps[tuple[list[str], list[str]]]:
        """Return the query of the image alone, without a description."""
        yield from ()
        return [""], []

    def _next(self, iteration: int, question: Question, records: Sequence[str]) -> Steps[list[str]]:
        """Write the queries of both scopes, that of the record condensed if it is long."""
        scopes = [self._of_record(iteration, question, records), self._of_trajectory(iteration, question, records)]
        of_record, of_trajectory = yield from gather(scopes)
        return [*of_record, *of_trajectory] or [question.text]

    def _of_record(self, iteration: int, question: Question, records: Sequence[str]) -> Steps[list[str]]:
        """Return the query of the last record, condensed if it is long; none if its scope isn't used."""
        if self.settings.scopes == "trajectory":
            return []
        query = expand(question.text, records[-1])
        if len(query) <= self.settings.condense_above:
            return [query]
        return [(yield from self._condense(iteration, question, query)) or question.text]

    def _repeats(self, iteration: int, question: Question, queries: Sequence[str], earlier: list[str]) -> Steps[bool]:
        """Return True if queries repeat earlier ones. The empty query of the image alone doesn't count."""
        earlier[:] = filter(None, earlier)
        return (yield from super()._repeats(iteration, question, queries, earlier))

    def _retrieve(self, iteration: int, question: Question, queries: Sequence[str]) -> Steps[Retrieved]:
        """Search pages and pairs; a page is read as its summary."""
        tops = split(self.budgets, self._shares(queries))
        web = {WEB: [self.settings.web_results] * len(queries)} if iteration else {}
        found = yield from search(iteration, queries, {**web, **tops})
        summaries = yield from self._summaries(iteration, question, queries, found)
        pairs = SearchReply(tuple({base: hits[base] for base in tops} for hits in found.hits))
        return found, [*summaries, *merge(pairs)]

    def _condense(self, iteration: int, question: Question, query: str) -> Steps[str]:
        """Write a short query for the search tool; "" if the reply has none."""
        slots, longest = {"question": question.text, "query": query}, self.settings.max_record_tokens
        short = yield from write("rewrite", iteration, CONDENSE, slots, max_tokens=longest, image=False, form="text")
        return condensed(short.text)

    def _summaries(
        self, iteration: int, question: Question, queries: Sequence[str], found: SearchReply
    ) -> Steps[list[Passage]]:
        """Summarise each page for the first query that found it; pages with an empty summary are left out."""
        pages: dict[str, tuple[str, Passage]] = {}
        for query, by_base in zip(queries, found.hits, strict=True):
            for hit in by_base.get(WEB, ()):
                pages.setdefault(hit.passage.id, (query, hit.passage))
        replies = yield from gather(
            [
                write(
                    "summarize",
                    iteration,
                    SUMMARIZE,
                    {"question": question.text, "query": query, "title": page.title},
                    documents=pieces(page.text),
                    max_tokens=self.settings.max_record_tokens,
                    image=False,
                    form="text",
                )
                for query, page in pages.values()
            ]
        )
        return [
            dataclasses.replace(page, text=reply.text)
            for (_, page), reply in zip(pages.values(), replies, strict=True)
            if reply.text.strip()
        ]


def condensed(reply: str) -> str:
    """Parse the query in a reply to `CONDENSE`: its question, or else the whole reply on one line."""
    return next(iter(read_queries(reply, 1)), "") or " ".join(clean_reply(reply).split())


def pieces(text: str) -> list[str]:
    """Split a page's text into pieces, one a line unless the line is long."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return [line[start : start + _PIECE] for line in lines for start in range(0, len(line), _PIECE)]


def _make(settings: PmsrWebSettings, parts: PipelineParts) -> PmsrWeb:
    budgets = settings.budgets(parts)
    return PmsrWeb(settings, {"pairs": budgets["pairs"]} if "pairs" in budgets else {})


RECIPES = iterative_recipe(
    "pmsr_web",
    "PMSR, web pages",
    PmsrWebSettings,
    with_options(_make),
    requires=(ENTRY_INDEX, PAGES, OPTIONAL_TEXTS),
    pair_text="summary",
    has_own_depth=True,
)
