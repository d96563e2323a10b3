import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

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
