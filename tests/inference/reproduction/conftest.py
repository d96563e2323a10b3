"""A small list of steps over two files of one's own, which are converted and indexed in seconds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reflectune.inference.reproduction.config import ReproduceConfig

STEPS = {
    "downloads": {"module": "data_builders.download"},
    "articles": {
        "module": "data_builders.convert",
        "set": {"output": "runs/articles", "root": "data", "knowledge": "own", "knowledge_source": "kb.jsonl"},
    },
    "index": {
        "module": "retrieval.build_index",
        "set": {
            "knowledge": "runs/articles/knowledge",
            "output": "runs/index",
            "encoder": "the/hub-model",
            "dtype": "float32",
        },
        "launch": "multi_gpu",
        "gigabytes": 0.001,
    },
}
CHANGES = "instead: {the/hub-model: miniature/clip}\nlaunch: {multi_gpu: ''}\nsettings: {articles: {workers: 1}}\n"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with what is downloaded."""
    (tmp_path / "lab/data").mkdir(parents=True)
    write_articles(tmp_path / "lab", 3)
    return tmp_path / "lab"


@pytest.fixture
def config(data: Path) -> Callable[..., ReproduceConfig]:
    """The list with changes, as a config."""
    (data.parent / "changes.yaml").write_text(CHANGES)

    def make(**more: Any) -> ReproduceConfig:
        values = {"paper": "small", "steps": STEPS, "data": str(data), "changes": [str(data.parent / "changes.yaml")]}
        return ReproduceConfig(**{**values, **more})

    return make


def write_articles(data: Path, count: int) -> None:
    rows = [{"id": f"e{n}", "title": f"Title {n}", "text": "It is made of oak."} for n in range(count)]
    (data / "data/kb.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def rewrite(data: Path) -> Callable[[int], None]:
    """Puts another number of articles into the downloaded file."""
    return lambda count: write_articles(data, count)
