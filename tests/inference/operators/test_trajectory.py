"""Trajectories of many questions: equal steps are one batch, and neither company nor a crash changes one."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.inference.operators.journal import Journal, remove_journal
from reflectune.inference.operators.trajectory import TrajectoryPipeline, TrajectoryResult
from reflectune.inference.operators.vocabulary import Steps, judge, liken, merge, search, write
from reflectune.inference.trace import Trace, from_row, to_row


def steps(question: Question) -> Steps[TrajectoryResult]:
    """As many rounds as the question has letters: a query, a search, a judgement, a comparison; then an answer."""
    queries: list[str] = []
    for iteration in range(len(question.text)):
        asked = {"question": f"{question.text} {iteration}"}
        query = yield from write("rewrite", iteration, "Ask: {question}", asked, max_tokens=8)
        found = merge((yield from search(iteration, [query.text], {"texts": [2]})))
        yield from judge(iteration, "Right? {question}", asked)
        alike = yield from liken(iteration, [query.text], queries)
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


def run(questions: Sequence[Question], script: Any, journal: Journal | None = None) -> list[Trace]:
    pipeline = TrajectoryPipeline("test", steps, script.tools, journal)
    return pipeline.run(questions, [Image.new("RGB", (8, 8))] * len(questions))


def said(trace: Trace) -> Trace:
    """A trace without its timings."""
    return from_row({**to_row(trace), "seconds": {}})


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


class Crash(Exception):
    pass


@pytest.fixture(scope="session")
def shouting(scripting: type[Any]) -> Callable[..., Any]:
    """A model that repeats its prompt in capitals, and a knowledge base that has two passages for every query."""

    def make(say: Callable[[str], str] = str.upper) -> Any:
        return scripting(say=say, find=lambda query, base: [f"{query}!", f"{query}?"])

    return make


@pytest.mark.parametrize("until", [0, 1, 4, 9])
def test_a_run_that_was_cut_off_goes_on_inside_its_trajectories(shouting, until: int, tmp_path) -> None:
    folder, questions = tmp_path / "journal", [question("one", "abc"), question("two", "ab")]
    whole = shouting()
    expected = [said(trace) for trace in run(questions, whole)]

    def say(prompt: str) -> str:
        if len(crashing.batches) > until:
            raise Crash
        return prompt.upper()

    crashing = shouting(say)
    with pytest.raises(Crash), Journal(folder, "test", "f") as journal:
        run(questions, crashing, journal)
    again = shouting()
    with Journal(folder, "test", "f") as journal:
        assert [said(trace) for trace in run(questions, again, journal)] == expected
    assert len(crashing.batches) + len(again.batches) == len(whole.batches) + 1  # the round that was cut off
    silent = shouting(lambda prompt: pytest.fail("everything has been asked"))
    with Journal(folder, "test", "f", process=1) as journal:  # another process of a launch finds it, too
        assert [said(trace) for trace in run(questions, silent, journal)] == expected
    remove_journal(folder, "test")
    assert not folder.exists()


def test_half_a_line_of_a_journal_is_a_round_that_was_not_carried_out(shouting, tmp_path) -> None:
    expected = [said(trace) for trace in run([question("one", "ab")], shouting())]
    with Journal(tmp_path, "test", "f") as journal:
        run([question("one", "ab")], shouting(), journal)
    path = tmp_path / "test.0.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    again = shouting()
    with Journal(tmp_path, "test", "f") as journal:
        assert [said(trace) for trace in run([question("one", "ab")], again, journal)] == expected
    assert again.batches == [("write", 1)]


def test_a_journal_of_other_settings_or_of_other_steps_is_refused(shouting: Callable[..., Any], tmp_path: Path) -> None:
    with Journal(tmp_path, "test", "f") as journal:
        run([question("one", "ab")], shouting(), journal)
    with pytest.raises(UserError, match="other settings"):
        Journal(tmp_path, "test", "g")
    path = tmp_path / "test.0.jsonl"
    header, *rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[0]["requests"] = "other"
    path.write_text("".join(json.dumps(row) + "\n" for row in (header, *rows)))
    with Journal(tmp_path, "test", "f") as journal, pytest.raises(UserError, match="another version"):
        run([question("one", "ab")], shouting(), journal)


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
