"""Costs that are said before a run: those of the trajectories that it then runs, or more."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from reflectune.core.types import Question
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.inference.operators.trajectory import TrajectoryPipeline
from reflectune.inference.pipelines.recipe import ModelUse, PipelineParts
from reflectune.inference.pipelines.registry import all_recipes, find_recipe
from reflectune.inference.running import planning
from reflectune.inference.running.config import EvaluateConfig
from reflectune.inference.running.costs import forecast

ITERATIVE = [name for name, recipe in all_recipes().items() if recipe.is_iterative]
SAID = [
    "",
    "Question 1: What is oak?\nQuestion 2: Where is oak?",
    "[Document 2] > [Document 1]",
    "Document B",
    "Answer: A",
    "The oak. " * 8,
    '<tool_call>{"name": "text_search", "arguments": {"query": "oak"}}</tool_call>',
    '<tool_call>{"name": "image_search", "arguments": {}}</tool_call>',
    "<tool_call>{</tool_call>",
    "<answer>oak</answer>",
]
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ITERATIVE),
    ("pmsr_web", {"condense_above": 40}),
    ("promsa", {"page_summaries": "reader"}),
    ("promsa", {"page_summaries": "reader", "text_calls": 0}),
    ("mrag_agent", {"agent_fallback": "first"}),
    ("mi_rag", {"retry_unread": True}),
    *((name, {"gate_filter": 0.5, "gate_stop": 0.5}) for name in ("mi_rag", "pmsr", "pmsr_web")),
]
IMAGE = Image.new("RGB", (16, 16))
QUESTIONS = [Question(f"q{n}", "image.png", "Who built it?" + "?" * n, entity_ids=("e0",)) for n in range(3)]
SERVED = ModelUse(None, is_served=True)
SHORT = {"max_record_tokens": 40, "max_new_tokens": 8}
FIXED: dict[str, dict[str, Any]] = {
    "mi_rag": {**SHORT, "iterations": 2},
    "pmsr_fixed": {**SHORT, "iterations": 3},
    "mrag": {**SHORT, "rerank": "listwise"},
}


def parts_of(world: Path, use: ModelUse = SERVED) -> PipelineParts:
    indexed: Any = SimpleNamespace(knowledge=KnowledgeBase(world / "knowledge"))
    return PipelineParts(indexed.knowledge, world, retriever=indexed, texts=indexed, use=use)


def calls(name: str, settings: Any, parts: PipelineParts, script: Any) -> float:
    """Run a pipeline with a scripted model, and return its calls of a question."""
    trajectory = find_recipe(name).trajectory
    assert trajectory is not None
    traces = TrajectoryPipeline(name, trajectory(settings, parts), script.tools).run(QUESTIONS, [IMAGE] * 3)
    return sum(trace.tokens["calls"] for trace in traces) / len(traces)


@pytest.mark.parametrize(("name", "values"), FIXED.items(), ids=FIXED)
def test_requests_are_those_of_the_run(name, values, world, scripting) -> None:
    recipe, parts = find_recipe(name), parts_of(world)
    settings: Any = recipe.settings(**values)
    script = scripting(
        say=lambda text: f"Question 1: What of {len(text)}? [Document 2] > [Document 1]",
        find=lambda query, base: [f"{base} {len(query)} {n}" for n in range(5)],
    )
    cost = forecast(recipe, settings, parts, QUESTIONS)
    assert cost is not None
    assert cost.requests == calls(name, settings, parts, script)
    assert cost.written <= cost.requests * 40


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory, make: Any) -> Path:
    """A knowledge base with more passages than a question reads."""
    folder = tmp_path_factory.mktemp("large")
    make.data_set(folder, [make.entry(number) for number in range(200)], QUESTIONS)
    return folder


@pytest.mark.parametrize(("name", "values"), VARIANTS, ids=[f"{name} {', '.join(more)}" for name, more in VARIANTS])
def test_no_run_has_more_requests_whatever_a_model_replies(name, values, large, scripting) -> None:
    recipe, parts = find_recipe(name), parts_of(large)
    settings: Any = recipe.settings(**{**SHORT, **values})
    cost = forecast(recipe, settings, parts, QUESTIONS)
    assert cost is not None
    for seed in range(8):
        draw = random.Random(seed)
        said = draw.sample(SAID, 3) if seed % 2 else SAID[-4:-1]
        script = scripting(
            say=lambda text, draw=draw, said=said: draw.choice(said).replace("oak", f"oak {draw.random()}"),
            find=lambda query, base, draw=draw: [f"{base} {query} {draw.random()}" for _ in range(40)],
            probability=lambda text, draw=draw, rarely=seed % 3: float(draw.random() ** rarely < 0.5),
            retries=settings.retry_unread,
        )
        assert calls(name, settings, parts, script) <= cost.requests + cost.judged, (seed, said)


def test_judgements_of_a_gate_are_counted_apart(world, scripting) -> None:
    recipe = find_recipe("pmsr_fixed")
    settings: Any = recipe.settings(**FIXED["pmsr_fixed"], gate_filter=0.5, gate_stop=0.9)
    drawn = random.Random(0)
    script = scripting(
        say=lambda text: f"Question 1: What of {len(text)}?",
        find=lambda query, base: [f"{base} {drawn.random()}" for _ in range(40)],
        probability=lambda text: 0.5,  # keeps every passage, and ends no trajectory
    )
    cost = forecast(recipe, settings, parts_of(world), QUESTIONS)
    ungated = forecast(recipe, recipe.settings(**FIXED["pmsr_fixed"]), parts_of(world), QUESTIONS)
    assert cost is not None
    assert ungated is not None
    assert (cost.requests, cost.written, ungated.judged) == (ungated.requests, ungated.written, 0)
    # although a forecast's knowledge base has 3 entries
    assert calls("pmsr_fixed", settings, parts_of(world), script) == cost.requests + cost.judged
    here = forecast(recipe, settings, parts_of(world, ModelUse("base_model", judges=True)), QUESTIONS)
    assert here is not None
    assert (here.requests, here.judged) == (0, cost.judged)


@pytest.mark.parametrize("name", ITERATIVE)
def test_every_iterative_pipeline_has_a_cost_behind_a_server_alone(name: str, world: Path) -> None:
    recipe = find_recipe(name)
    served = forecast(recipe, recipe.settings(), parts_of(world), QUESTIONS)
    assert served is not None
    assert min(served.requests, served.read, served.written) >= 1
    assert forecast(recipe, recipe.settings(), parts_of(world, ModelUse("base_model")), QUESTIONS) is None
    answering = forecast(
        recipe, recipe.settings(), parts_of(world, ModelUse("base_model", is_served=True, answerer="server")), QUESTIONS
    )
    assert answering is not None
    assert answering.requests <= served.requests


def test_a_dry_run_prints_the_cost_of_all_questions(world: Path) -> None:
    keys: dict[str, Any] = {"dataset": str(world), "index": str(world / "index"), "output": str(world / "out")}
    keys |= {"splits": ["val_unseen_question"], "pipelines": ["mi_rag"], "device": "cpu", "iterations": 2, **SHORT}
    keys |= {"reader": "server", "llm_url": "http://localhost:9/v1", "llm_model": "m"}
    lines = planning.describe(EvaluateConfig(**keys)).splitlines()
    (line,) = [line for line in lines if "requests a question" in line]
    assert "cost" not in line
    priced = planning.describe(EvaluateConfig(**keys, llm_input_price=1e6, llm_output_price=0.0))
    read = line.split(" and ")[-2].rsplit(" ", 1)[-1].replace(",", "")
    assert f", cost {int(read):,}.00" in priced
