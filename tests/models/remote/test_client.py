import gc
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from reflectune.core.errors import UserError
from reflectune.models.remote.client import RemoteModel
from reflectune.models.remote.endpoint import Endpoint

Start = Callable[..., Any]
Open = Callable[..., RemoteModel]


def ask(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def echo(text: str) -> str:
    return f"you said {text}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "replies.jsonl"


@pytest.fixture
def remote(path: Path) -> Open:
    """Return a function that opens the model of a server, with one file of replies a test."""
    return lambda url, **settings: RemoteModel(Endpoint(url, **{"model": "stub", "timeout": 5.0, **settings}), path)


def test_replies_come_in_the_order_of_the_questions_however_long_each_takes(stub_server: Start, remote: Open) -> None:
    server = stub_server(echo, lambda text, number: {"seconds": 0.05 * (3 - int(text))})
    with remote(server.url) as model:
        replies = model.complete_all([ask(str(i)) for i in range(4)])

    assert [reply.text for reply in replies] == [f"you said {i}" for i in range(4)]


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize(
    "fault",
    [
        {"status": 429, "body": '{"error": {"message": "slow down"}}', "retry_after": "0.05"},
        {"status": 529, "body": ""},
        {"body": "<html>a proxy's page</html>"},
        {"body": '{"choices": [{"message": {"cont'},
        {"body": '{"choices": [{"message": null}]}'},
        {"body": '{"error": {"message": "overloaded"}}'},
        {"broken": True},
    ],
    ids=lambda fault: json.dumps(fault)[:50],
)
def test_a_failure_that_passes_is_tried_again_and_paid_for_once(stub_server, remote, fault: dict[str, Any]) -> None:
    server = stub_server(echo, lambda text, number: fault if number < 1 else {})
    with remote(server.url, timeout=60.0) as model:
        assert model.texts([ask("hello")]) == ["you said hello"]

    assert len(server.requests) == 2


def test_a_failure_that_does_not_pass_is_one_clear_error(stub_server: Start, remote: Open) -> None:
    server = stub_server(echo, lambda text, number: {"status": 503, "body": "down for\nmaintenance"})
    failed = "failed 3 times in a row, the last time: status 503: `down for maint"
    with remote(server.url, retries=2) as model, pytest.raises(UserError, match=failed):
        model.texts([ask("hello")])

    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"status": 401, "body": "bad key sk-secret"}, "check `llm_url`, `llm_model` and the API key"),
        ({"status": 404, "body": "no such model"}, "status 404: `no such model`"),
        ({"status": 429, "body": '{"error": {"code": "insufficient_quota"}}'}, "no credit left"),
        ({"status": 307, "body": "", "location": "http://127.0.0.1:1/elsewhere"}, "status 307"),
    ],
)
def test_a_failure_that_stays_shows_no_key(stub_server, remote, path, fault: dict[str, Any], message: str) -> None:
    server = stub_server(echo, lambda text, number: fault)
    with remote(server.url, key="sk-secret", retries=1) as model, pytest.raises(UserError, match=message) as caught:
        model.texts([ask("hello")])

    assert len(server.requests) == (1 if fault["status"] != 429 else 2)
    assert server.requests[0][0]["Authorization"] == "Bearer sk-secret"
    assert "sk-secret" not in str(caught.value)
    assert "sk-secret" not in path.read_text()


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize(
    "body",
    [
        "sk-secret/x is unknown",
        '{"choices": [{"message": {"content": "yes"}, "logprobs": '
        '{"content": [{"top_logprobs": [{"token": "a", "logprob": "sk-secret/x"}]}]}}]}',
        '{"error": "sk-secret\\/x is unknown"}',
    ],
)
@pytest.mark.parametrize("status", [200, 401, 503])
def test_a_reply_that_quotes_the_key_does_not_bring_it_into_any_traceback(
    stub_server, remote, body: str, status: int
) -> None:
    server = stub_server(echo, lambda text, number: {"status": status, "body": body})
    with remote(server.url, key="sk-secret/x", retries=1) as model, pytest.raises(UserError) as caught:
        model.texts([ask("hello")])

    shown = "".join(traceback.format_exception(caught.value)) + repr(model.endpoint)
    assert "sk-secret" not in shown
    assert "***" in shown


def with_secrets(url: str, secret: str = "hidden") -> str:
    """Return the URL with a password before its host and a key in its query."""
    return f"{url.replace('//', f'//me:pw%2F{secret}@')}?api_key=key%2F{secret}&api-version=1"


