"""The server's routes, by Starlette's client: what is answered, and what is refused with which status and sentence."""

import asyncio
import base64
import io
import json
import logging
import re
import socket
import struct
import subprocess
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import openai
import psutil
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from reflectune.core.config import find_problems
from reflectune.core.errors import UnusableInput, UserError
from reflectune.core.images import open_image
from reflectune.inference.serve import serve
from reflectune.inference.serving import admission
from reflectune.inference.serving import app as app_module
from reflectune.inference.serving.app import create_app
from reflectune.inference.serving.bodies import ChatBody
from reflectune.inference.serving.config import ServeConfig, ServerSettings
from reflectune.inference.serving.problems import RequestProblem
from reflectune.inference.serving.questions import PageQuestions
from reflectune.inference.serving.server import DrainingServer, bound, server_config

ASKED = "What does it eat?"
TOKEN = "0123456789abcdef"


def encoded(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def url(content: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def claiming(width: int, height: int) -> bytes:
    """Return a small PNG whose header claims this size."""
    content = bytearray(encoded(Image.new("RGB", (64, 64))))
    content[16:24] = struct.pack(">II", width, height)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    return bytes(content)


TWO = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
ANIMATION = encoded(TWO[0], "GIF", save_all=True, append_images=TWO[1:])
WIDE = claiming(4000, 4000)
PHOTO = encoded(Image.new("RGB", (64, 64), "blue"))
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


def chat(text: str = ASKED, image: str = url(PHOTO), **more: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": image}}]
    return {"model": "mr2ag", "messages": [{"role": "user", "content": content}], **more}


def question(text: str = ASKED, image: str = url(PHOTO), **more: Any) -> dict[str, Any]:
    return {"question": text, "image": image, **more}


@pytest.fixture(scope="module")
def client(service) -> Iterator[TestClient]:
    PageQuestions(service, "mr2ag")  # has pipelines of its own
    app = create_app(service, ServerSettings())
    with TestClient(app, "http://localhost", raise_server_exceptions=False) as opened:
        yield opened


def events(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Parse server-sent events."""
    parsed = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        parsed.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return parsed


def test_an_answer_comes_as_events_by_json_and_by_form(client, service, photo) -> None:
    expected = service.submit(ASKED, photo).result()
    form = {"files": {"image": encoded(photo)}, "data": {"question": ASKED, "pipeline": "mr2ag"}}
    for reply in (client.post("/answer", json=question(image=url(encoded(photo)))), client.post("/answer", **form)):
        assert reply.headers["content-type"].startswith("text/event-stream")
        names, contents = zip(*events(reply.text), strict=True)
        assert [name for name in dict.fromkeys(names) if name != "answer"] == ["gate", "hits", "passage", "done"]
        trace = contents[-1]["trace"]
        assert trace["answer"] == expected.answer
        assert trace["gate"] == pytest.approx(expected.gate, abs=1e-5)
        assert [hit["entry_id"] for hit in trace["hits"]] == [hit.entry_id for hit in expected.hits]


@pytest.mark.parametrize("scores", [True, False])
def test_searches_have_the_shape_of_search_r1(client, service, photo, scores: bool) -> None:
    reply = client.post(
        "/retrieve", json={"queries": ["It lives in an oak.", ASKED], "topk": 2, "return_scores": scores}
    )
    (first, *_), second = reply.json()["result"]
    assert len(second) == 2
    document = first["document"] if scores else first
    assert document["contents"].split("\n") == [f'"Title {document["id"][:2]}"', "It lives in an oak."]
    assert set(first) == ({"document", "score"} if scores else {"id", "contents"})
    found = []
    for more in ({}, {"exclude": ["e1"]}, {"topk": 1}):
        reply = client.post("/retrieve", json={"images": [url(encoded(photo))], **more})
        found.append([document["id"] for document in reply.json()["result"][0]])
    assert (len(found[0]), len(found[2])) == (3, 1)
    assert found[1] == [key for key in found[0] if key != "e1"]


def test_metrics_count_requests_questions_and_batches(client) -> None:
    client.post("/answer", json=question(pipeline="closed_book"))
    text = client.get("/metrics").text
    for line in (
        'reflectune_requests_total{route="/answer",status="200"}',
        "reflectune_batch_size_count",
        "reflectune_waiting",
    ):
        assert line in text
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.head("/healthz").status_code == 200
    assert [model["id"] for model in client.get("/v1/models").json()["data"]][:2] == ["mr2ag", "closed_book"]


def test_a_server_whose_questions_all_fail_is_not_healthy(client, service, photo) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def refuses(*_: Any) -> None:
        raise UserError("the reader's server is away")

    for run, status in ((fails, 200), (fails, 200), (refuses, 200), (fails, 503), (refuses, 503)):
        with pytest.raises((RuntimeError, UserError)):
            service.submit("What?", photo, SimpleNamespace(name="failing", run=run)).result(60)
        assert client.get("/healthz").status_code == status
    service.submit("What?", photo, "closed_book").result(60)
    assert client.get("/healthz").status_code == 200


def test_a_pipeline_is_found_by_its_name(client) -> None:
    assert client.get("/v1/models/closed_book").json()["id"] == "closed_book"
    assert client.get("/v1/models/gpt").status_code == 404


@pytest.mark.parametrize("head", ["data:image/png;base64,", "data:;base64,", "data:application/octet-stream;base64,"])
def test_a_data_url_may_have_any_type_and_line_breaks(client, photo, head: str) -> None:
    """As `base64.encodebytes` and file pickers write them."""
    lines = head + base64.encodebytes(encoded(photo)).decode()
    replies = [
        client.post("/v1/chat/completions", json=chat(image=image, model="closed_book")).json()
        for image in (url(encoded(photo)), lines)
    ]
    assert replies[0]["choices"] == replies[1]["choices"]


def test_the_last_message_is_read_with_the_latest_image_if_asked_to() -> None:
    said = [{"role": "system", "content": "Be brief."}, *chat("Who?", url(WIDE))["messages"]]
    said += [*chat("What?", url(PHOTO))["messages"], {"role": "assistant", "content": "An owl."}]
    said += [{"role": "user", "content": "And what does it eat?"}]
    body = ChatBody(model="mr2ag", messages=said)
    read = body.question(last_message=True)
    assert (read.question, read.image) == ("And what does it eat?", url(PHOTO))
    with pytest.raises(RequestProblem, match="one message of the role user"):
        body.question()
    with pytest.raises(RequestProblem, match="the last one must be of the role user"):
        ChatBody(model="mr2ag", messages=said[:-1]).question(last_message=True)
    said[3] = {"role": "assistant", "content": None, "tool_calls": []}  # what is not the user's is not read
    assert ChatBody(model="mr2ag", messages=said).question(last_message=True) == read


BAD: dict[str, tuple[str, Any, int, str]] = {
    "not an image": ("/answer", question(image=url(b"hello")), 415, "format is not supported"),
    "svg": ("/answer", question(image=url(SVG, "svg+xml")), 415, "format is not supported"),
    "animation": (
        "/answer",
        question(image=url(ANIMATION)),
        415,
        "animated",
    ),
    "damaged": ("/answer", question(image=url(PHOTO[:-40])), 400, "image unreadable"),
    "strip": ("/answer", question(image=url(encoded(Image.new("L", (1000, 1))))), 400, "image too narrow"),
    "pixels": ("/answer", question(image=url(claiming(8000, 4001))), 413, "more than 32 million"),
    "pixels of all": ("/retrieve", {"images": [url(WIDE)] * 3}, 413, "have more than 32 million pixels"),
    "bomb": ("/answer", question(image=url(claiming(20_000, 20_000))), 413, "too large to decode"),
    "file": ("/answer", question(image=url(b"0" * 10_000_001)), 413, "larger than 10 MB"),
    "body": ("/answer", b"0" * 50_000_000, 413, "the body is larger than"),
    "url": ("/answer", question(image="http://localhost/x.png"), 400, "addresses and paths are not opened"),
    "file url": ("/v1/chat/completions", chat(image="file:///etc/passwd"), 400, "addresses and paths are not opened"),
    "path": ("/retrieve", {"images": ["/etc/passwd"]}, 400, "addresses and paths are not opened"),
    "base64": ("/answer", question(image="data:image/png;base64,@@@"), 400, "not valid Base64"),
    "empty": ("/answer", question(" \n"), 400, "the question is empty"),
    "long": ("/answer", question("x" * 10_001), 413, "has 10,001 characters, more than 2,000"),
    "surrogate": ("/answer", b'{"question": "\\ud800", "image": ""}', 400, "Invalid JSON"),
    "not json": ("/answer", b"{", 400, "Invalid JSON"),
    "nested": ("/answer", b"[" * 100_000, 400, "Invalid JSON"),
    "no form": ("/answer", None, 400, "Invalid JSON"),
    "field": ("/answer", {"question": ASKED}, 400, "`image`: Field required"),
    "type": ("/answer", question(3), 400, "`question`: Input should be a valid string"),  # type: ignore[arg-type]
    "pipeline": ("/answer", question(pipeline="oracle"), 404, "unknown pipeline `oracle`; one of mr2ag"),
    "model": ("/v1/chat/completions", chat(model="gpt"), 404, "unknown pipeline `gpt`"),
    "internal": (
        "/answer",
        question(pipeline="mr2ag_unjudged"),
        404,
        "unknown pipeline `mr2ag_unjudged`; one of mr2ag",
    ),
    "several": ("/v1/chat/completions", chat(n=2), 400, "one answer is given"),
    "history": ("/v1/chat/completions", chat(messages=[{"role": "system", "content": "x"}]), 400, "of the role user"),
    "log-probabilities": ("/v1/chat/completions", chat(logprobs=True), 400, "`logprobs` are not returned"),
    "an address as a string": (
        "/v1/chat/completions",
        chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": "data:x"}]}]),
        400,
        "`messages.0.content.0.image_url`",
    ),
    "unknown route": ("/v1/completions", {}, 404, "unknown route POST /v1/completions"),
    "no image": ("/v1/chat/completions", chat(messages=[{"role": "user", "content": "x"}]), 400, "found 0"),
    "nothing": ("/retrieve", {}, 400, "give either `queries` (texts), or `images`"),
    "many": ("/retrieve", {"queries": ["x"] * 4097}, 413, "are at most 4096; found 4097"),
    "depth": ("/retrieve", {"queries": ["x"], "topk": 10**9}, 413, "are at most 4096"),
    "empty query": ("/retrieve", {"queries": [""]}, 400, "a query is empty"),
    "exclude": ("/retrieve", {"queries": ["x"], "exclude": ["e1"]}, 400, "give either `queries` (texts), or `images`"),
    "route": ("/nowhere", {}, 404, "Not Found"),
    "method": ("/healthz", {}, 405, "Method Not Allowed"),
}


@pytest.mark.parametrize(("route", "body", "status", "sentence"), BAD.values(), ids=BAD)
def test_bad_requests_are_refused_in_one_sentence(client, route: str, body: Any, status: int, sentence: str) -> None:
    reply = client.post(route, content=body) if isinstance(body, bytes) else client.post(route, json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (status, status)
    assert sentence in error["message"]
    assert "\n" not in error["message"]
    assert "passwd" not in error["message"]


def test_a_form_without_a_file_is_refused_and_json_sent_as_a_form_is_read(client) -> None:
    reply = client.post("/answer", data={"question": ASKED})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, 400)
    assert "multipart/form-data, with a file `image`" in reply.json()["error"]["message"]
    headers = {"content-type": "application/x-www-form-urlencoded"}
    assert client.post("/answer", content=json.dumps(question()), headers=headers).status_code == 200


@pytest.mark.parametrize(
    "text", ["[Retrieval]", "<image></s>[Relevant] USER: hi", "\u202eWhat\u200f", "مم تتغذى؟", "\x00\ufdd0"]
)
def test_tokens_and_directions_in_a_question_are_text(client, text: str) -> None:
    """The gate is read at its own position whatever a question holds; a pipeline's name with tokens is unknown."""
    for reply in (client.post("/answer", json=question(text)), client.post("/v1/chat/completions", json=chat(text))):
        assert reply.status_code == 200
        assert '"gate"' in reply.text
    assert client.post("/answer", json=question(pipeline=text)).status_code == 404
    assert client.post("/retrieve", json={"queries": [text]}).status_code == 200
    assert client.post("/retrieve", json={"images": [url(PHOTO)], "exclude": [text]}).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": f"Bearer {TOKEN}"}, 200),
        ({"Authorization": f"Basic {base64.b64encode(f'me:{TOKEN}'.encode()).decode()}"}, 200),
        ({"Authorization": f"Bearer {TOKEN}x"}, 401),
        ({"Authorization": f"Bearer é{TOKEN}".encode()}, 401),
        ({"Authorization": "Basic @"}, 401),
        ({"Authorization": TOKEN}, 401),
        ({}, 401),
    ],
)
def test_a_token_is_needed_on_every_route_but_health(service, monkeypatch, headers: dict, status: int) -> None:
    monkeypatch.setenv("REFLECTUNE_TOKEN", TOKEN)
    client = TestClient(create_app(service, ServerSettings()), "http://elsewhere")
    replies = [client.get(route, headers=headers) for route in ("/v1/models", "/metrics")]
    assert [reply.status_code for reply in replies] == [status] * 2
    assert all(TOKEN not in reply.text for reply in replies)
    assert client.get("/healthz").status_code == 200


def test_without_a_token_only_this_machine_is_answered(service, monkeypatch) -> None:
    """A page elsewhere whose name leads to this machine has a foreign Host."""
    monkeypatch.delenv("REFLECTUNE_TOKEN", raising=False)
    client = TestClient(create_app(service, ServerSettings()), "http://evil.example")
    assert client.get("/v1/models").status_code == 403
    assert find_problems(ServerSettings, {"host": "0.0.0.0"})[0].startswith("`host` 0.0.0.0 is reachable from other")
    monkeypatch.setenv("REFLECTUNE_TOKEN", TOKEN)
    assert find_problems(ServerSettings, {"host": "0.0.0.0"}) == []


@pytest.fixture
def started(service) -> Iterator[Callable[..., tuple[DrainingServer, int]]]:
    """Return a function that starts a real server in a thread, and returns it with its port."""
    servers: list[tuple[DrainingServer, threading.Thread]] = []

    def start(**settings: Any) -> tuple[DrainingServer, int]:
        server = DrainingServer(server_config(create_app(service, ServerSettings(**settings)), "127.0.0.1", 0))
        thread = threading.Thread(target=server.run)
        thread.start()
        servers.append((server, thread))
        wait_until(lambda: server.started)
        return server, server.servers[0].sockets[0].getsockname()[1]

    yield start
    for server, thread in servers:
        server.should_exit = True
        thread.join(60)


def wait_until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_openai_client_and_curl_are_answered(service, started, photo, tmp_path) -> None:
    _, port = started()
    client = openai.OpenAI(base_url=f"http://localhost:{port}/v1", api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == list(service.pipelines)
    image = url(encoded(photo))
    whole = client.chat.completions.create(**chat(image=image))
    expected = service.submit(ASKED, photo).result()
    assert whole.choices[0].message.content == expected.answer
    assert whole.model_extra["reflectune"]["gate"] == pytest.approx(expected.gate, abs=1e-5)
    chunks = list(client.chat.completions.create(**chat(image=image, stream=True)))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected.answer
    assert [chunk.model_extra["reflectune"]["event"] for chunk in chunks][:2] == ["gate", "hits"]
    assert (chunks[-1].choices[0].finish_reason, chunks[-1].usage) == (whole.choices[0].finish_reason, whole.usage)
    assert whole.choices[0].finish_reason == ("length" if expected.cut else "stop")
    with pytest.raises(openai.NotFoundError, match="unknown pipeline `gpt`"):
        client.chat.completions.create(**chat(model="gpt"))
    (tmp_path / "photo.png").write_bytes(encoded(photo))
    form = ["-F", f"image=@{tmp_path / 'photo.png'}", "-F", f"question={ASKED}"]
    shown = subprocess.run(
        ["curl", "-sN", *form, f"http://localhost:{port}/answer"], capture_output=True, text=True, check=True
    )
    assert events(shown.stdout)[0][0] == "gate"
    assert events(shown.stdout)[-1][1]["trace"]["answer"] == expected.answer


def test_requests_beyond_the_limit_are_refused_and_a_client_that_leaves_frees_its_slot(started, busy, caplog) -> None:
    server, port = started(max_requests=1)
    logging.getLogger("uvicorn.error").addHandler(caplog.handler)
    load = server.config.app.state.load
    content = json.dumps(question()).encode()
    head = f"POST /answer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n".encode()
    client = openai.OpenAI(base_url=f"http://localhost:{port}/v1", api_key="none", max_retries=0)
    with busy():
        for sent in (head + content, head + content[:100], head):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(sent)
                wait_until(lambda: load.running == 1)
                with pytest.raises(openai.RateLimitError) as caught:
                    client.chat.completions.create(**chat())
                assert caught.value.response.headers["retry-after"] == "1"
            wait_until(lambda: load.running == 0)
    assert client.chat.completions.create(**chat(model="closed_book")).choices
    logging.getLogger("uvicorn.error").removeHandler(caplog.handler)
    assert caplog.records == []


def posted(content: bytes, *, length: int | None = None, kind: str = "application/json") -> bytes:
    """Return a request to /answer."""
    size = len(content) if length is None else length
    head = f"POST /answer HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {size}\r\n\r\n"
    return head.encode() + content


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data; boundary=x"])
def test_half_a_body_is_refused_when_its_time_is_up(started, monkeypatch, kind: str) -> None:
    monkeypatch.setattr(admission, "BODY_SECONDS", 0.1)
    server, port = started(max_requests=1)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(posted(b'--x\r\nContent-Disposition: form-data; name="image', length=1000, kind=kind))
        reply = b"".join(iter(lambda: connection.recv(4096), b""))  # the server ends the connection
    assert reply.startswith(b"HTTP/1.1 408 ")
    assert b"the body did not arrive within 0.1 seconds" in reply
    assert server.config.app.state.load.running == 0


def test_two_hundred_connections_are_all_answered(started, busy) -> None:
    """As many as may be under way are answered, the others are refused; none waits for ever, and memory is bounded."""
    server, port = started(max_requests=16)
    content, memory = json.dumps(question(pipeline="closed_book")).encode(), psutil.Process().memory_info
    before = memory().rss

    async def ask() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(posted(content).replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
        reply = await reader.read()
        writer.close()
        return reply

    async def ask_all() -> list[bytes]:
        with busy():
            asking = [asyncio.create_task(ask()) for _ in range(200)]
            while sum(task.done() for task in asking) < 200 - 16:
                await asyncio.wait([task for task in asking if not task.done()], return_when="FIRST_COMPLETED")
        return await asyncio.gather(*asking)

    replies = asyncio.run(asyncio.wait_for(ask_all(), 120))
    statuses = Counter(reply[9:12] for reply in replies)
    assert statuses == {b"200": 16, b"429": 184}
    assert sum(b"event: done" in reply for reply in replies) == 16
    wait_until(lambda: server.config.app.state.load.running == 0)  # it is counted down after the last byte
    assert memory().rss - before < 64 * 2**20


def test_large_images_wait_for_few_others_before_they_are_decoded(started, busy, service, monkeypatch) -> None:
    decoded: list[int] = []
    monkeypatch.setattr(app_module, "LARGE", 100)
    monkeypatch.setattr(app_module, "open_image", lambda content: decoded.append(1) or open_image(content))
    server, port = started()
    client = openai.OpenAI(base_url=f"http://localhost:{port}/v1", api_key="none", max_retries=0)
    with ThreadPoolExecutor(11) as pool:
        with busy():
            replies = [pool.submit(client.chat.completions.create, **chat(model="closed_book")) for _ in range(11)]
            load = server.config.app.state.load
            wait_until(lambda: load.running == 11 and service.waiting() == 8)
            assert len(decoded) == 8
        assert all(reply.result(60).choices for reply in replies)
    assert len(decoded) == 11
    assert not load.large.locked()


def test_a_shutdown_finishes_what_runs_and_refuses_the_rest(started, busy) -> None:
    server, port = started()
    client = openai.OpenAI(base_url=f"http://localhost:{port}/v1", api_key="none", max_retries=0)
    replies: list[Any] = []
    with busy():
        asking = threading.Thread(target=lambda: replies.append(client.chat.completions.create(**chat())))
        asking.start()
        wait_until(lambda: server.config.app.state.load.running == 1)
        server.handle_exit(15, None)
        with pytest.raises(openai.InternalServerError, match="shutting down") as caught:
            client.chat.completions.create(**chat())
        assert caught.value.status_code == 503
    asking.join(60)
    assert replies[0].choices[0].message.content
    wait_until(lambda: not server.servers[0].is_serving())


def test_a_failure_is_logged_and_shows_nothing_of_the_server(service, client, monkeypatch, caplog) -> None:
    log = logging.getLogger("uvicorn.error")
    monkeypatch.setattr(log, "handlers", [caplog.handler])
    monkeypatch.setattr(log, "propagate", False)
    for error, status, sentence in (
        (RuntimeError("secret"), 500, "the server failed"),
        (UserError("the model's server is away"), 502, "the model's server is away"),
        (UnusableInput("a question with its passage is 5,000 tokens long"), 400, "a question with its passage"),
    ):
        caplog.clear()

        def fail(*_: Any, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(service, "on_batch", fail)
        reply = client.post("/v1/chat/completions", json=chat())
        assert (reply.status_code, reply.json()["error"]["message"][: len(sentence)]) == (status, sentence)
        ((name, data),) = events(client.post("/answer", json=question()).text)
        assert (name, data["error"]["code"]) == ("error", status)
        assert "secret" not in json.dumps(data)
        assert [str(error) in caplog.handler.format(record) for record in caplog.records] == [True, True]


def test_the_command_says_what_it_would_serve_and_refuses_pipelines_of_gold_evidence(
    service, monkeypatch, capsys
) -> None:
    monkeypatch.delenv("REFLECTUNE_TOKEN", raising=False)
    serve(service.config.model_copy(update={"dry_run": True}))
    text = capsys.readouterr().out
    assert re.match(r"would serve mr2ag, closed_book, naive_rag_article.* on 127.0.0.1:8321, with no token", text)
    keys = {**service.config.model_dump(exclude_unset=True), "pipelines": ["mr2ag_oracle"]}
    assert find_problems(ServeConfig, keys) == [
        "`pipelines`: mr2ag_oracle needs a data set's gold evidence, which a user's question lacks"
    ]


def test_a_port_in_use_is_refused_before_models_are_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"127.0.0.1:{port} can't be used: Address already in use"):
            bound("127.0.0.1", port)
    (free,) = bound("127.0.0.1", 0)
    with free, pytest.raises(ConnectionRefusedError):  # not ready yet
        socket.create_connection(free.getsockname())


def test_a_hosts_addresses_that_the_machine_lacks_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    here, elsewhere = ("127.0.0.1", 0), ("192.0.2.1", 0)  # of RFC 5737: no machine has it

    def resolve(*names: tuple[str, int]) -> None:
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", name) for name in names]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)

    resolve(elsewhere, here)
    (free,) = bound("localhost", 0)
    with free:
        assert free.getsockname()[0] == "127.0.0.1"
    resolve(elsewhere)
    with pytest.raises(UserError, match="localhost:0 can't be used: Cannot assign requested address"):
        bound("localhost", 0)
