"""The trial set of a user's own: what it reads off a dictionary's page, and that its parts fit together."""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from types import ModuleType

import pytest

ENTRY = """Zorl \\Zorl\\ (z[^o]rl), n. [OE. zorle, AS. zorla; akin to D. zoorl, G.
   z[\"o]rl, OHG. zurila, F. zorelle.]
   1. (Zo[\"o]l.) A bird of the family {Zorlid[ae]} ({Zorla
      borealis}), which sings at night.
      [1913 Webster]
"""


@pytest.fixture
def own_set(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`benchmarks/own_set.py`, imported as a script is."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("own_set")


def test_an_entry_is_read_without_its_marks(own_set: ModuleType) -> None:
    article = own_set.parse("zorl", ENTRY.split(", n.")[1])
    assert article.meaning == "1. A bird of the family Zorlidae (Zorla borealis), which sings at night."
    assert article.origin.startswith("Old English zorle, Anglo-Saxon zorla; akin to Dutch zoorl, German zorl, Old High")
    assert article.latin == ("Zorla borealis",)
    assert article.families == ("Zorlidae",)
    assert {language: article.words[language] for language in ("Dutch", "German", "French")} == {
        "Dutch": "zoorl",
        "German": "zorl",
        "French": "zorelle",
    }


def test_each_fact_is_asked_once_and_stands_in_the_article(own_set: ModuleType) -> None:
    article = own_set.parse("zorl", ENTRY.split(", n.")[1])
    rows = list(own_set.questions([article], random.Random(0)))
    assert len({row["id"] for row in rows}) == len(rows) == len(article.facts) + 1
    for row in rows:
        if row["requires_retrieval"]:
            assert row["answers"][0] in f"{article.meaning} {article.origin}"
            assert row["entity_ids"] == ["zorl"]
    assert len({row["split"] == "val_unseen_entity" for row in rows}) == 1  # an unseen thing is unseen in all questions
