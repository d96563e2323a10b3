"""Pipelines' counts against the tokens that the engine read and that separate calls would read."""

import functools
from collections.abc import Callable
from typing import Any

import pytest

from reflectune.core.types import Question
from reflectune.inference.operators.models import LocalModel
from reflectune.inference.operators.trajectory import Tools, TrajectoryPipeline
from reflectune.inference.pipelines.base import Pipeline
from reflectune.inference.pipelines.documents import DocumentFinder
from reflectune.inference.pipelines.gated import GatedSettings
from reflectune.inference.pipelines.mi_rag import MiRag, MiRagSettings
from reflectune.inference.pipelines.mmkb_rag import MMKBRAG, MmkbRagSettings
from reflectune.inference.pipelines.mr2ag import MR2AG, Mr2agSettings
from reflectune.inference.pipelines.naive_rag import naive_rag
from reflectune.inference.pipelines.recipe import PipelineParts
from reflectune.inference.pipelines.reflectiva import ReflectiVA, ReflectivaReader
from reflectune.inference.pipelines.registry import build_pipeline
from reflectune.inference.reading.passage_reader import PassageReader
from reflectune.inference.reading.prompted_reader import PromptedReader
from reflectune.inference.reading.reader import USAGE, Reader
from reflectune.inference.running.config import EvaluateConfig
from reflectune.inference.trace import Trace
from reflectune.models.loading import load
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.models.prefix.packed import PackedReader
from reflectune.retrieval.contexts import ContextBuilder

MAX_NEW = 4


@pytest.fixture
def build(checkpoints, prompted, scripted, scripting, knowledge) -> Callable[[str], tuple[Pipeline, PrefixEngine]]:
    def make(name: str) -> tuple[Pipeline, PrefixEngine]:
        retriever = scripted.retriever({"a": 0.8, "b": 0.4})
        settings = MmkbRagSettings(top_n=2, gamma=0.0, k=2, mct="rerank")
        finder = DocumentFinder(retriever, knowledge, settings)
        tuned = {"mmkb_rag": prompted.tuned, "mr2ag": checkpoints.tuned, "direct": checkpoints.tuned}
        scheme = {"scheme": "reflectiva", "seed": 2} if name == "reflectiva" else {}
        engine = PrefixEngine(load(tuned.get(name, checkpoints.base), **scheme), token_budget=4096)
        texts = scripting(find=lambda query, base: ["It is made of oak.", "Title e1."])
        tools = Tools({"reader": (local := LocalModel(engine, 64)), "answerer": local}, texts.search)
        gated = GatedSettings(gamma=0.0, fallback="random", lead="none")
        contexts = ContextBuilder(knowledge, None, 2, 5, "none")
        records = MiRagSettings(iterations=1, max_new_tokens=MAX_NEW, max_record_tokens=MAX_NEW)
        pipelines: dict[str, Callable[[], Any]] = {
            "closed_book": lambda: build_pipeline(
                name, EvaluateConfig(max_new_tokens=MAX_NEW), PipelineParts(knowledge, engine=engine)
            ),
            "naive_rag": lambda: naive_rag(name, Reader(engine, MAX_NEW), retriever, contexts, "article"),
            "mr2ag": lambda: MR2AG(PassageReader(engine, MAX_NEW), retriever, knowledge, Mr2agSettings(gamma=0.0)),
            "direct": lambda: MR2AG(PassageReader(engine, MAX_NEW), retriever, knowledge, Mr2agSettings(gamma=1.0)),
            "reflectiva": lambda: ReflectiVA(ReflectivaReader(engine, MAX_NEW), retriever, knowledge, gated),
            "mmkb_rag": lambda: MMKBRAG(PromptedReader(engine, MAX_NEW, MAX_NEW), finder, settings),
            "mi_rag": lambda: TrajectoryPipeline(name, MiRag(records, {"texts": 2}), tools),
        }
        return pipelines[name](), engine

    return make


CALLS = {"closed_book": 1, "naive_rag": 1, "mr2ag": 1 + 4, "direct": 2, "mi_rag": 1 + 1 + 2 + 1}
CALLS |= {"reflectiva": 1 + 4 + 1, "mmkb_rag": 1 + 4 + 1 + 1}
CASES = [
    *((name, "llava", False) for name in CALLS),
    ("mmkb_rag", "qwen2_vl", True),
]


@pytest.mark.parametrize(("name", "family", "packed"), CASES, indirect=["family"], scope="session")
def test_tokens_computed_are_what_the_engine_has_read_and_each_call_would_read_its_prompt_from_the_beginning(
    name: str, packed: bool, build, make, images, monkeypatch: pytest.MonkeyPatch
) -> None:
    if packed:  # as on a GPU
        reader = functools.partial(PackedReader, compile_after=None)
        monkeypatch.setattr("reflectune.models.prefix.engine.packed_for", lambda *known, **_: reader(*known))
    questions: list[Question] = [make.question(n, text=text) for n, text in enumerate(("What is it?", "Who?", "Oak?"))]
    pipeline, engine = build(name)
    traces = pipeline.run(questions, images)
    assert all(set(USAGE) <= set(trace.tokens) for trace in traces)
    assert sum(trace.tokens["computed"] for trace in traces) == engine.tokens_read
    assert all(trace.tokens["generated"] > 0 for trace in traces)
    alone, _ = build(name)
    singly = [counts(alone.run([question], [image])[0]) for question, image in zip(questions, images, strict=True)]
    assert [counts(trace) for trace in traces] == singly
    for told in singly:
        assert told["calls"] == CALLS[name]
        if told["calls"] == 1:
            assert told["read"] == told["computed"]
        else:
            assert told["read"] > told["computed"]
        assert told["generated"] <= MAX_NEW * told["calls"]


def counts(trace: Trace) -> dict[str, int]:
    return {name: trace.tokens[name] for name in USAGE}
