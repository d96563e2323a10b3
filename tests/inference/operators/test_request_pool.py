"""Trajectories over one pool of requests: as many under way as allowed, with the traces of questions asked alone."""

import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from reflectune.core.errors import UnusableInput, UserError
from reflectune.core.types import Passage, Question
from reflectune.inference.operators.budget import Budget
from reflectune.inference.operators.models import ServedModel
from reflectune.inference.operators.request_pool import RequestPool
from reflectune.inference.operators.reranking import pointwise
from reflectune.inference.operators.trajectory import Tools, TrajectoryPipeline, TrajectoryResult
from reflectune.inference.operators.vocabulary import Steps, judge_each
from reflectune.inference.pipelines.mi_rag import MiRag, MiRagSettings
from reflectune.inference.pipelines.pmsr_web import PmsrWeb, PmsrWebSettings
from reflectune.inference.pipelines.reag import ReAG, ReagSettings
from reflectune.inference.running.runner import run_pipeline
from reflectune.inference.trace import Trace
from reflectune.models.remote.client import AllRefused, RemoteModel
from reflectune.models.remote.endpoint import Endpoint

IMAGE = Image.new("RGB", (16, 16), "blue")
LIKELY = {"Yes": -0.1, "No": -3.0}
SHORT: dict[str, Any] = {"max_new_tokens": 8, "max_record_tokens": 32}
PIPELINES: dict[str, Any] = {
    "mi_rag": MiRag(MiRagSettings(iterations=2, **SHORT), {"texts": 2}),
    "pmsr_web": PmsrWeb(PmsrWebSettings(iterations=1, saturation=2.0, condense_above=10, **SHORT), {"pairs": 1}),
    "reag": ReAG(ReagSettings(top_n=3, candidates=9, critic_threshold=0.1, **SHORT)),
}
REFUSAL = {"status": 400, "body": '{"error": {"message": "no"}}'}


def say(text: str) -> str:
    return f"Question 1: What of {len(text)}?" if "## " in text else f"I read {len(text)} letters."


def questions(count: int) -> list[Question]:
    return [Question(f"q{n:03d}", "image.png", "Who built it?" + "?" * (n % 7)) for n in range(count)]


@pytest.fixture
def tools(scripting: type[Any], tmp_path: Path) -> Iterator[Callable[..., Tools]]:
    """Return a function that makes tools of a served model and scripted searches."""
    opened: list[RemoteModel] = []

    def make(url: str, concurrency: int, **more: Any) -> Tools:
        script = scripting(find=lambda query, base: [f"{base} {len(query)} {n}" for n in range(3)])
        remote = RemoteModel(Endpoint(url, "stub", concurrency=concurrency), tmp_path / f"{len(opened)}.jsonl")
        opened.append(remote)
        model = ServedModel(remote)
        return Tools({"reader": model, "answerer": model}, script.search, script.embed, **more)

    yield make
    for remote in opened:
        remote.close()


def said(trace: Trace) -> Trace:
    return dataclasses.replace(trace, seconds={})


@pytest.mark.parametrize("name", PIPELINES)
def test_traces_are_those_of_questions_asked_alone_and_equal_requests_are_sent_once(name, stub_server, tools) -> None:
    server = stub_server(say, lambda text, number: {"seconds": len(text) % 5 / 500}, first_token=LIKELY)
    asked = questions(40)
    together = TrajectoryPipeline(name, PIPELINES[name], tools(server.url, 16)).run(asked, [IMAGE] * len(asked))
    assert set(server.delivered.values()) == {1}
    assert server.max_concurrent <= 16
    alone = TrajectoryPipeline(name, PIPELINES[name], tools(server.url, 1))
    assert [said(it) for it in together] == [said(alone.run([question], [IMAGE])[0]) for question in asked]


def test_as_many_requests_are_under_way_as_allowed(stub_server, tools) -> None:
    """Two thirds of the requests are answered when as many have come."""
    company, numbers = threading.Barrier(16, timeout=60), itertools.count()

    def answer(text: str) -> str:
        if next(numbers) < 17 * 16:
            company.wait()
        return text[-300:]

    server = stub_server(answer)
    asked = [Question(f"{n:03d}", "image.png", f"Who built number {n}?") for n in range(60)]
    begun: list[int] = []

    def start(question: Question) -> Steps[TrajectoryResult]:
        begun.append(len(server.delivered))
        return PIPELINES["mi_rag"](question)

    pipeline = TrajectoryPipeline("mi_rag", start, tools(server.url, 16))
    traces = list(pipeline.stream(((question, IMAGE) for question in asked), lambda *_: pytest.fail("unusable")))
    assert server.max_concurrent == 16
    assert sorted(trace.question_id for trace in traces) == [question.id for question in asked]
    assert begun[20] == 0 < begun[-1]  # at first as many as needed, the others as there is room


def test_a_run_goes_on_where_it_was_killed_and_its_traces_are_in_order(stub_server, tools, tmp_path) -> None:
    server = stub_server(say, lambda text, number: {"status": 401, "body": ""} if "???????" in text else {})
    IMAGE.save(tmp_path / "image.png")
    asked = [*questions(6), Question("q006", "image.png", "Why???????"), Question("bad", "none.png", "Who?")]

    def run(folder: str, **more: Any) -> Any:
        return run_pipeline(
            "mi_rag",
            lambda: TrajectoryPipeline("mi_rag", PIPELINES["mi_rag"], tools(server.url, 4)),
            asked,
            image_root=tmp_path,
            folder=tmp_path / folder,
            fingerprint="f",
            on_error="skip",
            **more,
        )

    with pytest.raises(UserError, match="status 401"):
        run("run", batch_questions=None)
    server.fault = lambda text, number: {}
    resumed = run("run", batch_questions=None)
    assert [*resumed] == sorted(question.id for question in asked)
    assert "none.png" in resumed["bad"].error
    straight = run("straight", batch_questions=3)
    assert [said(it) for it in resumed.values()] == [said(it) for it in straight.values()]