QUOTED = (
    r"""/v1/chat/completions?api_key=key%2Fhidden key/hidden key\/hidden pw%2Fhidden, me:pw/hidden: bWU6cHcvaGlkZGVu"""
)
"""Reply of a server that quotes a request `with_secrets`."""


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"status": 401, "body": QUOTED}, "status 401"),
        ({"status": 503, "body": QUOTED}, "failed 2 times in a row"),
        ({"status": 400, "body": QUOTED}, "refuses every request"),
        ({"status": 307, "body": QUOTED, "location": "http://127.0.0.1:1/"}, "status 307"),
        ({"body": QUOTED}, "not the expected JSON"),
        ({"body": json.dumps({"error": QUOTED.replace("\\/", "/")})}, "not the expected JSON"),
        ({"broken": True}, "failed 2 times in a row"),
        ({}, "gives no log-probabilities"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_secrets_in_the_address_are_sent_and_never_shown(
    stub_server, remote, path, caplog, fault: dict[str, Any], message: str
) -> None:
    caplog.set_level("DEBUG")
    server = stub_server(echo, lambda text, number: fault)
    with remote(with_secrets(server.url), retries=1) as model, pytest.raises(UserError, match=message) as caught:
        model.log_probabilities([ask("hello")], ["yes"])
    shown_error = "".join(traceback.format_exception(caught.value))

    assert f"{server.url}?api_key=***&api-version=1" in shown_error
    for shown in (shown_error, caplog.text, model.summary(), repr(model.endpoint), path.read_text()):
        assert "hidden" not in shown
        assert "bWU6cHcvaGlkZGVu" not in shown
    for (headers, _), target in zip(server.requests, server.targets, strict=True):
        assert headers["Authorization"] == "Basic bWU6cHcvaGlkZGVu"  # me:pw/hidden
        assert target == "/v1/chat/completions?api_key=key%2Fhidden&api-version=1"


def test_a_key_is_sent_in_addition_to_one_in_the_query(stub_server: Start, remote: Open) -> None:
    server = stub_server(echo)
    with remote(f"{server.url}/?token=hidden", key="sk-1") as model:
        model.texts([ask("hello")])

    assert server.targets == ["/v1/chat/completions?token=hidden"]
    assert server.requests[0][0]["Authorization"] == "Bearer sk-1"


def test_another_password_does_not_pay_for_a_reply_again(stub_server: Start, remote: Open) -> None:
    server = stub_server(echo)
    for secret in ("old", "new"):
        with remote(with_secrets(server.url, secret)) as model:
            assert model.texts([ask("hello")]) == ["you said hello"]

    assert len(server.requests) == 1


def test_a_refused_conversation_does_not_stop_the_others_and_is_not_kept(stub_server: Start, remote: Open) -> None:
    server = stub_server(echo, lambda text, number: {"status": 400, "body": "too long"} if text == "2" else {})
    with remote(server.url) as model:
        replies = model.complete_all([ask(str(i)) for i in range(4)])
        again = model.complete_all([ask("2")])

    assert [reply.text for reply in replies] == ["you said 0", "you said 1", "", "you said 3"]
    assert "too long" in replies[2].refused
    assert again[0].refused
    assert len(server.requests) == 5


def test_a_server_that_refuses_everything_is_an_error(stub_server: Start, remote: Open) -> None:
    server = stub_server(echo, lambda text, number: {"status": 400, "body": "unknown field max_tokens"})
    refused = r"refuses every request: .*max_tokens.*llm_options"
    with remote(server.url) as model, pytest.raises(UserError, match=refused):
        model.complete_all([ask("a"), ask("b")])


def test_no_more_requests_are_under_way_than_wanted(stub_server: Start, remote: Open) -> None:
    server = stub_server(echo, seconds=0.02)
    with remote(server.url, concurrency=3) as model:
        model.complete_all([ask(str(i)) for i in range(12)])

    assert server.max_concurrent == 3


def test_conversations_that_begin_alike_are_sent_one_after_the_other(stub_server: Start, remote: Open) -> None:
    def about(image: str, question: str, passage: str) -> list[dict[str, Any]]:
        part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}
        return [
            {"role": "user", "content": [part, {"type": "text", "text": question}]},
            {"role": "assistant", "content": "[Retrieval]"},
            {"role": "user", "content": passage},
        ]

    conversations = [about(p, q, f"{p}{q}{n}") for n in range(3) for q in ("Who?", "When?") for p in "AB"]
    server = stub_server(lambda text: text)
    with remote(server.url, concurrency=1) as model:
        replies = model.complete_all(conversations)

    assert [reply.text for reply in replies] == [conversation[-1]["content"] for conversation in conversations]
    arrived = [text[:-1] for text in server.delivered]  # image and question, in the order of arrival
    assert len([1 for one, other in pairwise(arrived) if one != other]) == 3


