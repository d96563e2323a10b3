"""Irrelevant passages among records: where they stand, what they are drawn from, and what they leave as it was."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.types import Entry, Question, Section
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base
from reflectune.inference.operators.budget import Budget
from reflectune.inference.operators.trajectory import TrajectoryPipeline
from reflectune.inference.pipelines.mi_rag import MiRag, MiRagSettings
from reflectune.inference.pipelines.noise import drawn_passages, insert_between, with_noise
from reflectune.inference.pipelines.pmsr import Pmsr, PmsrSettings
from reflectune.inference.trace import Trace

ASKED = Question("q", "image.png", "What does it eat?", ("mice",), entity_ids=("e0",))
PIPELINES = {
    "mi_rag": MiRag(MiRagSettings(iterations=2, max_new_tokens=8, max_record_tokens=32), {"texts": 2}),
    "pmsr": Pmsr(PmsrSettings(iterations=2, saturation=2.0, max_new_tokens=8, max_record_tokens=32), {"texts": 2}),
}


@pytest.fixture(scope="module")
def knowledge(tmp_path_factory: pytest.TempPathFactory) -> KnowledgeBase:
    """Entry e0 that is asked about, e1 that states the answer, and four others."""
    texts = ["It eats berries.", "It eats mice.", *(f"It is number {n}." for n in range(2, 6))]
    entries = [Entry(f"e{n}", f"Title {n}", sections=(Section("Diet", text),)) for n, text in enumerate(texts)]
    return write_knowledge_base(tmp_path_factory.mktemp("kb"), entries, name="kb", shard_size=4)


def say(text: str) -> str:
    if "## Output" in text or "## Queries" in text:
        return f"## Output\nQuestion: What of {len(text)}?"
    return "It is RECORD."


def run(name: str, scripting: type[Any], noise: list[str], budget: Budget | None = None) -> tuple[Trace, list[str]]:
    script = scripting(say=say, find=lambda query, base: ["found"])
    tools = dataclasses.replace(script.tools, budget=budget or Budget())
    steps = with_noise(PIPELINES[name], lambda _: noise)
    (trace,) = TrajectoryPipeline(name, steps, tools).run([ASKED], [Image.new("RGB", (8, 8))])
    return trace, [entry[1] for entry in script.asked if entry[0] == "write"]


@pytest.mark.parametrize("name", PIPELINES)
def test_a_model_sees_noise_where_it_sees_its_records_and_nowhere_else(name: str, scripting: type[Any]) -> None:
    trace, prompts = run(name, scripting, ["NOISE one", "NOISE two"])
    assert trace.tokens["noise"] == 2
    writes = [step.operator for step in trace.steps if step.operator in ("caption", "rewrite", "reason", "answer")]
    for operator, prompt in zip(writes, prompts, strict=True):
        assert prompt.count("NOISE") == (2 if operator in ("rewrite", "answer") else 0)
    assert not any("NOISE" in query for step in trace.steps for query in step.queries)


def test_a_budget_ends_a_noisy_trajectory_with_an_answer(scripting: type[Any]) -> None:
    trace, prompts = run("pmsr", scripting, ["NOISE"], Budget(question_tokens=40))
    assert trace.limit
    assert trace.steps[-1].operator == "answer"
    assert "NOISE" in prompts[-1]


@settings(deadline=None)
@given(
    records=st.lists(st.text("abc", min_size=1), max_size=6),
    noise=st.lists(st.tuples(st.text("xyz", min_size=1), st.floats(0, 1)), max_size=6),
)
def test_records_keep_their_order_and_nothing_is_lost(records: list[str], noise: list[tuple[str, float]]) -> None:
    mixed = insert_between(records, [text for text, _ in noise], [share for _, share in noise])
    assert [text for text in mixed if set(text) <= set("abc")] == records
    assert sorted(text for text in mixed if set(text) <= set("xyz")) == sorted(text for text, _ in noise)


def test_passages_are_irrelevant_drawn_by_the_id_and_nested_in_larger_draws(knowledge: KnowledgeBase) -> None:
    drawn = {count: drawn_passages(knowledge, count, "none")(ASKED) for count in (1, 2, 4)}
    assert drawn[2][:1] == drawn[1]
    assert drawn[4][:2] == drawn[2]
    assert len(set(drawn[4])) == 4
    assert all("number" in text for text in drawn[4])  # neither the entry asked about nor one that has the answer
    assert drawn_passages(knowledge, 4, "none")(ASKED) == drawn[4]
    others = {tuple(drawn_passages(knowledge, 2, "none")(dataclasses.replace(ASKED, id=f"q{n}"))) for n in range(9)}
    assert len(others) > 1


def test_a_knowledge_base_with_too_few_is_an_error(knowledge: KnowledgeBase) -> None:
    with pytest.raises(UserError, match="only 4 passages irrelevant to question q"):
        drawn_passages(knowledge, 5, "none")(ASKED)
