"""PMSR over a search tool, replayed from its appendices B and C: every prompt and search of a question, by hand."""

from typing import Any

import pytest
from PIL import Image

from reflectune.core.types import Question
from reflectune.inference.operators.trajectory import Tools, TrajectoryPipeline
from reflectune.inference.pipelines.mi_rag import REPEATS
from reflectune.inference.pipelines.pmsr_web import PmsrWeb, PmsrWebSettings, pieces
from reflectune.inference.trace import Trace

ASKED = Question("q", "image.png", "Who built it?")
REASON = (
    "Question: Who built it?\nKnowledge: {}\n\nBased on image, description and knowledge, summarize correct and "
    "relevant information with image and question.\n"
)
SUMMARY = (
    "[no image] Query: {}\n\nSummarize the following web content, focusing on information relevant to the query. "
    "Provide a concise summary in a single paragraph:\n\nTitle: {}\nContent: {}\n"
)


def say(prompt: str) -> str:
    if "Rewrite this query" in prompt:
        return "Kirk Bridge\nbuilder"
    if "## Output" in prompt:
        return "## Output\nQuestion: Who was the engineer?"
    if "Summarize the following web content" in prompt:
        return "" if "page 2" in prompt else f"About {prompt.split('Title: ')[1].splitlines()[0]}."
    if "summarize correct and relevant information" in prompt:
        return "It is Kirk Bridge."
    return "Ann Kirk"


def find(query: str, base: str) -> list[str]:
    return [f"page {n} of {query[:6]}" for n in (1, 2)] if base == "web" else [f"pair of {query[:6] or 'the image'}"]


def run(script: Any, tools: Tools | None = None, **settings: Any) -> Trace:
    asked_for = {"iterations": 1, "saturation": 0.9, "max_new_tokens": 8, "max_record_tokens": 64}
    trajectory = PmsrWeb(PmsrWebSettings(**{**asked_for, **settings}), {"pairs": 2})
    pipeline = TrajectoryPipeline("pmsr_web", trajectory, tools or script.tools)
    (trace,) = pipeline.run([ASKED], [Image.new("RGB", (8, 8))])
    return trace


def test_search_condense_summarise_step_by_step(scripting: type[Any]) -> None:
    script = scripting(say=say, find=find)
    trace = run(script, web_results=2, condense_above=10)
    first, second = "Kirk Bridge builder", "Who was the engineer?"
    trajectory = next(text for kind, text, *_ in script.asked if kind == "write" and "## Output" in text)
    assert "Knowledge: It is Kirk Bridge.\n" in trajectory
    assert script.asked == [
        ("search", "", "pairs", 2),
        ("write", REASON.format("pair of the image: pair of the image")),
        (
            "write",
            "[no image] Rewrite this query to be a concise question for search engine including main entity and "
            "essential point.\n\nQuery: Question: Who built it?\nIt is Kirk Bridge.\n\n",
        ),
        ("write", trajectory),
        ("search", first, "web", 2),
        ("search", first, "pairs", 1),
        ("search", second, "web", 2),
        ("search", second, "pairs", 1),
        ("write", SUMMARY.format(first, "page 1 of Kirk B", "page 1 of Kirk B")),
        ("write", SUMMARY.format(first, "page 2 of Kirk B", "page 2 of Kirk B")),
        ("write", SUMMARY.format(second, "page 1 of Who wa", "page 1 of Who wa")),
        ("write", SUMMARY.format(second, "page 2 of Who wa", "page 2 of Who wa")),
        (
            "write",
            REASON.format(
                "page 1 of Kirk B: About page 1 of Kirk B.\npage 1 of Who wa: About page 1 of Who wa.\n"
                "pair of Kirk B: pair of Kirk B\npair of Who wa: pair of Who wa"
            ),
        ),
        (
            "write",
            "Please answer the following question using the provided information and image.\n\nQuestion: Who built it?"
            "\nRelevant Knowledge: It is Kirk Bridge.\nIt is Kirk Bridge.\n\nBased on the retrieved document, answer "
            "the question with a single word or phrase.",
        ),
    ]
    assert (trace.answer, trace.ended) == ("Ann Kirk", "after 1 iterations")
    assert [step.operator for step in trace.steps].count("summarize") == 4
    assert ("write", 4) in script.batches  # the summaries are one round
    assert {hit.base for step in trace.steps for hit in step.found} == {"web", "pairs"}
    read = [passage.passage.text for passage in trace.passages]
    assert read[:2] == ["pair of the image", "About page 1 of Kirk B."]


@pytest.mark.parametrize(
    ("settings", "queries", "asked"),
    [
        ({}, ["Question: Who built it?\nIt is Kirk Bridge.\n", "Who was the engineer?"], 1.0),
        ({"scopes": "record"}, ["Question: Who built it?\nIt is Kirk Bridge.\n"], 0.0),
        ({"scopes": "record", "condense_above": 0}, ["Kirk Bridge builder"], 0.0),
        ({"scopes": "trajectory", "condense_above": 0}, ["Who was the engineer?"], 1.0),
    ],
    ids=["a short query stays", "the record's", "always condensed", "the trajectory's"],
)
def test_queries_are_of_both_scopes_and_condensed_where_they_are_long(
    settings: dict[str, Any], queries: list[str], asked: float, scripting: type[Any], share_asked
) -> None:
    trace = run(scripting(say=say, find=find), **settings)
    assert [list(step.queries) for step in trace.steps if step.operator == "search"] == [[""], queries]
    assert share_asked(trace) == asked  # what is condensed asks nothing new


def test_a_reply_without_a_query_leaves_the_question_which_asks_nothing_new(scripting: type[Any], share_asked) -> None:
    script = scripting(say=lambda text: "I can't." if "## Output" in text else say(text), find=find)
    trace = run(script, scopes="trajectory")
    assert [step.queries for step in trace.steps if step.operator == "search"] == [("",), ("Who built it?",)]
    assert share_asked(trace) == 0.0


def test_it_stops_when_queries_repeat(scripting: type[Any]) -> None:
    trace = run(scripting(say=say, find=find, vector=lambda text: (1.0, 0.0)), iterations=4)
    assert trace.ended == REPEATS
    assert [step.operator for step in trace.steps].count("search") == 2  # the image's and one of words


def test_a_long_page_is_read_in_pieces() -> None:
    assert pieces("One.\n\n  Two. \n" + "x" * 2_500) == ["One.", "Two.", "x" * 1_000, "x" * 1_000, "x" * 500]
    assert pieces(" \n") == []
