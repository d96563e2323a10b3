import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from reflectune.core.errors import UserError
from reflectune.models.remote import transport
from reflectune.models.remote.endpoint import Endpoint
from reflectune.models.remote.transport import Transport


def body(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def unchanged(value: Any) -> Any:
    return value


def test_a_retry_waits_as_long_as_the_server_asks(stub_server) -> None:
    sent: list[float] = []

    def fault(text: str, number: int) -> dict[str, Any]:
        sent.append(time.monotonic())
        return {"status": 429, "body": "", "retry_after": "1.2"} if number == 0 else {}

    Transport(Endpoint(stub_server(str, fault).url, "stub")).post(body("0"), unchanged)

    assert sent[1] - sent[0] >= 1.2


def test_a_server_that_asks_for_a_long_wait_ends_the_run_with_its_length(stub_server) -> None:
    server = stub_server(str, lambda text, number: {"status": 429, "body": "quota", "retry_after": "3600"})
    with pytest.raises(UserError, match=r"status 429: `quota`, and asks to wait for 3,600 seconds; replies that came"):
        Transport(Endpoint(server.url, "stub")).post(body("0"), unchanged)
    assert len(server.requests) == 1


def test_a_reply_that_does_not_come_is_requested_again(stub_server) -> None:
    server = stub_server(str, lambda text, number: {"seconds": 3600.0} if number == 0 else {})

    Transport(Endpoint(server.url, "stub", timeout=1.0)).post(body("0"), unchanged)

    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"drip": 0.02}, "takes more than 1 seconds .a long reply needs a longer `llm_timeout`"),
        ({"body": " " * 5_000_000}, "more than 4,000,000 bytes"),
    ],
)
def test_a_reply_is_bounded_in_time_and_size(stub_server, monkeypatch, fault: dict[str, Any], message: str) -> None:
    monkeypatch.setattr(transport, "LARGEST_REPLY", 4_000_000)
    server = stub_server(str, lambda text, number: fault)
    with pytest.raises(UserError, match=message):
        Transport(Endpoint(server.url, "stub", timeout=1.0, retries=0)).post(body("a" * 100), unchanged)


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        for form in (name, name.upper()):
            monkeypatch.delenv(form, raising=False)
    return monkeypatch


@pytest.mark.parametrize("userinfo", ["", "me:secret@"])
def test_a_proxy_of_the_environment_gets_the_requests(stub_server, no_proxies, userinfo: str) -> None:
    proxy = stub_server(str)
    no_proxies.setenv("http_proxy", proxy.url.removesuffix("/v1").replace("//", f"//{userinfo}"))

    Transport(Endpoint("http://api.invalid/v1", "stub")).post(body("0"), unchanged)

    assert proxy.targets == ["http://api.invalid/v1/chat/completions"]
    assert proxy.requests[0][0].get("Proxy-Authorization", "") == ("Basic bWU6c2VjcmV0" if userinfo else "")


def test_a_proxy_that_is_not_a_url_is_named_without_its_password(no_proxies: pytest.MonkeyPatch) -> None:
    no_proxies.setenv("http_proxy", "http://me:hidden@127.0.0.1:port")

    with pytest.raises(UserError, match="the environment's proxies") as caught:
        Transport(Endpoint("http://api.invalid/v1", "stub"))

    assert "hid" not in "".join(traceback.format_exception(caught.value))


def test_as_many_requests_are_under_way_as_there_are_threads(stub_server) -> None:
    """Each is answered when all have come."""
    threads = 110
    everybody = threading.Barrier(threads, timeout=60)
    server = stub_server(lambda text: str(everybody.wait()))
    client = Transport(Endpoint(server.url, "stub", retries=0))
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda i: client.post(body(str(i)), unchanged), range(threads)))

    assert server.max_concurrent == threads


def test_a_server_without_a_key_gets_no_authorization(stub_server, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of another server")
    server = stub_server(str)

    Transport(Endpoint(server.url, "stub")).post(body("0"), unchanged)

    assert "Authorization" not in server.requests[0][0]
