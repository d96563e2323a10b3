"""Trajectories of many questions: equal steps are one batch, and company changes none."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from reflectune.core.types import Question
from reflectune.inference.operators.trajectory import TrajectoryPipeline, TrajectoryResult
from reflectune.inference.operators.vocabulary import Steps, gather, judge, merge, search, similarity, write
from reflectune.inference.trace import Trace, from_row, to_row


def steps(question: Question) -> Steps[TrajectoryResult]:
    """As many rounds as the question has letters: a query, a search, a judgement, a comparison; then an answer."""
    queries: list[str] = []
    for iteration in range(len(question.text)):
        asked = {"question": f"{question.text} {iteration}"}
        query = yield from write("rewrite", iteration, "Ask: {question}", asked, max_tokens=8)
        found = merge((yield from search(iteration, [query.text], {"texts": [2]})))
        yield from judge(iteration, "Right? {question}", asked)
        alike = yield from similarity(iteration, [query.text], queries)
        queries.append(query.text)
        if alike.highest[0] > 0.9:
            break
    answer = yield from write(
        "answer",
        iteration,
        "{question}: {documents}",
        {"question": question.text},
        documents=[passage.text for passage in found],
        max_tokens=4,
    )
    return TrajectoryResult(answer.text, f"after {iteration}", passages=tuple(found))


def question(name: str, text: str) -> Question:
    return Question(name, "image.png", text)


def run(questions: Sequence[Question], script: Any) -> list[Trace]:
    pipeline = TrajectoryPipeline("test", steps, script.tools)
    return pipeline.run(questions, [Image.new("RGB", (8, 8))] * len(questions))


def said(trace: Trace) -> Trace:
    """A trace without its timings."""
    return dataclasses.replace(trace, seconds={})


def test_equal_steps_of_different_questions_are_one_batch(shouting: Callable[..., Any]) -> None:
    script = shouting()
    run([question(str(n), "abc") for n in range(5)], script)
    kinds = [kind for kind, _ in script.batches]
    assert kinds == [*("write", "search", "judge"), *("write", "search", "judge", "embed") * 2, "write"]
    assert {size for kind, size in script.batches if kind != "embed"} == {5}


def test_questions_at_different_iterations_fill_one_batch(shouting: Callable[..., Any]) -> None:
    script = shouting()
    run([question("long", "abcd"), question("short", "a")], script)
    assert ("write", 2) in script.batches[3:]  # the short one's answer, the long one's second query


@settings(deadline=None, max_examples=30)
@given(texts=st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=6), data=st.data())
def test_neither_company_nor_order_changes_a_trajectory(shouting, texts, data) -> None:
    questions = [question(str(n), text) for n, text in enumerate(texts)]
    alone = {q.id: said(run([q], shouting())[0]) for q in questions}
    shuffled = data.draw(st.permutations(questions))
    assert {trace.question_id: said(trace) for trace in run(shuffled, shouting())} == alone


@pytest.fixture(scope="session")
def shouting(scripting: type[Any]) -> Callable[..., Any]:
    """A model that repeats its prompt in capitals, and a knowledge base that has two passages for every query."""

    def make(say: Callable[[str], str] = str.upper) -> Any:
        return scripting(say=say, find=lambda query, base: [f"{query}!", f"{query}?"])

    return make


def test_a_trace_shows_every_step_and_what_it_cost(shouting: Callable[..., Any]) -> None:
    (trace,) = run([question("one", "ab")], shouting())
    assert [step.operator for step in trace.steps] == [
        *("rewrite", "search", "judge"),
        *("rewrite", "search", "judge", "liken"),
        "answer",
    ]
    assert trace.steps[1].queries == ("ASK: AB 0",)
    assert [(hit.passage_id, hit.base, hit.rank) for hit in trace.steps[1].found] == [
        ("ASK: AB 0!#0.0", "texts", 1),
        ("ASK: AB 0?#0.0", "texts", 2),
    ]
    assert [hit.entry_id for hit in trace.hits] == ["ASK: AB 0!", "ASK: AB 0?", "ASK: AB 1!", "ASK: AB 1?"]
    assert trace.steps[2].probability == 0.5
    words = 3 + 3 + 7  # each reply is its prompt
    assert (trace.tokens["generated"], trace.tokens["read"], trace.tokens["calls"]) == (words, words, 5)
    assert (trace.tokens["searches"], trace.tokens["documents_read"], trace.tokens["iterations"]) == (2, 2, 2)
    assert trace.ended == "after 1"
    assert from_row(json.loads(json.dumps(to_row(trace)))) == trace


@pytest.mark.parametrize("retries", [False, True])
def test_independent_steps_are_one_round_and_stand_in_the_trace_in_order(scripting: type[Any], retries: bool) -> None:
    def say(prompt: str) -> str:
        return "" if prompt.startswith("1") else prompt

    def part(number: int) -> Steps[list[str]]:
        first = yield from write("summarize", 0, str(number), {}, max_tokens=8, form="text")
        (second,) = yield from gather([write("reason", 0, f"{first.text} more", {}, max_tokens=8)])
        return [first.text, second.text]

    def start(_: Question) -> Steps[TrajectoryResult]:
        nothing = yield from gather([])
        parts = yield from gather([part(number) for number in range(3)])
        return TrajectoryResult(f"{parts} {nothing}", "ended")

    script = scripting(say=say, retries=retries)
    (trace,) = TrajectoryPipeline("test", start, script.tools).run([question("one", "a")], [Image.new("RGB", (8, 8))])
    assert trace.answer == f"{[['0', '0 more'], ['', ' more'], ['2', '2 more']]} []"
    assert script.batches == [("write", 3), *([("write", 1)] if retries else []), ("write", 3)]
    texts = [step.text for step in trace.steps]
    assert texts == ["0", "", *([""] if retries else []), "2", "0 more", " more", "2 more"]
