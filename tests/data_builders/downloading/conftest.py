"""A small list of public files, and a Hub on a local port that has some of them."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ROWS = "".join(json.dumps({"data_id": f"q{n}", "question": "What is it?"}) + "\n" for n in range(3))
INSTRUCT = json.dumps([{"id": "1", "conversations": []}])
HUB = "owner/instruct"


class StubHub:
    """A Hub of one repository on a local port.

    Attributes:
        files: What it holds, by name.
        status: What it answers instead of files and facts; 200 for these.
        error: Its `X-Error-Code`, e.g. `GatedRepo`.
        asked: The method and path of each request.
        cut: Bytes of a file that are sent before the connection breaks; None for all.
    """

    def __init__(self) -> None:
        self.files = {"instruct.json": INSTRUCT.encode(), "model/config.json": b"{}"}
        self.status, self.error = 200, ""
        self.asked: list[str] = []
        self.cut: int | None = None
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = handler.path.partition("?")[0]
        self.asked.append(f"{handler.command} {path}")
        if self.status != 200:
            handler.send_response(self.status)
            handler.send_header("X-Error-Code", self.error)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
        elif path.startswith("/api/"):
            self._tell(handler, path)
        else:
            self._send(handler, path.partition(f"/resolve/{COMMIT}/")[2])

    def _tell(self, handler: BaseHTTPRequestHandler, path: str) -> None:
        sizes = {name: len(content) for name, content in self.files.items()}
        if "/tree/" in path:
            told: Any = [{"type": "file", "path": n, "size": s, "oid": _sha(self.files[n])} for n, s in sizes.items()]
        else:
            told = {"id": HUB, "sha": COMMIT, "siblings": [{"rfilename": name} for name in sizes]}
        body = json.dumps(told).encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def _send(self, handler: BaseHTTPRequestHandler, name: str) -> None:
        content = self.files.get(name)
        if content is None:
            handler.send_response(404)
            handler.send_header("X-Error-Code", "EntryNotFound")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        begin = int(handler.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        handler.send_response(206 if begin else 200)
        handler.send_header("Content-Length", str(len(content) - begin))
        handler.send_header("X-Linked-Size", str(len(content)))
        handler.send_header("X-Repo-Commit", COMMIT)
        handler.send_header("ETag", f'"{_sha(content)}"')
        handler.end_headers()
        if handler.command == "GET":
            handler.wfile.write(content[begin : self.cut])


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _handler(hub: StubHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hub.answer(self)

        def do_HEAD(self) -> None:
            hub.answer(self)

        def log_message(self, *arguments: Any) -> None:
            pass

    return Handler


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubHub]:
    stub = StubHub()
    monkeypatch.setattr(constants, "ENDPOINT", stub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", stub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield stub
    stub.close()


@pytest.fixture
def listed(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """The values of a list; keywords are keys of the file `set/val.jsonl`."""

    def make(**values: Any) -> dict[str, Any]:
        file = {"licence": "MIT", "url": "http://host/val.jsonl", "fields": ["data_id", "question"], **values}
        return {"root": str(tmp_path / "data"), "files": {"set/val.jsonl": file}}

    return make
