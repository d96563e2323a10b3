"""MM-R2 as its abstract has it: state, units, query inside them; every prompt and search of a question by hand."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from PIL import Image

from reflectune.core.images import Images
from reflectune.core.types import Passage, Question
from reflectune.formats.hits import PassageHit
from reflectune.inference.operators.budget import Budget
from reflectune.inference.operators.requests import SearchReply, SearchRequest
from reflectune.inference.operators.trajectory import Tools, TrajectoryPipeline
from reflectune.inference.pipelines.mm_r2 import MmR2, MmR2Settings
from reflectune.inference.trace import Trace, from_row, to_row

QUESTION = "What does this bird eat?"
READ = "Based on the retrieved document, answer the question with a single word or phrase."


def passage(entry: str, section: int, heading: str, text: str, index: int = 0) -> Passage:
    return Passage(entry, section, index, entry.capitalize(), "", heading, text)


KESTREL = [
    passage("kestrel", 0, "", "A falcon."),
    passage("kestrel", 1, "Diet", "Voles."),
    passage("kestrel", 1, "Diet", "Beetles.", 1),
]
MERLIN = [passage("merlin", 0, "Diet", "Larks."), passage("merlin", 2, "Range", "Moors.")]
RANKED = [(MERLIN[0], 0.9, 0.4), (KESTREL[2], 0.8, 0.7), (KESTREL[1], 0.7, 0.7), (MERLIN[1], 0.6, 0.4)]
FOUND = [*RANKED, (KESTREL[0], 0.5, 0.7)]
"""Passages with their own score, by which they are ranked, and their entry's."""
SCORES = {"Voles.": 1.0, "Beetles.": 3.0, "Larks.": 2.0, "Moors.": 9.0, "A falcon.": 9.0}


def searched(asked: Sequence[tuple[Images, SearchRequest]]) -> list[SearchReply]:
    hits = tuple(
        PassageHit(passage, score, rank, "pairs", {"passage": score, "entry": entry})
        for rank, (passage, score, entry) in enumerate(FOUND, start=1)
    )
    return [SearchReply(({"pairs": hits},)) for _ in asked]


def replies(state: str, units: str, query: str) -> Callable[[str], str]:
    def say(prompt: str) -> str:
        if "First say what" in prompt:
            return state
        if "knowledge map" in prompt:
            return units
        return query if "Write one search query" in prompt else "beetles"

    return say


STATE = "Need: what it eats\nReferent: kestrel\nConstraints: none"
TOLD = replies(STATE, "[2] > [3]", "Query: food of the kestrel")
STEPS = MmR2(MmR2Settings(candidates=9, passages=2, max_new_tokens=8, max_record_tokens=32))


def run(script: Any, budget: Budget | None = None, steps: MmR2 = STEPS) -> Trace:
    tools = Tools({"reader": script, "answerer": script}, searched, rerank=script.rerank, budget=budget or Budget())
    question = Question("q", "bird.png", QUESTION)
    (trace,) = TrajectoryPipeline("mm_r2", steps, tools).run([question], [Image.new("RGB", (8, 8))])
    assert from_row(to_row(trace)) == trace
    return trace


def scripted(scripting: type[Any], say: Callable[[str], str] = TOLD) -> Any:
    return scripting(say=say, score=lambda text: SCORES[text])


def test_a_question_is_asked_inside_the_units_that_were_chosen(scripting: type[Any]) -> None:
    script = scripted(scripting)
    trace = run(script)
    state = "Need: what it eats\nReferent: kestrel\nConstraints: none"
    assert script.asked == [
        (
            "write",
            f"Question: {QUESTION}\n\nThe question is about the image, and an encyclopedia has to be searched to "
            "answer it. First say what is searched for, in three lines of the following format:\n\n"
            "Need: what has to be found out.\n"
            "Referent: the name of what the image shows that the question is about, as precisely as you can.\n"
            "Constraints: what else must hold, such as a time or a place; none if nothing must.\n",
        ),
        (
            "write",
            f"Question: {QUESTION}\n{state}\nThe knowledge map has these units, each a section of an article:\n"
            "[1] Kestrel\n[2] Kestrel – Diet\n[3] Merlin – Diet\n[4] Merlin – Range\n\n"
            "Which units can hold what is needed? Go by the image, too. Reply with the numbers of at most three, the "
            "most likely one first, in the following format:\n\n[3] > [1]\n",
        ),
        (
            "write",
            f"Question: {QUESTION}\n{state}\nChosen units:\n[1] Kestrel – Diet\n[2] Merlin – Diet\n\n"
            "Write one search query to find what is needed in these units. Name the referent. Reply in the following "
            "format:\n\nQuery: the query.\n",
        ),
        ("rerank", "food of the kestrel", "Voles."),
        ("rerank", "food of the kestrel", "Beetles."),
        ("rerank", "food of the kestrel", "Larks."),
        ("write", f"{QUESTION} Kestrel: Diet. Beetles.\nMerlin: Diet. Larks. {READ}"),
    ]
    assert [step.operator for step in trace.steps] == ["rewrite", "search", "rerank", "rewrite", "rerank", "answer"]
    assert trace.steps[1].queries == ("kestrel",)
    assert (trace.answer, trace.ended) == ("beetles", "units searched: 2")
    assert [read.passage for read in trace.passages] == [KESTREL[2], MERLIN[0]]
    assert (trace.tokens["calls"], trace.tokens["replies_unread"]) == (4, 0)


@pytest.mark.parametrize(
    ("say", "searched_for", "query", "units", "unparsed"),
    [
        (replies("A falcon on a post.", "[2]", "Query: food"), "", "food", 1, 1),
        (replies(STATE, "The diet.", "Query: food"), "kestrel", "food", 3, 1),
        (replies(STATE, "[2]", "It eats."), "kestrel", QUESTION, 1, 1),
        (replies(STATE, "[1] [2] [3] [4]", "Query: food"), "kestrel", "food", 3, 0),
        (lambda prompt: "", "", QUESTION, 3, 3),
    ],
    ids=["no state", "no unit", "no query", "4", "nothing"],
)
def test_what_cannot_be_read_is_counted_and_has_a_fallback(
    say: Callable[[str], str], searched_for: str, query: str, units: int, unparsed: int, scripting
) -> None:
    script = scripted(scripting, say)
    trace = run(script)
    assert trace.steps[1].queries == (searched_for,)
    assert {place[1] for place in script.asked if place[0] == "rerank"} == {query}
    assert (trace.ended, trace.tokens["replies_unread"]) == (f"units searched: {units}", unparsed)


def test_a_budget_that_runs_out_leaves_the_chosen_units_in_their_order(scripting: type[Any]) -> None:
    whole = run(scripted(scripting))
    spent = sum(step.read + step.generated for step in whole.steps[:4])
    script = scripted(scripting)
    trace = run(script, Budget(question_tokens=spent))
    assert not [asked for asked in script.asked if asked[0] == "rerank"]
    assert [read.passage for read in trace.passages] == KESTREL[1:]
    assert (trace.answer, trace.limit) == ("beetles", {"question_tokens": spent})
    assert trace.ended == f"the question's {spent} tokens are used up"
