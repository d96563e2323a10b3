import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from reflectune.core.errors import UserError
from reflectune.models.remote import transport as transport_module
from reflectune.models.remote.endpoint import Endpoint
from reflectune.models.remote.transport import Stopped, Transport


def body(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def test_a_retry_after_holds_every_thread_back(stub_server: Callable[..., Any]) -> None:
    """The limit that the server speaks of is all threads' together: none sends before the time is over."""
    told: list[float] = []

    def fault(text: str, number: int) -> dict[str, Any]:
        if text == "0" and number == 0:
            told.append(time.monotonic())
            return {"status": 429, "body": "", "retry_after": "0.5"}
        sent.append(time.monotonic())
        return {}

    sent: list[float] = []
    server = stub_server(str, fault)
    transport = Transport(Endpoint(server.url, "stub", backoff=0.01))
    with ThreadPoolExecutor(1) as first:
        waiting = first.submit(transport.post, body("0"), lambda value: value)
        while not transport.retried:
            time.sleep(0.005)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda i: transport.post(body(str(i)), lambda value: value), range(1, 5)))
        waiting.result()

    assert min(sent) - told[0] >= 0.45


def test_after_a_stop_nothing_is_sent(stub_server: Callable[..., Any]) -> None:
    server = stub_server(str)
    transport = Transport(Endpoint(server.url, "stub"))
    transport.stop()

    with pytest.raises(Stopped):
        transport.post(body("0"), lambda value: value)

    assert server.requests == []


@pytest.mark.parametrize("fault", [{"status": 500, "body": ""}, {"status": 429, "body": "", "retry_after": "60"}])
def test_a_stop_ends_every_wait(stub_server: Callable[..., Any], fault: dict[str, Any]) -> None:
    server = stub_server(str, lambda text, number: fault)
    transport = Transport(Endpoint(server.url, "stub", backoff=60.0))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(transport.post, body("0"), lambda value: value)
        while not transport.retried:
            time.sleep(0.005)
        transport.stop()
        with pytest.raises(Stopped):
            waiting.result(timeout=20)

    assert len(server.requests) == 1


@pytest.mark.parametrize("fault", [{"trickle": 0.02}, {"seconds": 1.0}])
def test_a_reply_that_trickles_or_does_not_come_is_given_up_in_time(
    stub_server: Callable[..., Any], fault: dict[str, float]
) -> None:
    server = stub_server(str, lambda text, number: fault if number == 0 else {})
    transport = Transport(Endpoint(server.url, "stub", timeout=0.3, backoff=0.01))
    start = time.monotonic()

    transport.post(body("0"), lambda value: value)

    assert transport.retried == 1
    assert time.monotonic() - start < 0.9  # the whole reply would take two seconds, or one


def test_a_reply_that_is_too_long_is_not_read_to_its_end(
    stub_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_module, "MOST_BYTES", 1 << 20)
    server = stub_server(lambda text: "a" * (2 << 20))

    with pytest.raises(UserError, match="a reply of more than 1 MiB"):
        Transport(Endpoint(server.url, "stub", retries=0)).post(body("0"), lambda value: value)


def test_a_reply_that_is_packed_is_not_unpacked(stub_server: Callable[..., Any]) -> None:
    """A few packed bytes could unpack to more than memory holds, so none are asked for."""
    server = stub_server(str)
    Transport(Endpoint(server.url, "stub")).post(body("0"), lambda value: value)

    assert server.requests[0][0]["Accept-Encoding"] == "identity"


def test_a_cookie_is_not_sent_back(stub_server: Callable[..., Any]) -> None:
    """A load balancer's cookie would send all threads to one of its servers."""
    server = stub_server(str, lambda text, number: {"cookie": "server=1"})
    transport = Transport(Endpoint(server.url, "stub"))
    for text in "01":
        transport.post(body(text), lambda value: value)

    assert [headers.get("Cookie") for headers, _ in server.requests] == [None, None]


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "REQUEST_METHOD"):
        for spelled in (name, name.upper()):
            monkeypatch.delenv(spelled, raising=False)
    return monkeypatch


