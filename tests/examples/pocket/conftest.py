"""A tiny CLIP, and a knowledge base of ten entries with drawn pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from reflectune.core.types import Entry
from reflectune.examples.miniature.models.architecture import build_clip, build_clip_processor, train_tokenizer
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base

COLOURS = ("red", "green", "blue", "white", "black", "orange", "purple", "grey", "yellow", "pink")


@pytest.fixture(scope="session")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write a CLIP with random weights."""
    folder = tmp_path_factory.mktemp("clip")
    tokenizer = train_tokenizer(["the red owl of the tower"] * 4, 300, "clip")
    build_clip(tokenizer, size="test", seed=1).save_pretrained(folder)
    build_clip_processor(tokenizer).save_pretrained(folder)
    return str(folder)


def draw(seed: int) -> Image.Image:
    """Draw a picture of four coloured quarters."""
    image = Image.new("RGB", (64, 64))
    for quarter in range(4):
        colour = COLOURS[(seed // (quarter + 1) + quarter * seed) % len(COLOURS)]
        image.paste(Image.new("RGB", (32, 32), colour), (32 * (quarter % 2), 32 * (quarter // 2)))
    return image


@pytest.fixture(scope="session")
def picture() -> Callable[[int], Image.Image]:
    """Return a function that draws a picture by a seed."""
    return draw


@pytest.fixture
def entries(tmp_path: Path) -> list[Entry]:
    """Return ten entries with 0, 1 or 2 pictures each."""
    (tmp_path / "images").mkdir()
    numbers = iter(range(20))
    made = []
    for row in range(10):
        images = [f"images/{next(numbers)}.png" for _ in range((1, 2, 0)[row % 3])]
        for image in images:
            draw(int(Path(image).stem)).save(tmp_path / image)
        made.append(Entry(f"e{row}", f"Owl nº {row}", f"https://x/{row}", "A bird.", tuple(images), ()))
    return made


@pytest.fixture
def kb(tmp_path: Path, entries: list[Entry]) -> KnowledgeBase:
    """Write the entries as a knowledge base."""
    return write_knowledge_base(tmp_path / "knowledge", entries, name="owls", image_root="..", shard_size=4)
