"""MI-RAG's algorithm 1, replayed: a scripting model and two knowledge bases, and every prompt and search in order."""

from typing import Any

import pytest
from PIL import Image

from reflectune.core.types import Question
from reflectune.inference.operators.trajectory import TrajectoryPipeline
from reflectune.inference.pipelines.iterative import RecordSettings
from reflectune.inference.pipelines.mi_rag import MiRag
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
    trajectory = MiRag(RecordSettings(**{**asked_for, **settings}), {"texts": 4, "pairs": 2})
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


def test_the_papers_own_last_words(script: Any) -> None:
    run(script, detailed_answer=True)
    assert script.asked[-1][1].endswith("Based on the information, provide a detailed answer to the question.")
