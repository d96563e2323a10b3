"""Pictures from a server on this machine that misbehaves on demand, into a folder that a conversion links."""

from __future__ import annotations

import io
import json
import shutil
import sys
import threading
from collections import Counter, namedtuple
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.data_builders import fetch_pictures as command
from reflectune.data_builders.conversion.config import ConvertConfig
from reflectune.data_builders.conversion.run import convert
from reflectune.data_builders.readers.images import address_path
from reflectune.data_builders.web_pictures import addresses as addresses_module
from reflectune.data_builders.web_pictures import run as run_module
from reflectune.data_builders.web_pictures.client import PictureClient, is_public
from reflectune.data_builders.web_pictures.config import PictureConfig
from reflectune.data_builders.web_pictures.run import FAILURES, MANIFEST, fetch_pictures, preview
from reflectune.formats.knowledge_base import KnowledgeBase


def picture(colour: str, side: int = 8) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), colour).save(buffer, "PNG")
    return buffer.getvalue()


class Web:
    """A server of pictures: `/NAME.png` is one, unless `answers` says otherwise.

    Attributes:
        answers: By path: a status, a content type, a body, headers; the n-th of a list for the n-th request.
        asked: How often each path was asked for.
        agents: What clients call themselves.
        most_at_a_time: Most requests that were under way together.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: Counter[str] = Counter()
        self.agents: set[str] = set()
        self.most_at_a_time = self._at_a_time = 0
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = handler.path
        with self._lock:
            number = self.asked[path]
            self.asked[path] += 1
            self.agents.add(handler.headers["User-Agent"])
            self._at_a_time += 1
            self.most_at_a_time = max(self.most_at_a_time, self._at_a_time)
        try:
            told = self.answers.get(path, {})
            told = told[min(number, len(told) - 1)] if isinstance(told, list) else told
            body = told.get("body", picture("red"))
            handler.send_response(told.get("status", 200))
            handler.send_header("Content-Type", told.get("type", "image/png"))
            handler.send_header("Content-Length", str(told.get("length", len(body))))
            for name, value in told.get("headers", {}).items():
                handler.send_header(name, value)
            handler.end_headers()
            handler.wfile.write(body)
        except OSError:
            pass  # the client is gone
        finally:
            with self._lock:
                self._at_a_time -= 1


def _handler(web: Web) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            web.answer(self)

        def log_message(self, *arguments: Any) -> None:
            pass

    return Handler


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = Web()
    yield server
    server.close()


def write_kb(folder: Path, urls: list[list[str]]) -> Path:
    """E-VQA's layout: an article for each list of addresses."""
    articles = {
        f"https://en.wikipedia.org/wiki/A{n}": {
            "title": f"A{n}",
            "section_titles": [f"A{n}"],
            "section_texts": ["It is."],
            "image_urls": listed,
            "url": f"https://en.wikipedia.org/wiki/A{n}",
        }
        for n, listed in enumerate(urls)
    }
    folder.mkdir(exist_ok=True)
    path = folder / "kb.json"
    if not path.is_file() or path.read_text() != json.dumps(articles):
        path.write_text(json.dumps(articles))
    return path


@pytest.fixture
def make(tmp_path: Path, web: Web) -> Any:
    """A config over a knowledge base of these paths, one article each unless lists are given."""

    def build(paths: list[Any], **values: Any) -> PictureConfig:
        listed = [[web.url + p for p in (one if isinstance(one, list) else [one])] for one in paths]
        source = write_kb(tmp_path / "source", listed)
        defaults = {"allow_private": True, "backoff": 0.01, "retries": 2, "requests_per_second": 10_000.0}
        common = {"knowledge": "evqa", "knowledge_source": str(source), "output": str(tmp_path / "pictures")}
        return PictureConfig(**{**defaults, **common, **values})

    return build


def states(config: PictureConfig) -> dict[str, str]:
    rows = pq.read_table(Path(config.output, MANIFEST)).to_pylist()
    return {"/" + row["url"].split("/", 3)[3]: row["state"] for row in rows}


