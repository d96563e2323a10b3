"""MI-RAG's algorithm 1, replayed: a scripting model and two knowledge bases, and every prompt and search in order."""

import dataclasses
from typing import Any

import pytest
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.inference.operators.trajectory import TrajectoryPipeline
from reflectune.inference.operators.trajectory_state import REMINDER
from reflectune.inference.pipelines.mi_rag import MiRag, MiRagSettings
from reflectune.inference.pipelines.recipe import PipelineParts
from reflectune.inference.running.config import PipelinesConfig
from reflectune.inference.scoring.scores import TraceScorer
from reflectune.inference.scoring.trajectories import answers_right
from reflectune.inference.trace import Trace

ASKED = Question("q", "image.png", "Who built it?")
DESCRIPTION, FIRST, SECOND = "A red bridge.", "It is Kirk Bridge.", "Ann Kirk built Kirk Bridge."
FOLLOW_UPS = "## Analysis\nThe builder is not known.\n## Queries\nQuestion 1: Where is it?\nQuestion 2: Whose is it?"
INSTRUCTION = "Based on the retrieved document, answer the question with a single word or phrase."


def say(prompt: str) -> str:
    """Description, first record, follow-up questions, second record, answer: by what the prompt asks for."""
    if "Concisely describe image" in prompt:
        return DESCRIPTION
    if "Generate two follow-up questions" in prompt:
        return FOLLOW_UPS
    if "summarize correct and relevant information" in prompt:
        return FIRST if DESCRIPTION in prompt else SECOND
    return "Ann Kirk"


def find(query: str, base: str) -> list[str]:
    """Passages that say which base and query they are of."""
    return [f"{base} {query.split()[-1]} {n}" for n in range(9)]


@pytest.fixture
def script(scripting: type[Any]) -> Any:
    return scripting(say=say, find=find)


def run(script: Any, **settings: Any) -> Trace:
    asked_for = {"iterations": 1, "max_new_tokens": 8, "max_record_tokens": 64}
    trajectory = MiRag(MiRagSettings(**{**asked_for, **settings}), {"texts": 4, "pairs": 2})
    (trace,) = TrajectoryPipeline("mi_rag", trajectory, script.tools).run([ASKED], [Image.new("RGB", (8, 8))])
    return trace


def test_algorithm_1_step_by_step(script: Any) -> None:
    trace = run(script)

    describe, *searches_0, reason_0, follow_up, _, _, _, _, _, _, reason_1, answer = script.asked
    asked = "Question: Who built it?\n Concisely describe image which is relevant to question.\n"
    assert describe == ("write", asked)
    expanded = "Question: Who built it?\nA red bridge.\n"
    assert searches_0 == [("search", expanded, "texts", 4), ("search", expanded, "pairs", 2)]
    assert reason_0 == (
        "write",
        "Question: Who built it?\nKnowledge: A red bridge.\n"
        + "\n".join(f"texts bridge. {n}: texts bridge. {n}" for n in range(4))
        + "\n"
        + "\n".join(f"pairs bridge. {n}: pairs bridge. {n}" for n in range(2))
        + "\n\nBased on image, description and knowledge, summarize correct and relevant information with image and "
        "question.\n",
    )
    assert follow_up[1].startswith("Question: Who built it?\nKnowledge: It is Kirk Bridge.\n\nPlease first analyze all")
    again = "Question: Who built it?\nIt is Kirk Bridge.\n"
    assert script.asked[5:11] == [
        *(("search", again, "texts", 2), ("search", again, "pairs", 1)),
        *(("search", "Where is it?", "texts", 1), ("search", "Where is it?", "pairs", 1)),
        *(("search", "Whose is it?", "texts", 1), ("search", "Whose is it?", "pairs", 0)),
    ]
    assert reason_1[1].splitlines()[:2] == ["Question: Who built it?", "Knowledge: texts Bridge. 0: texts Bridge. 0"]
    assert DESCRIPTION not in reason_1[1]
    assert FIRST not in reason_1[1]  # a record is made from what is new
    assert answer == (
        "write",
        "Please answer the following question using the provided information and image.\n\n"
        "Question: Who built it?\nRelevant Knowledge: It is Kirk Bridge.\nAnn Kirk built Kirk Bridge.\n\n"
        + INSTRUCTION,
    )
    assert (trace.answer, trace.ended) == ("Ann Kirk", "after 1 iterations")
    assert trace.tokens["searches"] == 1 + 3


def test_a_run_that_would_search_nothing_is_refused() -> None:
    parts = PipelineParts(None, retriever=object())  # no index of passages
    assert MiRagSettings().budgets(parts) == {"pairs": 10}
    with pytest.raises(UserError, match="would search nothing"):
        MiRagSettings(pair_passages=0).budgets(parts)


