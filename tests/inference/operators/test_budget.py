"""A budget that is used up: the trajectory answers from what it has, says why, and goes on under a higher one."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from reflectune.core.types import Question
from reflectune.inference.operators.budget import Budget, Limit, was_raised
from reflectune.inference.operators.models import ServedModel
from reflectune.inference.operators.trajectory import Tools, TrajectoryPipeline
from reflectune.inference.operators.vocabulary import write
from reflectune.inference.pipelines.mi_rag import MiRag, MiRagSettings
from reflectune.inference.pipelines.mrag import Mrag, MragSettings
from reflectune.inference.pipelines.pmsr import Pmsr, PmsrSettings
from reflectune.inference.pipelines.reag import ReAG, ReagSettings
from reflectune.inference.running.runner import run_pipeline
from reflectune.inference.trace import Trace
from reflectune.models.remote.client import RemoteModel
from reflectune.models.remote.endpoint import Endpoint

PIPELINES: dict[str, Callable[..., Any]] = {
    "mi_rag": MiRag(MiRagSettings(iterations=2, max_new_tokens=8, max_record_tokens=32), {"texts": 2}),
    "pmsr": Pmsr(PmsrSettings(iterations=2, saturation=2.0, max_new_tokens=8, max_record_tokens=32), {"texts": 2}),
    "reag": ReAG(ReagSettings(top_n=2, candidates=10, critic_threshold=0.1, max_new_tokens=8, max_record_tokens=32)),
    "mrag": Mrag(
        MragSettings(query_modality="I", top_n=3, rerank="listwise", answer_documents=1, max_new_tokens=8),
        lambda question: (),
    ),
}


def question(number: int) -> Question:
    return Question(f"q{number}", "image.png", f"Who built it, {number}?")


def say(text: str) -> str:
    if "## Output" in text or "## Queries" in text:
        return f"## Output\nQuestion: What of {len(text)}?"
    return f"I read {len(text)} letters."


def run(name: str, script: Any, budget: Budget, count: int = 1) -> list[Trace]:
    tools = dataclasses.replace(script.tools, budget=budget)
    pipeline = TrajectoryPipeline(name, PIPELINES[name], tools)
    return pipeline.run([question(n) for n in range(count)], [Image.new("RGB", (8, 8))] * count)


@pytest.fixture(scope="session")
def script(scripting: type[Any]) -> Callable[[], Any]:
    return lambda: scripting(say=say, find=lambda query, base: [f"{base} {len(query)}", "two"])


def said(trace: Trace) -> Trace:
    return dataclasses.replace(trace, seconds={})


def used(trace: Trace) -> int:
    return trace.tokens["read"] + trace.tokens["generated"]


@pytest.mark.parametrize("name", ["mi_rag", "pmsr"])
def test_what_has_been_recorded_is_answered_from(name: str, script: Callable[[], Any]) -> None:
    (whole,) = run(name, script(), Budget())
    first = next(place for place, step in enumerate(whole.steps) if step.operator == "reason")
    until_record = sum(step.read + step.generated for step in whole.steps[: first + 1])
    asked = script()
    (trace,) = run(name, asked, Budget(question_tokens=until_record))
    assert trace.steps[:-1] == whole.steps[: first + 1]
    assert trace.steps[-1].operator == "answer"
    record = whole.steps[first].text
    assert record in asked.asked[-1][1]  # what the answer was read from
    assert trace.answer == trace.steps[-1].text
    assert trace.limit == {"question_tokens": until_record}
    assert trace.ended == f"the question's {until_record:,} tokens are used up"
    assert trace.passages  # what was found is kept, too


@pytest.mark.parametrize("name", PIPELINES)
@settings(deadline=None, max_examples=25)
@given(most=st.integers(1, 400), count=st.integers(1, 4))
def test_only_an_answer_goes_beyond_and_company_changes_nothing(name: str, most, count, script) -> None:
    traces = run(name, script(), Budget(question_tokens=most), count)
    alone = [run(name, script(), Budget(question_tokens=most), n + 1)[n] for n in range(count)]
    assert [said(trace) for trace in traces] == [said(trace) for trace in alone]
    for trace in traces:
        last = trace.steps[-1]
        assert last.operator == "answer"
        assert trace.answer == last.text
        before = used(trace) - last.read - last.generated
        begun = sum(step.read + step.generated for step in trace.steps[:-2])
        assert begun < most  # the last step but the answer began within the budget
        assert bool(trace.limit) is (trace.ended == str(Limit("question_tokens", most)))
        assert before >= most or not trace.limit


def test_a_budget_that_is_not_reached_changes_nothing(script: Callable[[], Any]) -> None:
    (whole,) = run("pmsr", script(), Budget())
    (trace,) = run("pmsr", script(), Budget(question_tokens=10**6, run_tokens=10**6, run_cost=1e6))
    assert said(trace) == said(whole)
    assert trace.limit == {}


def test_a_large_budget_is_named_as_it_was_set() -> None:
    assert str(Limit("run_tokens", 12_345_678)) == "the run's 12,345,678 tokens are used up"
    assert str(Limit("run_cost", 1_234_567.5)) == "the run's budget of 1,234,567.5 is used up"


def test_a_run_that_is_out_of_money_asks_nothing_for_what_has_not_begun(script: Callable[[], Any]) -> None:
    asked = script()
    (trace,) = run("pmsr", asked, Budget(run_cost=2.5, spent=lambda: (10, 2.5)))
    assert asked.asked == []
    assert (trace.answer, trace.ended, trace.fallback) == ("", "the run's budget of 2.5 is used up", "budget")
    assert trace.limit == {"run_cost": 2.5}


def test_a_pipeline_that_knows_nothing_of_budgets_ends_with_its_last_answer(script: Callable[[], Any]) -> None:
    """The raw reply of an extraction doesn't count."""

    def steps(_: Question) -> Any:
        yield from write("answer", 0, "One {question}", {"question": "?"}, max_tokens=4)
        yield from write("extract", 0, "Or {question}, in short", {"question": "?"}, max_tokens=4)
        yield from write("verify", 0, "Two {question}", {"question": "?"}, max_tokens=4)
        raise AssertionError("its budget was used up")

    tools = dataclasses.replace(script().tools, budget=Budget(question_tokens=1))
    (trace,) = TrajectoryPipeline("test", steps, tools).run([question(0)], [Image.new("RGB", (8, 8))])
    assert (trace.answer, trace.fallback) == ("I read 5 letters.", "budget")