def test_an_unusable_question_fails_alone(stub_server, tools) -> None:
    def start(question: Question) -> Steps[TrajectoryResult]:
        if question.id == "q001":
            raise UnusableInput("no box")
        yield from judge_each(0, "{documents}", {}, ["One."])
        return TrajectoryResult("done", "ended")

    pipeline = TrajectoryPipeline("p", start, tools(stub_server(say, first_token=LIKELY).url, 2))
    failed = lambda question, error: Trace(question.id, "p", error=str(error))  # noqa: E731
    traces = {it.question_id: it for it in pipeline.stream(zip(questions(3), [IMAGE] * 3, strict=True), failed)}
    assert [traces[f"q00{n}"].answer for n in range(3)] == ["done", "", "done"]
    assert traces["q001"].error == "no box"
    with pytest.raises(UnusableInput, match="no box"):
        pipeline.run(questions(3), [IMAGE] * 3)


def test_a_spent_budget_begins_no_further_question(stub_server, tools) -> None:
    asked: list[str] = []  # counted before the reply, so that no thread can be faster than the count

    def count(text: str) -> str:
        asked.append(text)
        return say(text)

    server = stub_server(count)
    budget = Budget(run_tokens=1, spent=lambda: (len(asked), 0.0))
    run = TrajectoryPipeline("mi_rag", PIPELINES["mi_rag"], tools(server.url, 2, budget=budget))
    traces = run.run(questions(30), [IMAGE] * 30)
    assert all(trace.limit == {"run_tokens": 1} for trace in traces)
    assert 0 < sum(bool(trace.steps) for trace in traces) < 10
    assert all(len(trace.steps) <= 2 for trace in traces)  # one step, and an answer


PASSAGES = [Passage(name, 0, 0, name, "", "", f"About {name}.") for name in "abc"]


def ranked(question: Question) -> Steps[TrajectoryResult]:
    order = yield from pointwise(question.text, PASSAGES)
    return TrajectoryResult("".join(passage.entry_id for passage in order), "ranked")


def test_one_request_finds_out_that_there_are_no_log_probabilities(stub_server, tools) -> None:
    server = stub_server(lambda text: "Yes" if "About c" in text else "No")
    server.fault = lambda text, number: REFUSAL if server.requests[-1][1].get("logprobs") and number == 0 else {}
    traces = TrajectoryPipeline("p", ranked, tools(server.url, 8)).run(questions(7), [IMAGE] * 7)
    assert {trace.answer for trace in traces} == {"cab"}
    assert sum("logprobs" in body for _, body in server.requests) == 1


def test_a_run_ends_if_all_first_requests_are_refused_and_goes_on_if_one_is_answered(stub_server, tools) -> None:
    server = stub_server(say, lambda text, number: REFUSAL if "Describe" in text or "describe" in text else {})
    steps = PIPELINES["mi_rag"]
    with pytest.raises(AllRefused, match="refuses every request"):
        TrajectoryPipeline("mi_rag", steps, tools(server.url, 4)).run(questions(4), [IMAGE] * 4)
    server.fault = lambda text, number: {"seconds": 0.2} if "Who built it????" in text else REFUSAL
    (*_, answered, _, _, _) = TrajectoryPipeline("mi_rag", steps, tools(server.url, 8)).run(questions(7), [IMAGE] * 7)
    assert answered.steps[0].text


def test_a_request_that_fails_ends_the_pool_and_seconds_are_shares() -> None:
    begun = threading.Event()
    with RequestPool[str](2) as pool:
        pool.send("both", [lambda: 1, lambda: 2])
        ((key, replies, seconds),) = pool.collect(wait=True)
        assert (key, replies, pool.load) == ("both", [1, 2], 0)
        assert 0 <= seconds < 60
        assert pool.collect(wait=True) == []
        pool.send("bad", [begun.set, lambda: 1 / 0])
        with pytest.raises(ZeroDivisionError):
            pool.collect(wait=True)


def test_batches_of_a_local_model_do_not_depend_on_a_servers_delays(stub_server, tools, scripting) -> None:
    def run(url: str) -> tuple[list[Trace], Any]:
        local = scripting(say=say, find=lambda query, base: [f"{base} {len(query)}"])
        answerer = tools(url, 4).models["answerer"]
        mixed = Tools({"reader": local, "answerer": answerer}, local.search, local.embed)
        steps = MiRag(MiRagSettings(iterations=2, answer_each=True, **SHORT), {"texts": 2})
        return TrajectoryPipeline("mi_rag", steps, mixed).run(questions(9), [IMAGE] * 9), local.batches

    quick = run(stub_server(say).url)
    slow = run(stub_server(say, lambda text, number: {"seconds": len(text) % 7 / 100}).url)
    assert [said(it) for it in quick[0]] == [said(it) for it in slow[0]]
    assert quick[1] == slow[1]
    assert {size for kind, size in quick[1] if kind == "write"} == {9}
