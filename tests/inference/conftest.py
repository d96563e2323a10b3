"""Small things that the inference tests are built from, as the fixture `make`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from reflectune.core.types import Evidence, Passage, Question
from reflectune.inference.trace import PassageTrace, Trace
from reflectune.models.loading import save_checkpoint
from reflectune.models.miniature.architecture import Family, build_model, build_processor, train_tokenizer
from reflectune.models.rendering.turns import ANSWER_PROMPTS
from reflectune.models.schemes.base import Scheme
from reflectune.models.schemes.mmkb_rag import SCHEME as MMKB_RAG
from reflectune.models.schemes.mr2ag import SCHEME as MR2AG
from reflectune.models.schemes.plain import SCHEME as PLAIN
from reflectune.models.schemes.tokens import add_reflection_tokens
from reflectune.retrieval.types import Hit


def question(number: int, split: str = "val_unseen_entity", answer: str = "oak", **more: Any) -> Question:
    values = {"image": "images/a.png", "text": "What is it made of?", "requires_retrieval": True, **more}
    return Question(id=f"q{number:03d}", answers=(answer,), split=split, **values)


def passage(entry_id: str = "e1", section: int = 0, text: str = "It is made of oak.", index: int = 0) -> Passage:
    return Passage(entry_id, section, index, title=f"Title {entry_id}", lead="", heading=f"H{section}", text=text)


def read(
    entry_id: str = "e1",
    section: int = 0,
    *,
    ret: float | None = 0.5,
    rel: float = 0.9,
    answer: str | None = None,
    ans: float | None = None,
    source: str = "",
) -> PassageTrace:
    return PassageTrace(
        passage(entry_id, section), s_ret=ret, s_rel=rel, s_irr=1 - rel, answer=answer, s_ans=ans, source=source
    )


def trace(number: int, pipeline: str = "mr2ag", answer: str = "oak", **more: Any) -> Trace:
    return Trace(question_id=f"q{number:03d}", pipeline=pipeline, answer=answer, **more)


def hit(entry_id: str, rank: int, score: float = 0.5) -> Hit:
    return Hit(entry_id=entry_id, score=score, rank=rank, query="q", kb="kb", parts={"image": score, "title": score})


def evidence(entry_id: str = "e1", section: int = 0) -> tuple[Evidence, ...]:
    return (Evidence(entry_id, section),)


@pytest.fixture(scope="session")
def make() -> SimpleNamespace:
    """The builders above; a fixture, since test modules cannot import one another."""
    return SimpleNamespace(question=question, passage=passage, read=read, trace=trace, hit=hit, evidence=evidence)


@pytest.fixture(scope="session", params=["llava", pytest.param("qwen2_vl", marks=pytest.mark.slow)])
def family(request: pytest.FixtureRequest) -> Family:
    return request.param


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory, family: Family) -> SimpleNamespace:
    """Folders of tiny random models: `base`; `plain`, as if tuned without reflection; `tuned`, with mR²AG's tokens."""
    return _checkpoints(tmp_path_factory, family, MR2AG)


@pytest.fixture(scope="session")
def prompted(tmp_path_factory: pytest.TempPathFactory, family: Family) -> SimpleNamespace:
    """The same with the tokens and the scheme of MMKB-RAG."""
    return _checkpoints(tmp_path_factory, family, MMKB_RAG)


def _checkpoints(factory: pytest.TempPathFactory, family: Family, scheme: Scheme) -> SimpleNamespace:
    texts = ["What is it made of? It is made of oak. Title e1: H0.", ANSWER_PROMPTS["read_short"]]
    tokenizer = train_tokenizer(texts * 3, 400, family)
    processor, model = build_processor(family, tokenizer), build_model(family, tokenizer, size="test", seed=1)
    base, plain, tuned = factory.mktemp("base"), factory.mktemp("plain"), factory.mktemp("tuned")
    model.save_pretrained(base)
    processor.save_pretrained(base)
    save_checkpoint(plain, model, processor, PLAIN, {"base_model": str(base)})
    add_reflection_tokens(model, processor, scheme, seed=0)
    save_checkpoint(tuned, model, processor, scheme, {"base_model": str(base)})
    return SimpleNamespace(base=str(base), plain=str(plain), tuned=str(tuned), family=family)


@pytest.fixture
def pictures() -> list[Image.Image]:
    """Three images that differ in colour and size."""
    return [Image.new("RGB", (64 + 8 * i, 64), colour) for i, colour in enumerate(("red", "green", "blue"))]