def test_each_picture_is_fetched_once_and_a_conversion_links_it(make: Any, web: Web, tmp_path: Path) -> None:
    config = make([["/a.png", "/dir/b.PNG"], ["/a.png"], [], ["/gone.png"]])
    web.answers["/gone.png"] = {"status": 404}
    assert config.problems() == []
    assert fetch_pictures(config) == {"there": 2, "gone": 1}
    assert web.asked == {"/a.png": 1, "/dir/b.PNG": 1, "/gone.png": 1}
    assert web.agents == {config.user_agent}
    (failure,) = [json.loads(line) for line in Path(config.output, FAILURES).read_text().splitlines()]
    assert (failure["url"], failure["state"], failure["why"]) == (f"{web.url}/gone.png", "gone", "status 404")

    output = tmp_path / "converted"
    common = {"knowledge": "evqa", "knowledge_source": config.knowledge_source, "knowledge_images": config.output}
    convert(ConvertConfig(output=str(output), workers=1, **common))
    entries = list(KnowledgeBase(output / "knowledge"))
    paths = [address_path(f"{web.url}/{name}") for name in ("a.png", "dir/b.PNG")]
    assert [entry.images for entry in entries] == [tuple(paths), (paths[0],), (), ()]


def test_a_second_run_asks_for_nothing_but_what_may_pass(make: Any, web: Web) -> None:
    config = make(["/good.png", "/gone.png", "/busy.png", "/none.txt"])
    web.answers |= {"/gone.png": {"status": 410}, "/busy.png": {"status": 503}, "/none.txt": {"type": "text/html"}}
    assert fetch_pictures(config) == {"there": 1, "gone": 1, "failed": 1, "refused": 1}
    assert web.asked["/busy.png"] == 3  # one, and two retries
    web.asked.clear()
    del web.answers["/busy.png"]
    assert fetch_pictures(config) == {"there": 2, "gone": 1, "refused": 1}
    assert web.asked == {"/busy.png": 1}
    web.asked.clear()
    assert fetch_pictures(config) == {"there": 2, "gone": 1, "refused": 1}
    assert web.asked == {}


@pytest.mark.parametrize(
    ("answer", "state", "why"),
    [
        pytest.param({"status": 403}, "refused", "status 403", id="forbidden"),
        pytest.param({"type": "text/html", "body": b"<html>"}, "refused", "text/html is no picture", id="page"),
        pytest.param({"type": "image/svg+xml", "body": b"<svg/>"}, "refused", "image/svg+xml is no", id="svg"),
        pytest.param({"body": b"not a picture"}, "refused", "no whole picture", id="no-picture"),
        pytest.param({"body": picture("red", 64)[:90]}, "refused", "no whole picture", id="cut-in-the-file"),
        pytest.param({"length": 10_000}, "failed", "RemoteProtocolError", id="cut-on-the-way"),
        pytest.param({"length": 2 << 20}, "refused", "more than 1 MiB", id="said-to-be-large"),
        pytest.param({"body": b"x" * (2 << 20), "type": "image/png"}, "refused", "more than 1 MiB", id="large"),
        pytest.param({"status": 302, "headers": {"Location": "/loop.png"}}, "refused", "redirects", id="loop"),
        pytest.param({"status": 302, "headers": {"Location": "file:///etc/passwd"}}, "refused", "address", id="file"),
        pytest.param({"status": 302, "headers": {"Location": "/other.png"}}, "there", "", id="redirect"),
        pytest.param({"type": "application/octet-stream"}, "there", "", id="untyped"),
        pytest.param(
            [{"status": 500}, {"status": 429, "headers": {"Retry-After": "0.02"}}, {}], "there", "", id="busy"
        ),
        pytest.param([{"length": 10_000}, {}], "there", "", id="cut-once"),
    ],
)
def test_what_comes_is_a_whole_picture_within_limits(make: Any, web: Web, answer: Any, state: str, why: str) -> None:
    config = make(["/loop.png"], most_mib=1.0)
    web.answers["/loop.png"] = answer
    fetch_pictures(config)
    assert states(config) == {"/loop.png": state}
    told = Path(config.output, FAILURES).read_text()
    assert why in told
    assert Path(config.output, address_path(f"{web.url}/loop.png")).is_file() == (state == "there")


