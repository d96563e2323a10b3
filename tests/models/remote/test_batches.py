"""Files of a batch API: what is written, what comes back in any order and state, and what is asked again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reflectune.core.errors import UserError
from reflectune.models.remote import batches
from reflectune.models.remote.batches import BatchFolder, Written
from reflectune.models.remote.client import RemoteModel
from reflectune.models.remote.endpoint import Endpoint

WORDS = ("one", "two", "three", "four")
NOWHERE = Endpoint("http://127.0.0.1:1/v1", "stub", retries=0)


def ask(word: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": word}]


@pytest.fixture
def model(tmp_path: Path) -> Iterator[RemoteModel]:
    with RemoteModel(NOWHERE, tmp_path / "replies.jsonl") as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "batch"


def step(folder: Path, model: RemoteModel) -> tuple[batches.Results, Written]:
    """What a command does each time: read the results, and write what is still to be asked."""
    batch = BatchFolder(folder)
    results = batch.read_results(model)
    return results, batch.write(model.unanswered([ask(word) for word in WORDS]).items(), results)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def completion(text: str) -> dict[str, Any]:
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


def good(request: dict[str, Any]) -> dict[str, Any]:
    text = request["body"]["messages"][0]["content"].upper()
    return {
        "custom_id": request["custom_id"],
        "response": {"status_code": 200, "body": completion(text)},
        "error": None,
    }


def failed(request: dict[str, Any], status: int, message: str) -> dict[str, Any]:
    response = {"status_code": status, "body": {"error": {"message": message}}} if status else None
    error = None if status else {"code": "batch_expired", "message": message}
    return {"custom_id": request["custom_id"], "response": response, "error": error}


def put(folder: Path, name: str, results: list[dict[str, Any]]) -> None:
    (folder / name).write_text("".join(json.dumps(result) + "\n" for result in results), encoding="utf-8")


def test_a_request_file_is_what_batch_apis_read(folder: Path, model: RemoteModel) -> None:
    _, written = step(folder, model)
    assert written.files == [(folder / "requests-001.jsonl", 4)]
    rows = lines(folder / "requests-001.jsonl")
    assert {key for row in rows for key in row} == {"custom_id", "method", "url", "body"}
    assert {(row["method"], row["url"]) for row in rows} == {("POST", "/v1/chat/completions")}
    assert len({row["custom_id"] for row in rows}) == 4
    assert all(len(row["custom_id"]) <= 64 for row in rows)
    assert sorted(row["body"]["messages"][0]["content"] for row in rows) == sorted(WORDS)
    assert rows[0]["body"] == NOWHERE.request(rows[0]["body"]["messages"])


def test_results_in_any_order_are_replies_as_if_the_server_had_sent_them(
    folder: Path, tmp_path: Path, stub_server: Callable[..., Any]
) -> None:
    """The cache that a batch filled and the one that a server filled serve the same conversations."""
    server = stub_server(str.upper)
    endpoint = Endpoint(server.url, "stub")
    with RemoteModel(endpoint, tmp_path / "batch.jsonl") as model:
        step(folder, model)
        put(folder, "output.jsonl", [good(row) for row in reversed(lines(folder / "requests-001.jsonl"))])
        results, written = step(folder, model)
        assert (results.replies, written.files, dict(written.waiting)) == (4, [], {})
        assert model.texts([ask(word) for word in WORDS], what="") == [word.upper() for word in WORDS]
        assert model.usage()["prompt_tokens"] == 12
    assert server.requests == []
    with RemoteModel(endpoint, tmp_path / "batch.jsonl") as again:  # kept by both ways in one file
        assert again.texts([ask("five"), ask("one")], what="") == ["FIVE", "ONE"]
    assert len(server.requests) == 1


def test_what_waits_for_a_result_is_not_written_twice(folder: Path, model: RemoteModel) -> None:
    step(folder, model)
    results, written = step(folder, model)
    assert results.answered == set()
    assert (written.files, dict(written.waiting)) == ([], {folder / "requests-001.jsonl": 4})


def test_failures_are_counted_and_asked_again_and_refusals_are_not(folder: Path, model: RemoteModel) -> None:
    step(folder, model)
    first, second, third, fourth = lines(folder / "requests-001.jsonl")
    put(folder, "output.jsonl", [good(first)])
    put(folder, "errors.jsonl", [failed(second, 0, "expired"), failed(third, 400, "filtered"), failed(fourth, 500, "")])
    results, written = step(folder, model)
    assert results.replies == 1
    assert dict(results.errors) == {"batch_expired: expired": 1, "status 500": 1}
    assert list(results.refused.values()) == ["status 400: filtered"]
    assert str(results) == "1 new replies, 1 refused; 1 × batch_expired: expired; 1 × status 500"
    assert written.files == [(folder / "requests-002.jsonl", 2)]
    words = [row["body"]["messages"][0]["content"] for row in (second, fourth)]
    assert [row["body"]["messages"][0]["content"] for row in lines(folder / "requests-002.jsonl")] == words
    put(folder, "output-2.jsonl", [good(row) for row in lines(folder / "requests-002.jsonl")])
    results, written = step(folder, model)
    assert (written.files, dict(written.waiting)) == ([], {})
    replies = model.complete_all([ask(word) for word in WORDS], what="")  # nobody is asked: nobody is there
    assert sorted(reply.text for reply in replies if not reply.refused) == sorted(
        row["body"]["messages"][0]["content"].upper() for row in (first, second, fourth)
    )
    assert [reply.refused for reply in replies if reply.refused] == ["status 400: filtered"]


def test_what_a_result_file_leaves_out_is_asked_again(folder: Path, model: RemoteModel) -> None:
    step(folder, model)
    first, *_ = lines(folder / "requests-001.jsonl")
    put(folder, "output.jsonl", [good(first)])
    _, written = step(folder, model)
    assert written.files == [(folder / "requests-002.jsonl", 3)]
    _, written = step(folder, model)
    assert (written.files, sum(written.waiting.values())) == ([], 3)


@pytest.mark.parametrize(
    "result",
    [
        pytest.param({"custom_id": "request-1", "response": {"status_code": 200, "body": {}}}, id="another-batch"),
        pytest.param({"custom_id": "0123456789abcdef-1", "response": None, "error": {}}, id="another-key"),
    ],
)
def test_results_of_other_requests_are_left_out_and_counted(
    folder: Path, model: RemoteModel, result: dict[str, Any]
) -> None:
    step(folder, model)
    put(folder, "output.jsonl", [result])
    results, _ = step(folder, model)
    assert (results.foreign, results.replies, results.answered) == (1, 0, set())


@pytest.mark.parametrize("body", [{}, {"choices": []}, {"choices": [{"message": {"content": 1}}]}, []])
def test_what_is_no_completion_is_an_error_of_its_request(folder: Path, model: RemoteModel, body: Any) -> None:
    step(folder, model)
    first, *_ = lines(folder / "requests-001.jsonl")
    put(folder, "output.jsonl", [{**good(first), "response": {"status_code": 200, "body": body}}])
    results, _ = step(folder, model)
    assert dict(results.errors) == {"no chat completion": 1}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param('{"custom_id": "a-1", "resp', "ends within a line", id="cut"),
        pytest.param("<html>\n", "is not JSON", id="page"),
        pytest.param("{}\n", "no `custom_id`", id="other"),
        pytest.param("[1]\n", "is no result of a batch", id="array"),
    ],
)
def test_a_damaged_result_file_is_one_line(folder: Path, model: RemoteModel, content: str, problem: str) -> None:
    step(folder, model)
    (folder / "output.jsonl").write_text(content)
    with pytest.raises(UserError, match=rf"output.jsonl:1 .*{problem}"):
        step(folder, model)


@pytest.mark.parametrize(
    ("name", "value", "counts"),
    [
        pytest.param("MOST_REQUESTS", 3, [3, 1], id="requests"),
        pytest.param("MOST_BYTES", 500, [2, 2], id="bytes"),
        pytest.param("MOST_BYTES", 1, [1, 1, 1, 1], id="one-is-too-large"),
    ],
)
def test_a_file_holds_no_more_than_the_api_takes(
    folder: Path, model: RemoteModel, name: str, value: int, counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, name, value)
    _, written = step(folder, model)
    assert [count for _, count in written.files] == counts
    assert [path.name for path, _ in written.files] == [f"requests-{n:03}.jsonl" for n in range(1, len(counts) + 1)]
