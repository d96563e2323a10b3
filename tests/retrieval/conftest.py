"""A tiny random encoder, and knowledge bases with drawn images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from reflectune.core.types import Entry, Section
from reflectune.examples.miniature.models.architecture import build_clip, build_clip_processor, train_tokenizer
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base
from reflectune.retrieval.encoders.base import ImageTextEncoder
from reflectune.retrieval.encoders.encoder import load_encoder

COLOURS = ("red", "green", "blue", "white", "black", "orange", "purple", "grey", "yellow", "pink")


def write_encoder(folder: Path, seed: int) -> str:
    tokenizer = train_tokenizer(["the red owl of the tower"] * 4, 300, "clip")
    build_clip(tokenizer, size="test", seed=seed).save_pretrained(folder)
    build_clip_processor(tokenizer).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_encoder(tmp_path_factory.mktemp("clip"), seed=1)


@pytest.fixture(scope="session")
def other_clip_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_encoder(tmp_path_factory.mktemp("other_clip"), seed=2)


@pytest.fixture(scope="session")
def encoder(clip_folder: str) -> ImageTextEncoder:
    return load_encoder(clip_folder)


def draw(seed: int) -> Image.Image:
    """A picture of four coloured quarters."""
    image = Image.new("RGB", (64, 64))
    for quarter in range(4):
        colour = COLOURS[(seed // (quarter + 1) + quarter * seed) % len(COLOURS)]
        image.paste(Image.new("RGB", (32, 32), colour), (32 * (quarter % 2), 32 * (quarter // 2)))
    return image


@pytest.fixture(scope="session")
def picture() -> Callable[[int], Image.Image]:
    return draw


@pytest.fixture
def entries(tmp_path: Path) -> list[Entry]:
    """Ten entries with 0, 1 or 2 images each, next to the knowledge base's folder."""
    (tmp_path / "images").mkdir()
    made, number = [], 0
    for place in range(10):
        images = []
        for _ in range((1, 2, 0)[place % 3]):
            draw(number).save(tmp_path / f"images/{number}.png")
            images.append(f"images/{number}.png")
            number += 1
        sections = (Section("Diet", f"It eats {place} mice.\n\nAnd voles."), Section("References", ""))
        made.append(
            Entry(f"e{place}", f"Owl nº {place}", f"https://x/{place}", "A bird.", tuple(images), sections[: place % 3])
        )
    return made


@pytest.fixture
def kb(tmp_path: Path, entries: list[Entry]) -> KnowledgeBase:
    return write_knowledge_base(tmp_path / "knowledge", entries, name="owls", image_root="..", shard_size=4)
