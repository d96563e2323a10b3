"""Search the web through a search server, or by default a local knowledge base without a network."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol
from urllib.parse import urlsplit

from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.durable import Closing
from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.core.secrets import is_url, shown_url
from reflectune.core.types import Passage
from reflectune.core.values import checked_by
from reflectune.formats.hits import PassageHit
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.models.remote.endpoint import Endpoint, key_problems, read_key
from reflectune.models.remote.replies import ReplyFile
from reflectune.models.remote.transport import Refused, Transport
from reflectune.retrieval.retrievers.queries import Query
from reflectune.retrieval.retrievers.two_stage import article_of

if TYPE_CHECKING:  # slow to import
    from reflectune.retrieval.retrievers.text_retriever import TextRetriever

WEB: Final = "web"
"""Name of the search tool among the knowledge bases that a step searches."""
MAX_CHARACTERS: Final = 20_000
"""Characters after which a page's text is truncated."""
_PASSAGES: Final = 4
"""Passages that the local tool retrieves per page, since several may be of one article."""


def search_address(url: str) -> str:
    """Return the problem of a search server's address, as a predicate of the config key; "" if there is none.

    Plain http is allowed to this machine and private networks only, since queries contain users' questions.
    """
    if not url:
        return ""
    if not is_url(url):
        return "must look like https://HOST/api/web_search, found another form (not shown: it may be a secret)"
    if urlsplit(url).scheme == "http" and not _is_private(urlsplit(url).hostname or ""):
        return f"is plain http to another machine (`{shown_url(url)}`); use https"
    return ""


def _is_private(host: str) -> bool:
    """Return True if a host is this machine or on a private network."""
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        return address.is_loopback or address.is_private
    return host == "localhost"


SearchAddress = Annotated[str, checked_by(search_address)]


class WebConfig(Settings):
    """Settings of the web search tool."""

    web_url: SearchAddress = setting(
        "", "pmsr_web: search server to POST to; default: the text index, no network", secret=True
    )
    web_key_variable: str = setting(
        "WEB_SEARCH_API_KEY", "environment variable that holds that server's API key; never the key itself", secret=True
    )
    web_concurrency: int = setting(4, "pmsr_web: maximum number of concurrent searches", ge=1)
    web_timeout: float = setting(30.0, "pmsr_web: seconds to wait for a connection, for a reply, and for its end", gt=0)
    web_retries: int = setting(
        4, "pmsr_web: most retries after a rate limit, a server error or a lost connection", ge=0
    )

    @property
    def web_place(self) -> str:
        """The server's address without secrets, for fingerprints; "" for the text index."""
        return shown_url(self.web_url) if self.web_url else ""

    @cross_check
    def web_problems(self) -> list[str]:
        """Return the problems of the search server's key."""
        return key_problems("web_key_variable", self.web_key_variable)

    def web_endpoint(self) -> Endpoint:
        """Return the server, with the API key from the environment."""
        return Endpoint(
            url=self.web_url,
            model="",
            key=read_key(self.web_key_variable),
            concurrency=self.web_concurrency,
            timeout=self.web_timeout,
            retries=self.web_retries,
            keys="web",
        )


@dataclass(frozen=True)
class Page:
    """Page that a search found. Its text is untrusted: special tokens in it are tokenized as plain text.

    Attributes:
        id: URL, or the id of a knowledge base's entry.
        title: Title.
        text: Text without markup, at most `MAX_CHARACTERS`.
    """

    id: str
    title: str
    text: str


class SearchTool(Protocol):
    """Finds pages for queries."""

    def pages(self, queries: Sequence[str], top: int) -> list[list[Page]]:
        """Return for each query, in order, at most `top` pages, best first."""
        ...


class KnowledgePages:
    """The local tool, which finds articles of a knowledge base by their most similar passages.

    Args:
        retriever: Retriever of the knowledge base's passages.
        knowledge: The knowledge base.
    """

    def __init__(self, retriever: TextRetriever, knowledge: KnowledgeBase) -> None:
        self._retriever, self._knowledge = retriever, knowledge

    def pages(self, queries: Sequence[str], top: int) -> list[list[Page]]:
        """Return for each query the articles of its best passages, best first."""
        hits_by_query = self._retriever.search(queries, _PASSAGES * top)
        entries = [list(dict.fromkeys(hit.passage.entry_id for hit in hits))[:top] for hits in hits_by_query]
        return [[self._page(entry_id) for entry_id in row] for row in entries]

    def _page(self, entry_id: str) -> Page:
        entry = self._knowledge.get(entry_id)
        article = article_of(entry)
        return Page(entry.id, entry.title, article.text[:MAX_CHARACTERS] if article is not None else "")