@pytest.mark.parametrize("prefix", ["", "http://", "http://me:secret@"])
def test_a_proxy_of_the_environment_is_asked(
    stub_server: Callable[..., Any], no_proxies: pytest.MonkeyPatch, prefix: str
) -> None:
    proxy = stub_server(str)
    no_proxies.setenv("http_proxy", prefix + proxy.url.removeprefix("http://").removesuffix("/v1"))

    Transport(Endpoint("http://api.invalid/v1", "stub")).post(body("0"), lambda value: value)

    assert proxy.targets == ["http://api.invalid/v1/chat/completions"]
    assert proxy.requests[0][0].get("Proxy-Authorization", "") == ("Basic bWU6c2VjcmV0" if "@" in prefix else "")


def test_a_proxy_is_sent_the_address_s_secrets(stub_server: Callable[..., Any], no_proxies: pytest.MonkeyPatch) -> None:
    proxy = stub_server(str)
    no_proxies.setenv("http_proxy", proxy.url.removesuffix("/v1"))

    Transport(Endpoint("http://me:hidden@api.invalid/v1?key=hidden", "stub")).post(body("0"), lambda value: value)

    assert proxy.targets == ["http://api.invalid/v1/chat/completions?key=hidden"]
    assert proxy.requests[0][0]["Authorization"] == "Basic bWU6aGlkZGVu"


@pytest.mark.parametrize("address", ["me:hid#den@127.0.0.1:1", "http://me:hidden@127.0.0.1:port"])
def test_a_proxy_that_is_no_address_is_told_without_its_password(no_proxies: pytest.MonkeyPatch, address: str) -> None:
    no_proxies.setenv("http_proxy", address)

    with pytest.raises(UserError, match="http_proxy is no address") as caught:
        Transport(Endpoint("http://api.invalid/v1", "stub"))

    assert "hid" not in "".join(traceback.format_exception(caught.value))


def test_a_proxy_is_spoken_to_without_tls_whatever_its_scheme(
    stub_server: Callable[..., Any], no_proxies: pytest.MonkeyPatch
) -> None:
    """`https_proxy=https://…` is often set for a proxy that speaks plain HTTP; the tunnel through it is encrypted."""
    proxy = stub_server(str)
    no_proxies.setenv("https_proxy", proxy.url.removesuffix("/v1").replace("http:", "https:"))

    with pytest.raises(UserError, match="501"):  # the stub's answer to CONNECT
        Transport(Endpoint("https://api.invalid/v1", "stub", retries=0)).post(body("0"), lambda value: value)


@pytest.mark.parametrize(
    "variables",
    [
        {"http_proxy": "http://127.0.0.1:1", "no_proxy": "example.com, 127.0.0.1"},
        {"http_proxy": "http://127.0.0.1:1", "no_proxy": "{host}"},
        {"http_proxy": "http://127.0.0.1:1", "no_proxy": "*"},
        {"http_proxy": ""},
        {"https_proxy": "http://127.0.0.1:1"},
        {"all_proxy": "socks5://127.0.0.1:1"},
        {"HTTP_PROXY": "http://127.0.0.1:1", "REQUEST_METHOD": "POST"},  # under CGI the client says the former
    ],
)
def test_a_server_is_asked_without_a_proxy(
    stub_server: Callable[..., Any], no_proxies: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    server = stub_server(str)
    host = server.url.removeprefix("http://").removesuffix("/v1")
    for name, value in variables.items():
        no_proxies.setenv(name, value.format(host=host))

    Transport(Endpoint(server.url, "stub", retries=0)).post(body("0"), lambda value: value)

    assert server.targets == ["/v1/chat/completions"]


def test_as_many_requests_are_under_way_as_there_are_threads(stub_server: Callable[..., Any]) -> None:
    """None waits for another's connection: each is answered when all have come."""
    threads = 110  # more than an HTTP client opens by default
    everybody = threading.Barrier(threads, timeout=60)
    server = stub_server(lambda text: str(everybody.wait()))
    transport = Transport(Endpoint(server.url, "stub", retries=0))
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda i: transport.post(body(str(i)), lambda value: value), range(threads)))

    assert server.most_at_a_time == threads