def test_a_limit_is_outgrown_once_it_is_raised_or_taken_away() -> None:
    limit = {"run_cost": 1.0}
    assert [was_raised(limit, now) for now in (limit, {"run_cost": 2.0}, {})] == [False, True, True]
    assert not was_raised({}, {})


def test_a_served_run_goes_on_with_a_higher_budget_and_pays_nothing_twice(stub_server, scripting, tmp_path) -> None:
    server = stub_server(say)
    Image.new("RGB", (8, 8)).save(tmp_path / "image.png")
    questions = [question(n) for n in range(4)]

    def evaluate(most: int, folder: Path) -> dict[str, Trace]:
        script = scripting(find=lambda query, base: [f"{base} {len(query)}"])
        limits = {"run_tokens": most} if most else {}
        with RemoteModel(Endpoint(server.url, "stub", concurrency=1), folder / "replies.jsonl") as remote:

            def spent() -> tuple[int, float]:
                usage = remote.usage()
                return usage["prompt_tokens"] + usage["completion_tokens"], usage["cost"]

            model = ServedModel(remote)
            budget = Budget(run_tokens=most, spent=spent)
            tools = Tools({"reader": model, "answerer": model}, script.search, script.embed, budget=budget)
            return run_pipeline(
                "pmsr",
                lambda: TrajectoryPipeline("pmsr", PIPELINES["pmsr"], tools),
                questions,
                image_root=tmp_path,
                folder=folder,
                fingerprint="f",
                batch_questions=2,
                on_error="stop",
                reopen=lambda limit: was_raised(limit, limits),
            )

    straight = evaluate(0, tmp_path / "straight")
    whole = len(server.requests)
    low = evaluate(60, tmp_path / "run")
    assert any(trace.limit for trace in low.values())
    assert any(not trace.steps for trace in low.values())  # not begun
    sent = len(server.requests) - whole
    assert 0 < sent < whole
    evaluate(60, tmp_path / "run")  # nothing is left to do
    assert len(server.requests) == whole + sent
    high = evaluate(0, tmp_path / "run")
    assert [said(trace) for trace in high.values()] == [said(trace) for trace in straight.values()]
    cut_short = sum(bool(trace.limit and trace.steps) for trace in low.values())
    assert len(server.requests) <= 2 * whole + cut_short  # an answer from less is another request
