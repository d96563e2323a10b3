"""Reranking by a model: what it is asked, in order, and what becomes of each reply, the unreadable ones included."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from reflectune.core.types import Passage, Question
from reflectune.inference.operators import reranking
from reflectune.inference.operators.trajectory import TrajectoryPipeline, TrajectoryResult
from reflectune.inference.operators.vocabulary import Steps
from reflectune.inference.trace import Trace

QUESTION = Question("q", "image.png", "Who built it?")
SHOWN = re.compile(r"^\[Document [AB]\]: (\w)", re.MULTILINE)
"""The passages that a comparison shows as A and B."""


def passages(*names: str) -> list[Passage]:
    return [Passage(name, 0, 0, name, "", "", f"About {name}.") for name in names]


def run(script: Any, how: Any, names: str = "abc", pairs: Any = "all") -> tuple[str, Trace]:
    """The order that some passages come to, as a word, and the trace."""
    given = passages(*names)

    def start(question: Question) -> Steps[TrajectoryResult]:
        ranked = yield from reranking.rerank(how, question.text, given, pairs=pairs, max_tokens=8)
        return TrajectoryResult("", "ranked", passages=ranked)

    (trace,) = TrajectoryPipeline("test", start, script.tools).run([QUESTION], [Image.new("RGB", (8, 8))])
    return "".join(read.passage.entry_id for read in trace.passages), trace


def prefers(better: str) -> Callable[[str], str]:
    """A model that prefers what stands first in `better`, whatever its letter."""

    def say(prompt: str) -> str:
        a, b = SHOWN.findall(prompt)
        return "[Document A]" if better.index(a) < better.index(b) else "[Document B]"

    return say


# Pointwise.


def test_pointwise_asks_figure_10_of_each_and_sorts_by_the_share_of_yes(scripting: type[Any]) -> None:
    likely = {"a": 0.2, "b": 0.9, "c": 0.5}
    script = scripting(probability=lambda prompt: next(p for name, p in likely.items() if f"About {name}." in prompt))
    order, trace = run(script, "pointwise")
    assert order == "bca"
    assert [kind for kind, _ in script.asked] == ["judge"] * 3
    assert script.asked[1][1] == (
        "Given an image and question, read the provided document under RELATED DOCUMENT section and decide whether the "
        "answer can be derived from the document. Do not use your own knowledge.\n\n"
        "RELATED DOCUMENT:\nb: About b.\n\n"
        "Now given the image and the following question, assess whether the RELATED DOCUMENT is describing the image "
        "and provides the answer to the question.\n\nWho built it?\n\n"
        "Return one of these labels: 'Yes' or 'No'. Please directly return your label, do not include the reasoning "
        "process!\nYour evaluation is:"
    )
    assert [step.probability for step in trace.steps] == [0.2, 0.9, 0.5]
    assert script.batches == [("judge", 3)]


def test_equally_relevant_passages_keep_their_order(scripting: type[Any]) -> None:
    assert run(scripting(), "pointwise", "abcd")[0] == "abcd"


# Pairwise.


def test_pairwise_asks_figure_6(scripting: type[Any]) -> None:
    script = scripting(say=lambda prompt: "[Document B]")
    order, _ = run(script, "pairwise", "ab")
    assert order == "ba"
    assert script.asked == [
        (
            "write",
            "Given an image and a question to the image as following:\n\nWho built it?\n\n"
            "Now given two documents below, [Document A] and [Document B]. Which of the following documents is more "
            "relevant or the answer is in the document?\n\n[Document A]: a: About a.\n[Document B]: b: About b.\n\n"
            "The output should be exactly [Document A] or [Document B], do not include any other text.\n"
            "Output [Document A] or [Document B]:",
        )
    ]


PAIRS = {
    "all": (["ab", "ac", "bc"], "cba"),
    "both_orders": (["ab", "ac", "bc", "ba", "ca", "cb"], "cba"),
    "adjacent": (["bc", "ac"], "cab"),  # c passes b, then a; the two others keep their order
}


@pytest.mark.parametrize(("pairs", "asked", "expected"), [(k, *v) for k, v in PAIRS.items()], ids=PAIRS)
def test_pairs_are_compared_as_they_are_called(scripting, pairs: str, asked: list[str], expected: str) -> None:
    script = scripting(say=prefers("cba"))
    order, trace = run(script, "pairwise", pairs=pairs)
    assert ["".join(SHOWN.findall(str(prompt))) for _, prompt in script.asked] == asked
    assert order == expected
    assert trace.tokens["replies_unread"] == 0
    assert len(script.batches) == (2 if pairs == "adjacent" else 1)


def test_a_preference_for_a_letter_cancels_out_both_ways_round(scripting: type[Any]) -> None:
    always_b = scripting(say=lambda prompt: "[Document B]")
    assert run(always_b, "pairwise", pairs="all")[0] == "cba"
    assert run(always_b, "pairwise", pairs="both_orders")[0] == "abc"


# Listwise.


def test_listwise_asks_figure_7_once(scripting: type[Any]) -> None:
    script = scripting(say=lambda prompt: "[Document 2] > [Document 3] > [Document 1]")
    order, trace = run(script, "listwise")
    assert order == "bca"
    ((_, prompt),) = script.asked
    assert prompt == (
        "You are provided with 3 documents, each indicated by a numerical identifier [Document x], where x represents "
        "a number and should be at least 1 and at most 3.\nRank the documents based on their relevance to the visual "
        "question answering task:\n\nWho built it?\n\nRelated Documents:\n[Document 1]: a: About a.\n"
        "[Document 2]: b: About b.\n[Document 3]: c: About c.\n\nPlease carefully read all the documents and rank the "
        "3 documents above based on their relevance to the visual question answering task above.\nAll the passages "
        "should be included and listed using identifiers, in descending order of relevance. The output format should "
        "be [Document x] > [Document y] > ..., e.g., [Document 4] > [Document 2] > ..., x and y should be at least 1 "
        "and DO NOT exceed 3. Only respond with the ranking results, do not include anything else or explain.\n"
        "Your ranking:"
    )
    assert trace.steps[0].text == "[Document 2] > [Document 3] > [Document 1]"
    assert trace.tokens["replies_unread"] == 0


def test_a_document_that_the_context_did_not_hold_is_not_ranked(scripting: type[Any]) -> None:
    script = scripting(say=lambda prompt: "[Document 3] > [Document 2]", room=2)
    assert run(script, "listwise")[0] == "bac"


def test_two_documents_of_which_one_was_shown_are_not_compared(scripting: type[Any]) -> None:
    order, trace = run(scripting(say=lambda prompt: "[Document B]", room=1), "pairwise", "ab")
    assert (order, trace.tokens["replies_unread"]) == ("ab", 1)


BAD_REPLIES = {
    "no order": ("listwise", "Ann Kirk built it.", "abc", 1),
    "one left out": ("listwise", "[Document 3] > [Document 1]", "cab", 0),
    "both": ("pairwise", "[Document A] or [Document B]", "ab", 1),
    "a reason after it": ("pairwise", "[Document B]\nSince [Document A] is about something else.", "ba", 0),
}


@pytest.mark.parametrize(("how", "reply", "expected", "unread"), BAD_REPLIES.values(), ids=BAD_REPLIES)
def test_a_bad_reply_is_completed_or_counted(scripting, how: str, reply: str, expected: str, unread: int) -> None:
    order, trace = run(scripting(say=lambda prompt: reply), how, "".join(sorted(expected)))
    assert (order, trace.tokens["replies_unread"]) == (expected, unread)
    assert trace.steps[0].text == reply


@pytest.mark.parametrize("names", ["", "a"], ids=["none", "one"])
@pytest.mark.parametrize("how", ["none", "pointwise", "pairwise", "listwise"])
def test_fewer_than_two_are_not_asked_about(scripting: type[Any], how: str, names: str) -> None:
    script = scripting(say=lambda prompt: pytest.fail(prompt))
    assert run(script, how, names)[0] == names
    assert script.asked == []


@settings(deadline=None, max_examples=40)
@given(
    reply=st.text(st.sampled_from("[]Document 123AB>\n"), max_size=60),
    how=st.sampled_from(["pairwise", "listwise"]),
    pairs=st.sampled_from(["all", "both_orders", "adjacent"]),
)
def test_no_reply_loses_or_doubles_a_passage(scripting: type[Any], reply: str, how: str, pairs: str) -> None:
    order, _ = run(scripting(say=lambda prompt: reply), how, "abcd", pairs)
    assert sorted(order) == list("abcd")
