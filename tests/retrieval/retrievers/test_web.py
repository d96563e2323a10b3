"""A search server that misbehaves, and what of its replies is believed; and the local tool that asks no network."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from reflectune.core.config import find_problems
from reflectune.core.errors import UserError
from reflectune.core.types import Entry, Passage, Section
from reflectune.formats.hits import PassageHit
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base
from reflectune.models.remote.endpoint import Endpoint
from reflectune.retrieval.retrievers.queries import Query
from reflectune.retrieval.retrievers.web import (
    MAX_CHARACTERS,
    KnowledgePages,
    Page,
    Pages,
    ServedPages,
    WebConfig,
    read_pages,
    search_address,
)

KEY = "s3cret-k3y-of-the-search"
Fault = dict[str, Any]


class SearchServer:
    """Replies to searches; `fault(query, n)` says what to do wrong with the n-th request for a query."""

    def __init__(self, fault: Callable[[str, int], Fault]) -> None:
        self.fault, self.asked, self.keys, self.paths = fault, [], [], []
        lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    number = server.asked.count(body["query"])
                    server.asked.append(body["query"])
                    server.keys.append(self.headers.get("Authorization", ""))
                    server.paths.append(self.path)
                fault = server.fault(body["query"], number)
                content = fault.get("body", json.dumps({"results": results(body["query"])})).encode()
                self.send_response(fault.get("status", 200))
                self.send_header("Content-Length", str(len(content)))
                for name, value in fault.get("headers", {}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}/api/web_search"
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


def results(query: str) -> list[dict[str, Any]]:
    return [{"title": f"{query} {n}", "url": f"https://{query}.example/{n}", "content": f"Page {n}"} for n in range(5)]


@pytest.fixture
def serve() -> Iterator[Callable[..., SearchServer]]:
    servers: list[SearchServer] = []

    def start(fault: Callable[[str, int], Fault] = lambda query, number: {}) -> SearchServer:
        servers.append(SearchServer(fault))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def tool(tmp_path: Path) -> Callable[..., ServedPages]:
    def make(server: SearchServer, **more: Any) -> ServedPages:
        how = {"key": KEY, "timeout": 5.0, "retries": 2, "keys": "web", **more}
        return ServedPages(Endpoint(server.url, "", **how), tmp_path / "pages.jsonl")

    return make


def test_pages_come_in_the_servers_order_and_are_asked_for_once(serve: Any, tool: Any) -> None:
    server = serve()
    with tool(server) as asking:
        first = asking.pages(["oak", "elm", "oak"], 2)
    assert [[page.id for page in row] for row in first] == [
        ["https://oak.example/0", "https://oak.example/1"],
        ["https://elm.example/0", "https://elm.example/1"],
        ["https://oak.example/0", "https://oak.example/1"],
    ]
    assert first[0][1] == Page("https://oak.example/1", "oak 1", "Page 1")
    assert sorted(server.asked) == ["elm", "oak"]
    assert set(server.paths) == {"/api/web_search"}
    assert set(server.keys) == {f"Bearer {KEY}"}
    with tool(server) as again:
        assert again.pages(["elm", "oak"], 2) == [first[1], first[0]]
    assert len(server.asked) == 2
    with tool(server) as more:
        assert len(more.pages(["oak"], 4)[0]) == 4  # another request
    assert len(server.asked) == 3


FAULTS: dict[str, Fault] = {
    "too many requests": {"status": 429, "headers": {"Retry-After": "0.01"}},
    "another schema": {"body": '{"answer": 1}'},
    "results of numbers": {"body": '{"results": [1]}'},
    "a title that is a list": {"body": '{"results": [{"title": [], "url": ["x"], "content": ""}]}'},
}


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_what_may_pass_is_tried_again_and_what_was_found_is_kept(fault: Fault, serve: Any, tool: Any) -> None:
    server = serve(lambda query, number: fault if number == 0 else {})
    with tool(server, timeout=5.0) as asking:
        (pages,) = asking.pages(["oak"], 2)
    assert [page.title for page in pages] == ["oak 0", "oak 1"]
    assert len(server.asked) == 2


def test_a_server_that_keeps_failing_is_an_error_without_the_key(serve: Any, tool: Any) -> None:
    server = serve(lambda query, number: {} if query == "oak" else {"status": 503, "body": KEY})
    with tool(server, concurrency=1) as asking, pytest.raises(UserError, match="`web_concurrency`") as raised:
        asking.pages(["oak", "elm"], 2)
    assert KEY not in str(raised.value)
    count = len(server.asked)
    with tool(server) as again:
        assert len(again.pages(["oak"], 2)[0]) == 2
    assert len(server.asked) == count  # it was kept


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ({"status": 401}, "`web_key_variable`"),
        ({"status": 302, "headers": {"Location": "http://127.0.0.1:1/"}}, "status 302"),
        ({"status": 404}, "`web_url`"),
    ],
    ids=["a wrong key", "a redirect", "nothing there"],
)
def test_what_will_not_pass_ends_the_search(fault: Fault, told: str, serve: Any, tool: Any) -> None:
    server = serve(lambda query, number: fault)
    with tool(server) as asking, pytest.raises(UserError, match=told):
        asking.pages(["oak"], 2)
    assert len(server.asked) == 1


def test_a_query_that_is_refused_finds_nothing_and_is_not_kept(serve: Any, tool: Any, capsys: Any) -> None:
    server = serve(lambda query, number: {"status": 400} if query == "elm" else {})
    with tool(server) as asking:
        oak, elm = asking.pages(["oak", "elm"], 2)
        assert asking.pages(["elm"], 2) == [[]]
    assert (len(oak), elm) == (2, [])
    assert server.asked.count("elm") == 2
    assert capsys.readouterr().err.count("refuses a query, which has no pages: status 400") == 1


def test_a_server_that_refuses_every_query_is_an_error(serve: Any, tool: Any) -> None:
    server = serve(lambda query, number: {"status": 422, "body": "field `q` required"})
    problem = r"refuses every query: status 422: .field `q` required.*`web_url`"
    with tool(server) as asking, pytest.raises(UserError, match=problem):
        asking.pages(["oak", "elm"], 2)


def test_a_page_is_cut_cleaned_and_counted_once() -> None:
    odd = [
        {"url": "a", "title": "T\x00\x1b[31m", "content": "x" * (MAX_CHARACTERS + 9)},
        {"url": "a", "title": "again", "content": ""},
        {"title": "no address", "content": "y"},
        {"url": "b", "content": None},
        {"url": "c"},
    ]
    first, second = read_pages({"results": odd}, 2)
    assert (first.id, first.title, len(first.text)) == ("a", "T[31m", MAX_CHARACTERS)
    assert second == Page("b", "", "")


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("56\u00a0m high", "56 m high"),
        ("1\u202f234\u3000m", "1 234 m"),
        ("one\r\ntwo\rthree\u2028four", "one\ntwo\nthree\nfour"),
        ("soft\u00adly \u200bread\x07", "softly read"),
    ],
    ids=["no-break", "narrow and wide", "lines", "no width"],
)
def test_spaces_of_every_kind_part_words(text: str, kept: str) -> None:
    (page,) = read_pages({"results": [{"url": "a", "title": text, "content": text}]}, 1)
    assert (page.title, page.text) == (kept, kept)


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["results", "url", "title", "content"]), inner),
    )
)
def test_no_reply_breaks_the_reader(value: Any) -> None:
    try:
        pages = read_pages(value, 3)
    except (KeyError, TypeError, IndexError, ValueError, AttributeError):
        return  # what the transport takes for garbage
    assert len(pages) <= 3
    assert all(page.id and json.loads(json.dumps(page.text)) == page.text for page in pages)


@pytest.mark.parametrize(
    ("url", "is_fine"),
    [
        ("", True),
        ("https://search.example/api/web_search", True),
        ("http://localhost:8080/search", True),
        ("http://[::1]:80/search", True),
        ("http://10.0.0.7/search", True),
        ("http://search.example/search", False),
        ("http://8.8.8.8/search", False),
        ("search.example", False),
    ],
    ids=["none", "https", "localhost", "loopback", "private", "clear", "clear by number", "bare"],
)
def test_a_search_server_is_asked_over_tls_or_near(url: str, is_fine: bool) -> None:
    assert (search_address(url) == "") is is_fine


def test_an_address_with_a_password_is_shown_nowhere() -> None:
    url = "https://me:hunter2hunter2@search.example/s?api_key=abcdefghijklmnopqrstuv"
    config = WebConfig(web_url=url)
    shown = (search_address(url.replace("https", "http")), search_address(f"f{url}"), config.web_place, repr(config))
    assert not any(secret in text for text in shown for secret in ("hunter2", "abcdefghij"))


def test_a_key_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "name of an environment variable" in find_problems(WebConfig, {"web_key_variable": "sk-123 4"})[0]
    monkeypatch.setenv("WEB_SEARCH_API_KEY", "two words")
    assert "holds a space" in find_problems(WebConfig, {})[0]
    monkeypatch.setenv("WEB_SEARCH_API_KEY", KEY)
    config = WebConfig(web_url="https://search.example/s")
    assert config.problems() == []
    assert (config.web_endpoint().key, config.web_endpoint().keys) == (KEY, "web")


# The local tool.


class Nearest:
    """A retriever whose passages are always these, best first."""

    def __init__(self, *entries: str) -> None:
        self.entries = entries

    def search(self, queries: Sequence[str], top: int) -> list[list[PassageHit]]:
        found = [Passage(name, 0, place, name, "", "", "") for place, name in enumerate(self.entries)]
        return [[PassageHit(passage, 0.5, 1) for passage in found[:top]] for _ in queries]


def test_the_local_tool_gives_whole_articles_each_once(tmp_path: Path) -> None:
    entries = [
        Entry(f"e{n}", f"Title {n}", sections=(Section("H", f"Text {n}."), Section("I", "More."))) for n in (0, 1)
    ]
    write_knowledge_base(tmp_path / "kb", entries, name="kb", image_root="..", shard_size=4)
    tool = KnowledgePages(Nearest("e1", "e1", "e0"), KnowledgeBase(tmp_path / "kb"))  # type: ignore[arg-type]
    (pages,) = tool.pages(["oak"], 2)
    assert [(page.id, page.title) for page in pages] == [("e1", "Title 1"), ("e0", "Title 0")]
    assert pages[0].text == "H. Text 1.\nI. More."
    assert [page.id for page in tool.pages(["oak"], 1)[0]] == ["e1"]


def test_a_tool_is_a_knowledge_base_in_which_no_words_find_nothing(tmp_path: Path) -> None:
    entries = [Entry("e0", "Title", sections=(Section("H", "Text."),))]
    write_knowledge_base(tmp_path / "kb", entries, name="kb", image_root="..", shard_size=4)
    base = Pages(KnowledgePages(Nearest("e0"), KnowledgeBase(tmp_path / "kb")))  # type: ignore[arg-type]
    found = base.search([Query(Image.new("RGB", (4, 4)), " "), Query(text="oak")], 2)
    assert [[hit.passage.title for hit in hits] for hits in found] == [[], ["Title"]]
    assert (found[1][0].rank, found[1][0].kb) == (1, "web")