def test_equal_conversations_are_paid_for_once_and_a_kept_reply_never_again(stub_server: Start, remote: Open) -> None:
    server = stub_server(echo)
    for _ in range(2):
        with remote(server.url, input_price=1e6) as model:
            replies = model.complete_all([ask("one"), ask("two"), ask("one")])
            assert [reply.text for reply in replies] == ["you said one", "you said two", "you said one"]
            assert model.usage() == {"replies": 2, "prompt_tokens": 2, "completion_tokens": 6, "cost": 2.0}

    assert len(server.requests) == 2


def test_a_model_that_moved_to_another_host_keeps_its_replies(stub_server: Start, remote: Open) -> None:
    servers = [stub_server(echo) for _ in range(2)]
    for server in servers:
        with remote(server.url) as model:
            assert model.texts([ask("hello")]) == ["you said hello"]
    with remote(f"{servers[1].url}?deployment=b") as model:
        model.texts([ask("hello")])

    assert [len(server.requests) for server in servers] == [1, 1]


@pytest.mark.parametrize("changes", [{"model": "other"}, {"max_tokens": 7}, {"options": {"seed": 1}}])
def test_requests_that_differ_have_different_replies(stub_server: Start, remote: Open, changes: dict[str, Any]) -> None:
    server = stub_server(echo)
    for settings in ({}, changes):
        with remote(server.url, **settings) as model:
            model.texts([ask("hello")])

    assert len(server.requests) == 2


def test_the_first_tokens_log_probabilities_are_read_without_decoding(stub_server: Start, remote: Open) -> None:
    server = stub_server(echo, first_token={"yes": -0.1, "no": -2.5, "maybe": -4.0})
    with remote(server.url) as model:
        (reply,) = model.log_probabilities([ask("Is it?")], ["yes", "no", "never"])

    assert reply.first_token == {"yes": -0.1, "no": -2.5}
    assert server.requests[0][1]["max_tokens"] == 1


def test_half_a_surrogate_pair_in_a_reply_does_no_harm(stub_server: Start, remote: Open) -> None:
    server = stub_server(lambda text: "a \ud83d b")
    with remote(server.url) as model:
        first = model.texts([ask("hello")])
        assert first == model.texts([ask("hello")]) == ["a ? b"]


def test_a_second_run_does_not_write_into_the_same_file(stub_server: Start, remote: Open) -> None:
    url = stub_server(echo).url
    with remote(url), pytest.raises(UserError, match="in use by another run"):
        remote(url)
    remote(url).close()


def test_when_one_request_fails_for_good_those_under_way_are_kept(stub_server: Start, remote: Open) -> None:
    server = stub_server(echo, lambda text, number: {"status": 401, "body": ""} if text == "0" else {"seconds": 0.2})
    with remote(server.url, concurrency=3) as model:
        with pytest.raises(UserError, match="status 401"):
            model.complete_all([ask(str(i)) for i in range(50)])
        assert model.usage()["replies"] == sum(server.delivered.values()) < 10


def test_a_kill_loses_nothing_that_arrived_and_nothing_kept_is_paid_for_twice(stub_server, remote, path) -> None:
    """Only requests under way at the kill, at most `concurrency`, can be sent again."""
    busy = {"status": 429, "body": ""}
    server = stub_server(echo, lambda text, number: busy if int(text) % 7 == number else {}, 0.01)
    script = (
        "from reflectune.models.remote.endpoint import Endpoint\n"
        "from reflectune.models.remote.client import RemoteModel\n"
        f"model = RemoteModel(Endpoint({server.url!r}, 'stub', concurrency=4), {str(path)!r})\n"
        "model.complete_all([[{'role': 'user', 'content': str(i)}] for i in range(300)])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while sum(server.delivered.values()) < 60 and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    server.settle()
    kept = {json.loads(line)["text"] for line in path.read_bytes().split(b"\n")[1:-1]}
    with server.lock:
        delivered = set(server.delivered)
    assert 60 - 4 <= len(kept) < 300
    assert len(delivered - {text.removeprefix("you said ") for text in kept}) <= 4

    with remote(server.url, concurrency=4) as model:
        replies = model.complete_all([ask(str(i)) for i in range(300)])

    assert [reply.text for reply in replies] == [f"you said {i}" for i in range(300)]
    twice = {text for text, times in server.delivered.items() if times > 1}
    assert len(twice) <= 4
    assert not twice & {text.removeprefix("you said ") for text in kept}


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C reaches the test in the background, where a shell ignores it, and no garbage collector's callback."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()
    yield
    gc.enable()
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_keeps_what_arrived(stub_server: Start, remote: Open) -> None:
    def answer(text: str) -> str:
        if text == "20":
            os.kill(os.getpid(), signal.SIGINT)
        return echo(text)

    server = stub_server(answer, seconds=0.02)
    with remote(server.url, concurrency=2) as model:
        with pytest.raises(KeyboardInterrupt):
            model.complete_all([ask(str(i)) for i in range(500)])
        server.settle()
        assert 0 < model.usage()["replies"] == sum(server.delivered.values()) < 500