@pytest.mark.parametrize(
    ("place", "public"),
    [
        *(
            (place, False)
            for place in ("127.0.0.1", "10.1.2.3", "192.168.0.1", "169.254.169.254", "0.0.0.0", "100.64.0.1")
        ),
        *((place, False) for place in ("::1", "fe80::1%eth0", "fd00::1", "::ffff:10.0.0.1", "224.0.0.1", "ff02::1")),
        *((place, False) for place in ("64:ff9b::7f00:1", "2002:7f00:1::", "255.255.255.255")),
        *((place, True) for place in ("208.80.154.240", "2620:0:861:ed1a::1", "64:ff9b::d050:9af0")),
    ],
)
def test_public_addresses_are_told_from_others(place: str, public: bool) -> None:
    assert is_public(place) is public


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"])
def test_this_machine_is_never_asked_unless_it_is_allowed(make: Any, web: Web, host: str) -> None:
    port = web.url.rpartition(":")[2]
    client = PictureClient(make(["/a.png"], allow_private=False))
    fetched = client.fetch(f"http://{host}:{port}/a.png")
    client.close()
    assert (fetched.state, web.asked) == ("refused", {})
    assert "no public address" in fetched.why


def test_a_redirect_to_this_machine_is_not_followed(make: Any, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first host is taken for a public one; where it leads is looked at again."""
    from reflectune.data_builders.web_pictures import client as client_module

    taken = iter([True, False])
    monkeypatch.setattr(client_module, "is_public", lambda place: next(taken))
    web.answers["/a.png"] = {"status": 301, "headers": {"Location": "/secret.png"}}
    client = PictureClient(make(["/a.png"], allow_private=False))
    fetched = client.fetch(f"{web.url}/a.png")
    client.close()
    assert (fetched.state, dict(web.asked)) == ("refused", {"/a.png": 1})


def test_the_connection_goes_to_the_address_that_was_looked_at(
    make: Any, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name is resolved once a request; what it means later doesn't count."""
    import socket

    real, asked = socket.getaddrinfo, []

    def resolve(host: str, *arguments: Any, **options: Any) -> Any:
        asked.append(host)
        return real("127.0.0.1" if host == "pictures.example" else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    client = PictureClient(make(["/a.png"]))
    fetched = client.fetch(f"http://pictures.example:{web.url.rpartition(':')[2]}/a.png")
    client.close()
    assert (fetched.state, fetched.why) == ("there", "")
    assert asked.count("pictures.example") == 1


@pytest.mark.parametrize(
    "url",
    ["ftp://host/a.png", "http://me:word@host/a.png", "file:///etc/passwd", "/a.png", "http://", "data:image/png,"],
)
def test_what_is_no_web_address_is_refused(make: Any, url: str) -> None:
    client = PictureClient(make(["/a.png"]))
    fetched = client.fetch(url)
    client.close()
    assert fetched.state == "refused"
    assert "word" not in fetched.why


def test_no_more_requests_are_under_way_than_asked(make: Any, web: Web) -> None:
    fetch_pictures(make([f"/{n}.png" for n in range(40)], concurrency=3))
    assert web.most_at_a_time <= 3
    assert len(web.asked) == 40


def test_a_run_that_broke_off_goes_on(make: Any, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses_module, "CHUNK", 8)
    monkeypatch.setattr(run_module, "CHUNK", 8)
    config = make([f"/{n}.png" for n in range(30)], concurrency=1)
    real = run_module.write_atomically
    written: list[Path] = []
    interrupted: list[Path] = []

    def write(path: Path, content: bytes) -> None:
        if len(written) == 19 and not interrupted:  # once: the next picture may be under way by then, and is had
            interrupted.append(path)
            raise KeyboardInterrupt
        real(path, content)
        written.append(path)

    monkeypatch.setattr(run_module, "write_atomically", write)
    with pytest.raises(KeyboardInterrupt):
        fetch_pictures(config)
    monkeypatch.setattr(run_module, "write_atomically", real)
    assert fetch_pictures(config) == {"there": 30}
    twice = [path for path, count in web.asked.items() if count > 1]
    assert len(twice) <= 1
    assert sum(path.suffix == ".png" for path in Path(config.output).rglob("*")) == 30


def test_a_limit_takes_the_first_and_more_can_follow(make: Any, web: Web) -> None:
    paths = [f"/{n}.png" for n in range(10)]
    assert fetch_pictures(make(paths, limit=4)) == {"there": 4}
    assert sorted(web.asked) == paths[:4]
    assert fetch_pictures(make(paths)) == {"there": 10}
    assert set(web.asked.values()) == {1}


@pytest.mark.parametrize("answer", [{"status": 403}, {"status": 503}], ids=["refused", "busy"])
def test_a_server_that_gives_nothing_at_all_stops_the_run(make: Any, web: Web, answer: dict[str, Any]) -> None:
    paths = [f"/{n}.png" for n in range(40)]
    web.answers = dict.fromkeys(paths, answer)
    with pytest.raises(
        UserError, match=rf"none of 40 pictures .* 40 of them for: status {answer['status']}; check"
    ) as told:
        fetch_pictures(make(paths, retries=0))
    assert "\n" not in str(told.value)
    web.answers = {}
    assert fetch_pictures(make(paths)) == {"there": 40}


def test_a_disk_that_will_not_hold_the_rest_is_told(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses_module, "CHUNK", 32)
    monkeypatch.setattr(run_module, "CHUNK", 32)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(10, 9, 1))
    with pytest.raises(UserError, match=r"GiB free, and 8 more pictures take about"):
        fetch_pictures(make([f"/{n}.png" for n in range(40)]))


def test_another_knowledge_bases_pictures_are_not_mixed_in(make: Any) -> None:
    fetch_pictures(make(["/a.png"]))
    with pytest.raises(UserError, match="was read from another file"):
        fetch_pictures(make(["/a.png", "/b.png"]))


def test_a_knowledge_base_without_addresses_is_told(make: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="names no pictures by address"):
        fetch_pictures(make([[]]))
    assert [path.name for path in (tmp_path / "pictures").iterdir()] == []


def test_a_preview_asks_nobody(make: Any, web: Web) -> None:
    config = make(["/a.png", "/b.png"], requests_per_second=2.0)
    assert "would read the addresses" in preview(config)
    assert not Path(config.output).exists()
    fetch_pictures(make(["/a.png", "/b.png"], limit=1))
    web.asked.clear()
    assert preview(config) == "2 pictures, 1 of them there; the others take 0.0 h or more at 2 requests a second"
    assert web.asked == {}


def test_wiki6ms_pictures_are_found_by_their_entity(web: Web, tmp_path: Path) -> None:
    source = tmp_path / "wiki.jsonl"
    row = {"wikidata_id": "Q12345", "wikipedia_title": "A", "wikipedia_content": "It is."}
    rows = [{**row, "wikipedia_image_url": f"{web.url}/x/Dog.png"}, {**row, "wikidata_id": "Q9"}]
    source.write_text("".join(json.dumps(one) + "\n" for one in rows))
    common = {"knowledge": "wiki6m", "knowledge_source": str(source)}
    pictures = str(tmp_path / "pictures")
    assert fetch_pictures(PictureConfig(**common, output=pictures, allow_private=True)) == {"there": 1}
    output = tmp_path / "converted"
    convert(ConvertConfig(output=str(output), workers=1, knowledge_images=pictures, **common))
    assert [entry.images for entry in KnowledgeBase(output / "knowledge")] == [("Q123/Q12345.png",), ()]


def test_the_command_says_what_is_not_there(
    make: Any, web: Web, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make(["/a.png", "/gone.png"])
    web.answers["/gone.png"] = {"status": 404}
    arguments = ["--knowledge_source", config.knowledge_source, "--output", config.output, "--allow_private", "true"]
    monkeypatch.setattr(sys, "argv", ["fetch_pictures", *arguments])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 3
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"{config.output}: 1 there, 1 gone"
    assert FAILURES in second