class Pages:
    """A search tool as a `Searcher` for joint search; a query without text has no hits.

    Args:
        tool: Finds pages.
    """

    name = WEB

    def __init__(self, tool: SearchTool) -> None:
        self._tool = tool

    def search(self, queries: Sequence[Query], top: int) -> list[list[PassageHit]]:
        """Return each query's pages as passages without headings, with the score 1 / rank."""
        answers = iter(self._tool.pages([query.text for query in queries if query.has_text], top))
        pages = [next(answers) if query.has_text else [] for query in queries]
        return [
            [
                PassageHit(Passage(page.id, 0, 0, page.title, "", "", page.text), 1.0 / rank, rank, WEB)
                for rank, page in enumerate(row, start=1)
            ]
            for row in pages
        ]


class ServedPages(Closing):
    """Client of a search server: posts `{"query": …, "max_results": k}`, reads `{"results": [{"title", "url",
    "content"}]}`.

    This is the protocol of Ollama's web search. Pages are never fetched: their content comes with the reply.
    Certificates are checked, redirects are errors, and replies are limited in size and time. Transient failures are
    retried with backoff. A query that the server refuses has no pages; the first refusal is printed. Each reply is
    cached on disk at once, under a hash of address and request.

    Args:
        endpoint: The server.
        cache: Cache file of replies.

    Example:
        >>> with ServedPages(Endpoint("https://search.example/api/web_search", ""), "pages.jsonl") as tool:
        ...     tool.pages(["Forth Bridge engineer"], top=3)
    """

    def __init__(self, endpoint: Endpoint, cache: str | Path) -> None:
        self.endpoint = endpoint
        self._replies = ReplyFile(cache)
        self._has_warned = False

    def pages(self, queries: Sequence[str], top: int) -> list[list[Page]]:
        """Return at most `top` pages for each query, in the server's order, without repeated URLs.

        Raises:
            UserError: The server can't be used, keeps failing, or refuses every query. Finished replies stay cached.
        """
        bodies = [{"query": query, "max_results": top} for query in queries]
        keys = [fingerprint([self.endpoint.shown_url, body]) for body in bodies]
        missing = {key: body for key, body in zip(keys, bodies, strict=True) if key not in self._replies}
        refused = self._send(missing)
        if refused:
            self._report(next(iter(refused.values())))
        return [[] if key in refused else [Page(**page) for page in self._replies.get(key)["pages"]] for key in keys]

    def close(self) -> None:
        """Close the cache file."""
        self._replies.close()

    def _report(self, reason: str) -> None:
        """Print the first refusal, or raise UserError if no reply is cached."""
        if not self._replies:
            raise UserError(
                f"{self.endpoint.shown_url} refuses every query: {reason}; expected a server that takes "
                '`{"query": TEXT, "max_results": NUMBER}`: check `web_url`, or use an adapter'
            )
        if not self._has_warned:
            self._has_warned = True
            print(f"{self.endpoint.shown_url} refuses a query, which has no pages: {reason}", file=sys.stderr)

    def _send(self, bodies: Mapping[str, dict[str, Any]]) -> dict[str, str]:
        """Send queries, and return the reasons of those that the server refuses, by key."""
        if not bodies:
            return {}
        pool = ThreadPoolExecutor(min(self.endpoint.concurrency, len(bodies)), thread_name_prefix="web-search")
        with closing(Transport(self.endpoint, path="")) as transport, pool:
            try:
                refusals = pool.map(lambda item: self._ask(transport, *item), bodies.items())
                return {key: reason for key, reason in zip(bodies, refusals, strict=True) if reason}
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def _ask(self, transport: Transport, key: str, body: dict[str, Any]) -> str:
        """Send one query and cache its reply. Return the reason if it was refused, else ""."""
        try:
            pages = transport.post(body, lambda value: read_pages(value, body["max_results"]))
        except Refused as error:
            return str(error)
        self._replies.put(key, {"pages": [asdict(page) for page in pages], "prompt_tokens": 0, "completion_tokens": 0})
        return ""


def read_pages(value: Any, top: int) -> list[Page]:
    """Return the first `top` distinct results of a reply that have a URL.

    Raises:
        KeyError, TypeError: The reply is not a list of results, or a field is not a string; the query is sent again.
    """
    pages: dict[str, Page] = {}
    for result in value["results"]:
        if not isinstance(result, dict):
            raise TypeError(f"a result is {type(result).__name__}")
        fields = [result.get(name) or "" for name in ("url", "title", "content")]
        if not all(isinstance(field, str) for field in fields):
            raise TypeError("a result's url, title or content is not a string")
        url, title, content = (_plain(field) for field in fields)
        if url:
            pages.setdefault(url, Page(url, title[:MAX_CHARACTERS], content[:MAX_CHARACTERS]))
    return list(pages.values())[:top]


def _plain(text: str) -> str:
    """Return a text that UTF-8 can encode, with plain spaces and line breaks, without control characters but tabs."""
    lines = "\n".join(text.encode("utf-8", errors="replace").decode().splitlines())
    plain = (c if c in "\n\t" or c.isprintable() else " " if c.isspace() else "" for c in lines)
    return "".join(plain).strip()
