"""Captions of a knowledge base's images: by a local model and a server's, resumed, and read by an index."""

import json
from pathlib import Path
from typing import Any

import pytest

from reflectune.core.config import find_problems
from reflectune.core.errors import UserError
from reflectune.core.images import open_image
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base
from reflectune.inference.caption import caption
from reflectune.inference.operators.models import LocalModel
from reflectune.inference.operators.requests import Prompt
from reflectune.inference.running.captions import CAPTION
from reflectune.inference.running.config import CaptionConfig
from reflectune.models.loading import load
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.retrieval.indexes.captions import CaptionedKnowledge


def rows(folder: Path) -> dict[str, str]:
    lines = map(json.loads, (folder / "captions.jsonl").read_text().splitlines())
    return {row["entry_id"]: row["caption"] for row in lines}


def test_a_served_model_captions_each_entrys_first_image(kb: KnowledgeBase, stub_server: Any, tmp_path) -> None:
    server = stub_server(lambda text: "A grey owl.")
    keys = {"knowledge": str(kb.folder), "reader": "server", "llm_url": server.url, "llm_model": "stub"}
    config = CaptionConfig(**keys, output=str(tmp_path / "out"))
    assert caption(config) is None
    with_images = [entry.id for entry in kb if entry.images]
    assert rows(tmp_path / "out") == dict.fromkeys(with_images, "A grey owl.")
    contents = [body["messages"][-1]["content"] for _, body in server.requests]
    assert {part["text"] for content in contents for part in content if part["type"] == "text"} == {CAPTION}
    assert all(sum(part["type"] == "image_url" for part in content) == 1 for content in contents)
    sent = len(server.requests)
    caption(config)
    assert len(server.requests) == sent  # nothing is asked twice
    captioned = CaptionedKnowledge(kb, tmp_path / "out/captions.jsonl")
    assert [entry.summary for entry in captioned if entry.images] == ["A grey owl."] * len(with_images)


def test_captions_beyond_a_budget_are_counted_and_written_once_it_is_raised(kb, stub_server: Any, tmp_path) -> None:
    server = stub_server(lambda text: "A grey owl.")
    keys = {"knowledge": str(kb.folder), "reader": "server", "llm_url": server.url, "llm_model": "stub"}
    keys |= {"output": str(tmp_path / "out"), "llm_concurrency": 1}
    with_images = sum(bool(entry.images) for entry in kb)
    assert caption(CaptionConfig(**keys, run_tokens=20)) == 3
    assert 0 < len(rows(tmp_path / "out")) < with_images
    assert caption(CaptionConfig(**keys, run_tokens=100_000)) is None
    assert len(rows(tmp_path / "out")) == with_images


def test_a_local_model_writes_what_it_says_of_an_image_alone(kb: KnowledgeBase, tmp_path) -> None:
    keys = {"knowledge": str(kb.folder), "base_model": "miniature/llava", "device": "cpu", "max_new_tokens": 4}
    caption(CaptionConfig(**keys, batch_questions=3, output=str(tmp_path / "out")))
    model, entry = LocalModel(PrefixEngine(load("miniature/llava")), 1), next(entry for entry in kb if entry.images)
    (reply,) = model.write([(open_image(kb.image_path(entry)), Prompt("{question}", {"question": CAPTION}))], 4)
    assert rows(tmp_path / "out")[entry.id] == reply.text.strip() != ""


def test_a_bad_image_stops_or_is_left_out(kb: KnowledgeBase, stub_server: Any, tmp_path, capsys) -> None:
    bad = next(entry for entry in kb if entry.images)
    kb.image_path(bad).write_bytes(b"no image")
    keys = {"knowledge": str(kb.folder), "reader": "server", "llm_model": "stub"}
    keys |= {"llm_url": stub_server(lambda text: "An owl.").url}
    with pytest.raises(UserError, match=bad.id):
        caption(CaptionConfig(**keys, output=str(tmp_path / "stop")))
    assert caption(CaptionConfig(**keys, output=str(tmp_path / "skip"), on_error="skip")) == 3
    assert bad.id not in rows(tmp_path / "skip")
    assert "1 images were left out" in capsys.readouterr().out


def test_a_knowledge_base_without_images_and_configs_without_models(entries, tmp_path) -> None:
    plain = [type(entry)(entry.id, entry.title) for entry in entries]
    folder = write_knowledge_base(tmp_path / "plain", plain, name="plain").folder
    keys = {"knowledge": str(folder), "output": str(tmp_path / "out")}
    with pytest.raises(UserError, match="has no images to caption"):
        caption(CaptionConfig(**keys, base_model="miniature/llava"))
    assert "`base_model` is needed, or `reader: server`" in find_problems(CaptionConfig, keys)
    assert any("llm_model" in problem for problem in find_problems(CaptionConfig, {**keys, "reader": "server"}))
