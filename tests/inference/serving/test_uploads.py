"""The page reads images that a visitor uploaded, and opens no path of this machine and no address."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gradio", reason="the page needs gradio")

from fastapi import FastAPI
from fastapi.testclient import TestClient

from reflectune.inference.serving.page import mount_page


@pytest.fixture(scope="module")
def client(service) -> Iterator[TestClient]:
    with TestClient(mount_page(FastAPI(), service)) as opened:
        yield opened


@pytest.fixture(scope="module")
def ask(client) -> Callable[..., str]:
    """Return a function that asks with an image, as the page's script does; it returns all that the page answers."""
    config = client.get("/config").json()
    (image,) = (it["id"] for it in config["components"] if it["type"] == "image")
    asking = next(it for it in config["dependencies"] if image in it["inputs"])
    values = {it["id"]: it["props"].get("value") for it in config["components"]}

    def post(path: object, **more: Any) -> str:
        file = {"path": str(path), "meta": {"_type": "gradio.FileData"}, **more}
        data = [file, "What does it eat?", *(values[name] for name in asking["inputs"][2:])]
        body = {"data": data, "fn_index": asking["id"], "session_hash": "visitor"}
        client.post("/gradio_api/queue/join", json=body).raise_for_status()
        with client.stream("GET", "/gradio_api/queue/data?session_hash=visitor") as lines:
            return "".join(lines.iter_lines())

    return post


def test_an_uploaded_image_is_answered(client, ask, world: Path) -> None:
    files = {"files": ("owl.png", (world / "images/e1.png").read_bytes())}
    (uploaded,) = client.post("/gradio_api/upload", files=files).json()
    assert "Link to this trace" in ask(uploaded)


@pytest.mark.parametrize("more", [{}, {"is_stream": True}], ids=json.dumps)
@pytest.mark.parametrize("path", ["private.png", "private.txt", "http://example.com/private.png"])
def test_no_path_and_no_address_is_opened(ask, world: Path, tmp_path: Path, monkeypatch, path: str, more: Any) -> None:
    (tmp_path / "private.png").write_bytes((world / "images/e1.png").read_bytes())
    (tmp_path / "private.txt").write_text("secret")
    monkeypatch.setattr("gradio.processing_utils.async_ssrf_protected_download", lambda *_, **__: pytest.fail("opened"))
    replied = ask(path if "://" in path else tmp_path / path, **more)
    assert '"success":false' in replied.replace(" ", "")
    assert "rt-asked" not in replied  # neither shown nor told from a file that isn't there
    assert "in no format" not in replied
