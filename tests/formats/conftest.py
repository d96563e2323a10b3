"""A knowledge base of ten entries."""

from __future__ import annotations

from pathlib import Path

import pytest

from reflectune.core.types import Entry, Section
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base


@pytest.fixture
def entries(tmp_path: Path) -> list[Entry]:
    """Ten entries with 1, 2 or 0 images each, in a folder next to the knowledge base's, and 0 to 2 sections."""
    (tmp_path / "images").mkdir()
    made, number = [], 0
    for position in range(10):
        count = (1, 2, 0)[position % 3]
        images = tuple(f"images/{number + offset}.png" for offset in range(count))
        number += count
        for image in images:
            (tmp_path / image).touch()
        sections = (Section("Diet", f"It eats {position} mice.\n\nAnd voles."), Section("References", ""))
        name, url = f"Owl nº {position}", f"https://x/{position}"
        made.append(Entry(f"e{position}", name, url, "A bird.", images, sections[: position % 3]))
    return made


@pytest.fixture
def kb(tmp_path: Path, entries: list[Entry]) -> KnowledgeBase:
    return write_knowledge_base(tmp_path / "knowledge", entries, name="owls", image_root="..", shard_size=4)