def test_a_reply_without_questions_leaves_the_whole_budget_to_the_expanded_query(scripting: type[Any]) -> None:
    script = scripting(say=lambda prompt: "I don't know." if "follow-up" in prompt else say(prompt), find=find)
    trace = run(script)
    again = "Question: Who built it?\nIt is Kirk Bridge.\n"
    assert script.asked[5:7] == [("search", again, "texts", 4), ("search", again, "pairs", 2)]
    assert trace.answer == "Ann Kirk"


def test_what_is_found_again_is_read_again_but_listed_once(script: Any) -> None:
    trace = run(script, iterations=3)
    ids = [passage.passage.id for passage in trace.passages]
    assert len(ids) == len(set(ids))
    assert [step.iteration for step in trace.steps if step.operator == "reason"] == [0, 1, 2, 3]


def test_reflectivas_checkpoint_is_asked_as_it_was_tuned(scripting: type[Any]) -> None:
    """The token of relevance before its answer is left out."""
    script = scripting(say=lambda prompt: "[Relevant] Ann Kirk" if "Give a short" in prompt else say(prompt), find=find)
    trace = run(script, answer_form="reflectiva", answer_each=True)
    assert script.asked[-1][1] == (
        "Consider this paragraph: <paragraph>It is Kirk Bridge.\nAnn Kirk built Kirk Bridge.</paragraph>. "
        "Give a short answer."
    )
    assert trace.answer == "Ann Kirk"
    truth = dataclasses.replace(ASKED, answers=("Ann Kirk",))
    assert answers_right([truth], {ASKED.id: trace}, 1, TraceScorer("exact_match")) == {ASKED.id: [1.0, 1.0]}
    problem = "`answer_form: reflectiva` asks for a short answer: leave out `detailed_answer`"
    for kind in (MiRagSettings, PipelinesConfig):
        assert problem in kind(answer_form="reflectiva", detailed_answer=True).problems()


def requested(script: Any, **settings: Any) -> list[tuple[str, int]]:
    """Return each written step with the longest reply that it asks for."""
    lengths: list[int] = []
    write = script.write
    script.write = lambda asked, max_tokens: lengths.extend([max_tokens] * len(asked)) or write(asked, max_tokens)
    trace = run(script, **settings)
    return list(zip((step.operator for step in trace.steps if step.operator != "search"), lengths, strict=True))


def test_a_short_answer_alone_has_a_length_of_its_own(script: Any) -> None:
    steps = [("caption", 64), ("reason", 64), ("rewrite", 64), ("reason", 64), ("answer", 64)]
    assert requested(script, detailed_answer=True) == steps
    assert requested(script) == [*steps[:-1], ("answer", 8)]


SOURCES = {
    "expansion": (["Question: Who built it?\nIt is Kirk Bridge.\n"], [4]),
    "generation": (["Where is it?", "Whose is it?"], [2, 2]),
    "both": (["Question: Who built it?\nIt is Kirk Bridge.\n", "Where is it?", "Whose is it?"], [2, 1, 1]),
}


@pytest.mark.parametrize(("source", "searched"), SOURCES.items(), ids=SOURCES)
def test_queries_of_one_source_have_the_whole_budget(script: Any, source: str, searched: Any) -> None:
    run(script, query_sources=source)
    of_texts = [entry[1::2] for entry in script.asked if entry[0] == "search" and entry[2] == "texts"][1:]
    assert of_texts == [(query, top) for query, top in zip(*searched, strict=True)]


def test_an_unreadable_reply_is_asked_for_once_more_with_a_reminder(scripting: type[Any]) -> None:
    def unread(prompt: str) -> str:
        return "## Analysis\nWhich?" if "follow-up" in prompt and not prompt.endswith(REMINDER) else say(prompt)

    script = scripting(say=unread, find=find)
    script.retries = True
    trace = run(script)
    assert [text for kind, text, *_ in script.asked if kind == "write"][3].endswith(f"question 2.\n{REMINDER}")
    assert [step.queries[1:] for step in trace.steps if step.operator == "search"] == [
        (),
        ("Where is it?", "Whose is it?"),
    ]
    assert [trace.tokens[name] for name in ("replies_retried", "replies_unread", "queries_unread")] == [1, 0, 0]
    silent = scripting(say=lambda prompt: "No." if "follow-up" in prompt else say(prompt), find=find)
    silent.retries = True
    trace = run(silent)
    assert [trace.tokens[name] for name in ("replies_retried", "replies_unread", "queries_unread")] == [1, 1, 1]


def test_an_empty_record_is_counted_and_no_query_is_expanded_by_it(scripting: type[Any]) -> None:
    def say_once(prompt: str) -> str:
        return " " if "Knowledge: texts" in prompt and "summarize" in prompt else say(prompt)

    script = scripting(say=say_once, find=find)
    trace = run(script, iterations=2)
    assert [step.queries[0] for step in trace.steps if step.operator == "search"][1:] == [
        "Question: Who built it?\nIt is Kirk Bridge.\n"
    ] * 2
    assert trace.tokens["records_empty"] == 2
    assert "Relevant Knowledge: It is Kirk Bridge.\n\n" in script.asked[-1][1]
