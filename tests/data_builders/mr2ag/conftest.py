"""A small world for the tests of building mR²AG-IT: entries, images, 30 knowledge-based and 12 visual questions."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from reflectune.core.durable import write_json
from reflectune.core.types import Entry, Evidence, Question, Section
from reflectune.data_builders.mr2ag.config import BuildConfig
from reflectune.formats.dataset import write_questions
from reflectune.formats.knowledge_base import write_knowledge_base

ENTITIES, QUESTIONS = 12, 30


def entry(number: int) -> Entry:
    sections = (
        Section("History", f"It was founded in {1500 + number}."),
        Section("Size", f"It is {20 + number} metres tall."),
        Section("People", f"It was designed by Person{number}."),
    )
    return Entry(f"e{number}", f"Tower {number}", "", f"A tower, number {number}.", (image(number),), sections)


def image(number: int) -> str:
    return f"images/{number % ENTITIES}.png"


def knowledge_question(number: int) -> Question:
    return Question(
        id=f"k{number}",
        image=image(number),
        text="When was it founded?",
        answers=(str(1500 + number % ENTITIES),),
        answer_type="time",
        split="train",
        requires_retrieval=True,
        entity_ids=(f"e{number % ENTITIES}",),
        evidence=(Evidence(f"e{number % ENTITIES}", 0),),
    )


def visual_question(number: int) -> Question:
    return Question(f"v{number}", image(number), "Which colour?", ("red",), requires_retrieval=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "world"
    write_json(root / "dataset.json", {"name": "towers", "fingerprint": "f1"})
    write_knowledge_base(root / "knowledge", [entry(i) for i in range(ENTITIES)], name="towers", image_root="..")
    (root / "images").mkdir()
    for i in range(ENTITIES):
        Image.new("RGB", (8, 8), (i, i, i)).save(root / image(i))
    visual = [visual_question(i) for i in range(ENTITIES)]
    write_questions(root, "train", [knowledge_question(i) for i in range(QUESTIONS)] + visual)
    return root


@pytest.fixture
def config(folder: Path, tmp_path: Path) -> Callable[..., BuildConfig]:
    def make(output: str = "reflection", **changes: Any) -> BuildConfig:
        (tmp_path / "index").mkdir(exist_ok=True)
        (tmp_path / "index" / "manifest.json").write_text("{}")
        values: dict[str, Any] = {
            "dataset": str(folder),
            "output": str(tmp_path / output),
            "index": str(tmp_path / "index"),
            "retrieval_depth": 4,
        }
        return BuildConfig(**{**values, **changes})

    return make
