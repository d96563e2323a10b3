"""A search tool behind a server: one POST a query, each reply kept, and nothing else of the network ever asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any

from reflectune.core.hashing import fingerprint
from reflectune.models.remote.endpoint import Endpoint
from reflectune.models.remote.replies import ReplyFile
from reflectune.models.remote.transport import Refused, Transport
from reflectune.retrieval.web.pages import MOST_CHARACTERS, Page


class ServedPages:
    """Client of a search server: posts `{"query": …, "max_results": k}`, reads `{"results": [{"title", "url",
    "content"}]}`.

    That is the protocol of Ollama's web search; others are easily adapted. A page's own address is shown and never
    fetched: its content comes with the search. Certificates are checked, redirects are errors, a reply is bounded in
    size and time. Transient failures are retried with backoff; a query that the server refuses finds nothing. Each
    reply is written to the disk, under a hash of address and request, before the next request, and is never asked for
    again.

    Args:
        endpoint: The server.
        cache: File of replies.

    Example:
        >>> with ServedPages(Endpoint("https://search.example/api/web_search", ""), "pages.jsonl") as tool:
        ...     tool.pages(["Forth Bridge engineer"], top=3)
    """

    def __init__(self, endpoint: Endpoint, cache: str | Path) -> None:
        self.endpoint = endpoint
        self._replies = ReplyFile(cache)

    def pages(self, queries: Sequence[str], top: int) -> list[list[Page]]:
        """Return at most `top` pages for each query, in the server's order, each address once.

        Raises:
            UserError: The server can't be used, or kept failing. Finished replies are stored.
        """
        bodies = [{"query": query, "max_results": top} for query in queries]
        keys = [fingerprint([self.endpoint.shown_url, body]) for body in bodies]
        missing = {key: body for key, body in zip(keys, bodies, strict=True) if key not in self._replies}
        refused = self._send(missing)
        return [[] if key in refused else [Page(**page) for page in self._replies.get(key)["pages"]] for key in keys]

    def close(self) -> None:
        """Close the file of replies."""
        self._replies.close()

    def __enter__(self) -> ServedPages:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, bodies: Mapping[str, dict[str, Any]]) -> set[str]:
        """Send the missing queries; return the keys of those that the server refuses."""
        if not bodies:
            return set()
        pool = ThreadPoolExecutor(min(self.endpoint.concurrency, len(bodies)), thread_name_prefix="web-search")
        with closing(Transport(self.endpoint, path="")) as transport, pool:
            try:
                answered = pool.map(lambda item: self._ask(transport, *item), bodies.items())
                return {key for key, is_refused in zip(bodies, answered, strict=True) if is_refused}
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def _ask(self, transport: Transport, key: str, body: dict[str, Any]) -> bool:
        """Send one query and store its reply; return True if it was refused."""
        try:
            pages = transport.post(body, lambda value: read_pages(value, body["max_results"]))
        except Refused:
            return True
        rows = [{"id": page.id, "title": page.title, "text": page.text} for page in pages]
        self._replies.put(key, {"pages": rows, "prompt_tokens": 0, "completion_tokens": 0})
        return False


def read_pages(value: Any, top: int) -> list[Page]:
    """Return the first `top` results of a reply that have an address, each once.

    Raises:
        KeyError, TypeError: The reply is not a list of results, or a result lacks texts; it is asked for again.
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
            pages.setdefault(url, Page(url, title[:MOST_CHARACTERS], content[:MOST_CHARACTERS]))
    return list(pages.values())[:top]


def _plain(text: str) -> str:
    """A text that JSON and UTF-8 can hold, in lines without control characters, with plain spaces alone."""
    storable = "\n".join(text.encode("utf-8", errors="replace").decode().splitlines())
    return "".join(map(_printable, storable)).strip()


def _printable(letter: str) -> str:
    """A letter as it is, a plain space for a space of another width, nothing for a control character."""
    if letter in "\n\t" or letter.isprintable():
        return letter
    return " " if letter.isspace() else ""
