"""Folders from anybody, whose manifests and links lead elsewhere: nothing outside of them is read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reflectune.core.errors import UserError
from reflectune.core.types import Entry, Question, Section
from reflectune.data_builders.exporting.source import ImagePlacer
from reflectune.data_builders.probing.records import Probe
from reflectune.data_builders.probing.store import MANIFEST as PROBES
from reflectune.data_builders.probing.store import stream_probes
from reflectune.formats import dataset
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base

QUESTION = Question(
    id="q", image="a.png", text="What?", answers=("a",), range=None, answer_type="string", split="train",
    requires_retrieval=True, entity_ids=(), evidence=(), meta={},
)  # fmt: skip


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Return a folder with `hostile` and `private`, which hold a question and a knowledge base each."""
    for name in ("private", "hostile"):
        dataset.write_questions(tmp_path / name, "train", [QUESTION])
        entries = [Entry("e", "Title", sections=(Section("", "text"),))]
        write_knowledge_base(tmp_path / name / "knowledge", entries, name=name)
        (tmp_path / name / "dataset.json").write_text(json.dumps({"fingerprint": "0", "metric": "infoseek"}))
    return tmp_path


def edit(path: Path, change: Callable[[Any], None]) -> None:
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize("name", ["../../../private/questions/train.parquet", "/etc/hosts", "../../../private"])
def test_a_part_of_a_split_is_below_its_data_set(folders: Path, name: str) -> None:
    folder = folders / "hostile"
    (folder / "questions" / "train.parquet").unlink()
    edit(folder / "dataset.json", lambda it: it.update(parts={"train": [{"file": name, "rows": 1}]}))

    with pytest.raises(UserError, match=r"leads out of its folder|part of the data set is missing: .*train/etc/hosts"):
        dataset.Dataset(folder).questions("train")


@pytest.mark.parametrize("place", ["train.parquet", "train/part-00000.parquet"])
def test_a_split_is_not_a_link_out_of_its_data_set(folders: Path, place: str) -> None:
    folder = folders / "hostile" / "questions"
    shutil.rmtree(folder)
    (folder / place).parent.mkdir(parents=True)
    (folder / place).symlink_to(folders / "private" / "questions" / "train.parquet")

    with pytest.raises(UserError, match="leads out of"):
        dataset.Dataset(folders / "hostile").questions("train")


def test_a_shard_is_below_its_knowledge_base(folders: Path) -> None:
    folder = folders / "hostile" / "knowledge"
    shard = next((folders / "private" / "knowledge").glob("*.parquet"))
    edit(folder / "kb.json", lambda it: it["shards"][0].update(file=f"../../private/knowledge/{shard.name}"))

    with pytest.raises(UserError, match=r"kb\.json lists .* leads out of its folder"):
        list(KnowledgeBase(folder))


def test_a_part_of_probes_is_below_their_folder(tmp_path: Path) -> None:
    (tmp_path / "probes").mkdir()
    (tmp_path / "probes" / PROBES).write_text(json.dumps({"generation": 1, "questions": 1, "parts": ["../x.parquet"]}))

    with pytest.raises(UserError, match="leads out of its folder"):
        list[Probe](stream_probes(tmp_path / "probes"))


@pytest.mark.parametrize(
    "content",
    [
        b"root:x:0:0:root:/root:/bin/bash\n",
        b"-----BEGIN OPENSSH PRIVATE KEY-----\n",
        b"\x89HDF\r\n\x1a\n" + bytes(64),
        b"GRIB" + bytes(3) + b"\x01" + bytes(64),
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n%%EndComments\nsecret\n",
        b"#define a_width 1\n#define a_height 1\nstatic char a_bits[] = {\n0x00};\n",
        b"SIMPLE  =                    T" + b" " * 2850,
        b"",
    ],
)
def test_a_file_that_is_not_an_image_is_not_copied(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.png").write_bytes(content)
    placer = ImagePlacer(tmp_path / "data", "copy", tmp_path / "out")

    with pytest.raises(UserError, match="and is not copied"):
        placer("a.png")
    assert not (tmp_path / "out").exists()
