"""A tiny world with an index, and the miniature, for tests of probing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reflectune.data_builders.probing.config import ProbeConfig
from reflectune.examples.miniature.world.build import build_world
from reflectune.formats.dataset import Dataset
from reflectune.models.loading import Loaded, load
from reflectune.retrieval.encoders.encoder import load_encoder
from reflectune.retrieval.indexes.building import build_index


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("probed") / "world"
    build_world(folder, size="tiny", seed=0)
    build_index(Dataset(folder).knowledge, load_encoder("miniature/clip"), folder / "index")
    return folder


@pytest.fixture(scope="session")
def llava() -> Loaded:
    return load("miniature/llava", scheme="mmkb_rag")


SETTINGS = {"model": "miniature/llava", "documents": 3, "max_new_tokens": 8, "summary": "sentences", "limit": 12}
SETTINGS |= {"window": 4, "batch_questions": 2, "device": "cpu"}


@pytest.fixture
def config(world: Path, tmp_path: Path) -> Callable[..., ProbeConfig]:
    def make(output: str = "probes", **more: Any) -> ProbeConfig:
        where = {"dataset": str(world), "index": str(world / "index"), "output": str(tmp_path / output)}
        made = ProbeConfig(**{**SETTINGS, **where, **more})
        assert made.problems() == []
        return made

    return make
