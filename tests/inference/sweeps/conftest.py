"""A data set with an index that a sweep can be run on in seconds."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from reflectune.core.types import Entry, Section
from reflectune.formats.dataset import write_questions
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base
from reflectune.retrieval.encoders.encoder import load_encoder
from reflectune.retrieval.indexes.building import build_index

COLOURS = ("red", "blue", "green")
SPLITS = ("val_unseen_question", "val_unseen_entity")


@pytest.fixture(scope="session")
def small_world(tmp_path_factory: pytest.TempPathFactory, encoder: str, make: SimpleNamespace) -> Path:
    """Three entries of three sections; four knowledge-based questions and a visual one."""
    folder = tmp_path_factory.mktemp("small_world")
    (folder / "images").mkdir()
    entries, questions = [], []
    for number, colour in enumerate(COLOURS):
        Image.new("RGB", (64, 64), colour).save(folder / f"images/e{number}.png")
        sections = (
            Section("Diet", "It eats mice."),
            Section("Home", "It lives in an oak."),
            Section("Size", "It is small."),
        )
        image = f"images/e{number}.png"
        entries.append(
            Entry(id=f"e{number}", title=f"Title e{number}", summary="A drawing.", images=(image,), sections=sections)
        )
    for i in range(4):
        entity = f"e{i % 3}"
        questions.append(
            make.question(
                i,
                SPLITS[i % 2],
                image=f"images/{entity}.png",
                text="What does it live in?",
                entity_ids=(entity,),
                evidence=make.evidence(entity, 1),
            )
        )
    questions.append(make.question(4, SPLITS[0], "red", image="images/e0.png", requires_retrieval=False))
    write_knowledge_base(folder / "knowledge", entries, name="kb", image_root="..", shard_size=10)
    for split in SPLITS:
        write_questions(folder, split, [question for question in questions if question.split == split])
    record = {"name": "test", "metric": "infoseek", "seed": 0, "fingerprint": "f" * 16, "counts": {}}
    (folder / "dataset.json").write_text(json.dumps(record))
    build_index(KnowledgeBase(folder / "knowledge"), load_encoder(encoder), folder / "index")
    return folder
