"""ReAG, WikiSeeker and IBA: every prompt, search and record of a question, written out by hand."""

from collections.abc import Sequence
from typing import Any

import pytest
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.inference.operators.trajectory import Tools, TrajectoryPipeline
from reflectune.inference.pipelines.iba import Iba, IbaSettings, scaled
from reflectune.inference.pipelines.iterative import crop_boxes
from reflectune.inference.pipelines.reag import CRITIC_SYSTEM, THINK_SYSTEM, ReAG, ReagSettings
from reflectune.inference.pipelines.wikiseeker import WikiSeeker, WikiSeekerSettings
from reflectune.inference.trace import Trace, from_row, to_row

QUESTION = "What does this bird eat?"
SHORT = "Answer the question with a single word or phrase."
READ = "Based on the retrieved document, answer the question with a single word or phrase."


def run(steps: Any, script: Any, tools: Tools | None = None, **question: Any) -> Trace:
    asked = Question("q", "bird.png", QUESTION, **question)
    return TrajectoryPipeline("p", steps, tools or script.tools).run([asked], [Image.new("RGB", (8, 8))])[0]


# ReAG. A scripted passage is its entry's only one, and its title is its text: "kestrel: kestrel".


def critic(passage: str) -> tuple[str, str]:
    return (
        "judge",
        f"[system] {CRITIC_SYSTEM} [user] Here is the question on the image above: \n{QUESTION}\n\n"
        f"Here is the text passage to analyze:\n{passage}: {passage}\n\n"
        "Does the text passage contain at least one sentence that may have some information usefule to answer the user "
        'question? \n"Yes"/"No" answer: ',
    )


def iba(passages: int) -> Iba:
    return Iba(IbaSettings(candidates=9, passages=passages, max_new_tokens=8, max_record_tokens=32))


SHORT_REPLIES: dict[str, Any] = {"max_new_tokens": 8, "max_record_tokens": 32}
REAG = ReAG(ReagSettings(top_n=3, candidates=9, critic_threshold=0.1, **SHORT_REPLIES))
BIRDS = {"kestrel": 0.2, "merlin": 0.1, "hobby": 0.9}


def birds(scripting: type[Any], **more: Any) -> Any:
    return scripting(
        find=lambda query, base: list(BIRDS),
        probability=lambda prompt: next(p for name, p in BIRDS.items() if f"{name}: {name}" in prompt),
        **more,
    )


def test_reag_reads_what_its_critic_keeps(scripting: type[Any]) -> None:
    script = birds(scripting, say=lambda prompt: "mice")
    trace = run(REAG, script)
    assert script.asked == [
        ("search", "", "pairs", 9),
        critic("kestrel"),
        critic("merlin"),
        critic("hobby"),
        (
            "write",
            f"{QUESTION}\n\nThe following paragraphs may contain useful information to help answer the question "
            "correctly:\n<paragraph>kestrel: kestrel</paragraph>\n\n\n<paragraph>hobby: hobby</paragraph>\n\n.\n"
            + READ,
        ),
    ]
    assert script.batches == [("search", 1), ("judge_each", 1), ("write", 1)]
    assert [step.operator for step in trace.steps] == ["search", "judge", "answer"]
    assert trace.steps[1].each == (0.2, 0.1, 0.9)  # merlin's 0.1 isn't above 0.1
    assert (trace.answer, trace.ended) == ("mice", "2 of 3 passages kept")
    assert [read.passage.entry_id for read in trace.passages] == ["kestrel", "hobby"]
    assert trace.tokens["calls"] == 4
    assert from_row(to_row(trace)) == trace


def test_reag_answers_without_passages_if_none_is_kept(scripting: type[Any]) -> None:
    script = scripting(find=lambda query, base: ["kestrel"], probability=lambda prompt: 0.0, say=lambda prompt: "mice")
    trace = run(REAG, script)
    assert script.asked[2:] == [("write", f"{QUESTION} {SHORT}")]
    assert (trace.answer, trace.ended, trace.passages) == ("mice", "0 of 1 passages kept", ())


def test_reag_thinks_and_its_answer_is_cut_out(scripting: type[Any]) -> None:
    script = birds(scripting, say=lambda prompt: "<think>A hobby, not a fly.</think>\n<answer> mice </answer>")
    thinking = ReagSettings(top_n=3, candidates=9, critic_threshold=0.5, think=True, **SHORT_REPLIES)
    trace = run(ReAG(thinking), script)
    assert trace.answer == "mice"
    assert trace.steps[-1].text.startswith("<think>A hobby")  # its thoughts are asked for, and stay in the trace
    assert script.asked[-1][1] == (
        f"[system] {THINK_SYSTEM} [user] {QUESTION}\n\nThe following paragraphs may contain useful information to help "
        "answer the question correctly:\n<paragraph>hobby: hobby</paragraph>\n\n.\n"
    )


def test_reag_opens_the_entries_that_look_most_alike_in_the_whole_image_or_in_a_part(scripting: type[Any]) -> None:
    found = iter([["kestrel", "merlin"], ["hobby", "kestrel"]])  # scores 0.9 and 0.8 each
    script = scripting(find=lambda query, base: next(found), probability=lambda prompt: 0.0)
    run(ReAG(ReagSettings(top_n=2, candidates=9, critic_threshold=0.1, crop=0.5, **SHORT_REPLIES)), script)
    assert script.asked[:2] == [("search", "", "pairs", 9), ("search", "", "pairs", 9, (0.25, 0.25, 0.75, 0.75))]
    assert script.asked[2:4] == [critic("kestrel"), critic("hobby")]


@pytest.mark.parametrize(
    ("meta", "crop", "expected"),
    [
        pytest.param({}, 0.0, (), id="nothing asked for"),
        pytest.param({}, 1.0, ((0.0, 0.0, 1.0, 1.0),), id="all of it"),
        pytest.param({"box": "0 0.5 .75 1"}, 0.5, ((0.0, 0.5, 0.75, 1.0),), id="a box goes before the centre"),
        pytest.param({"box": "[0, 0.5, 0.75, 1.0]"}, 0.0, ((0.0, 0.5, 0.75, 1.0),), id="a list"),
        pytest.param({"other": "0 0 1 1"}, 0.5, ((0.25, 0.25, 0.75, 0.75),), id="no box"),
    ],
)
def test_the_part_is_the_questions_box_or_the_centre(meta: dict[str, str], crop: float, expected: object) -> None:
    assert crop_boxes(Question("q", "bird.png", QUESTION, meta=meta), crop, "box") == expected


@pytest.mark.parametrize(
    "told", ["0 0 1", "10 20 110 220", "0.5 0 0.5 1", "-0.1 0 1 1"], ids=lambda told: told.replace(" ", "_")
)
def test_an_invalid_box_is_refused(told: str) -> None:
    with pytest.raises(UserError, match=r"question q: `box` is `.*`, not a box"):
        crop_boxes(Question("q", "bird.png", QUESTION, meta={"box": told}), 0.0, "box")


# WikiSeeker.

REFINE = (
    f"Question: {QUESTION}\n\nThe question is about the image, and an encyclopedia has to be searched to answer it. "
    "Say what the image shows as precisely as you can, then write one search query that names it and what is asked "
    "about it.\nYour output should be in the following format:\n\nQuery: the query.\n"
)
INSPECT = (
    f"Question: {QUESTION}\nRetrieved text: kestrel: kestrel\nmerlin: merlin\n\nIs the retrieved text about what the "
    "image shows, and does it hold what is needed to answer the question? Answer Yes or No."
)
WIKISEEKER = WikiSeeker(WikiSeekerSettings(pair_passages=2, max_new_tokens=8, max_record_tokens=32))


@pytest.mark.parametrize(
    ("reply", "query"),
    [
        pytest.param("A small falcon.\nQuery: kestrel diet", "kestrel diet", id="a query"),
        pytest.param("A small falcon.", QUESTION, id="no query, so the question"),
    ],
)
def test_wikiseekers_inspector_passes_to_the_answerer_who_sees_no_image(scripting, reply: str, query: str) -> None:
    reader = scripting(
        say=lambda prompt: reply, find=lambda query, base: ["kestrel", "merlin"], probability=lambda prompt: 0.6
    )
    answerer = scripting(say=lambda prompt: "mice")
    tools = Tools({"reader": reader, "answerer": answerer}, reader.search)
    trace = run(WIKISEEKER, reader, tools)
    assert reader.asked == [("write", REFINE), ("search", query, "pairs", 2), ("judge", INSPECT)]
    assert answerer.asked == [("write", f"[no image] {QUESTION} kestrel: kestrel\nmerlin: merlin {READ}")]
    assert (trace.answer, trace.ended) == ("mice", "inspector passed")
    assert [read.passage.entry_id for read in trace.passages] == ["kestrel", "merlin"]


def test_wikiseekers_inspector_fails_to_what_the_model_knows(scripting: type[Any]) -> None:
    reader = scripting(
        say=lambda prompt: "voles", find=lambda query, base: ["kestrel", "merlin"], probability=lambda prompt: 0.5
    )
    tools = Tools({"reader": reader, "answerer": scripting(say=lambda prompt: "mice")}, reader.search)
    trace = run(WIKISEEKER, reader, tools)
    assert reader.asked[3:] == [("write", f"{QUESTION} {SHORT}")]
    assert (trace.answer, trace.ended, trace.passages) == ("voles", "inspector failed", ())


# IBA.

NAMES = ["kite", "kestrel", "merlin", "hobby"]  # similarities 0.9, 0.8, 0.7 and 0.6


def identify(prompt: str) -> str:
    if "Answer: X, Y, Z" in prompt:
        return "Answer: D, B"
    return '{"probabilities": [0.7, 0.2, 0.1]}' if "JSON" in prompt else "mice"


def test_iba_names_the_entity_then_ranks_its_passages(scripting: type[Any]) -> None:
    relevant = {"hobby": 3.0, "kestrel": 5.0, "kite": 4.0}
    script = scripting(say=identify, find=lambda query, base: NAMES, score=lambda text: relevant[text])
    trace = run(iba(passages=2), script)
    assert script.asked == [
        ("search", "", "pairs", 9),
        (
            "write",
            "The image shows one of these, or something related to one of them:\n"
            "A. kite\nB. kestrel\nC. merlin\nD. hobby\n\n"
            "Which three are the most likely? Go by the image. Reply with their letters, the most likely one first, in "
            "the following format:\n\nAnswer: X, Y, Z\n",
        ),
        (
            "write",
            f"Question: {QUESTION}\nThe image may show one of these:\nA. hobby\nB. kestrel\nC. kite\n\n"
            "How likely is each of them to be what the image shows? Reply with a JSON object alone, with one number "
            'from 0 to 1 for each in their order:\n\n{"probabilities": [...]}\n',
        ),
        ("rerank", QUESTION, "kite"),
        ("rerank", QUESTION, "kestrel"),
        ("rerank", QUESTION, "hobby"),
        # kestrel: 0.5 · 0.2 + 0.5 · 0.8 + 1 = 1.5; kite: 0.5 · 0.1 + 0.5 · 0.9 + 0.5 = 1; hobby: 0.35 + 0.3 + 0 = 0.65
        ("write", f"{QUESTION} kestrel: kestrel\nkite: kite {READ}"),
    ]
    assert (trace.answer, trace.ended) == ("mice", "identified hobby, kestrel, kite")
    assert [step.operator for step in trace.steps] == ["search", "rerank", "verify", "rerank", "answer"]
    assert trace.steps[3].each == (4.0, 5.0, 3.0)


@pytest.mark.parametrize(
    ("weights", "best"),
    [
        pytest.param((1.0, 0.0, 0.0), "hobby", id="identification"),
        pytest.param((0.0, 1.0, 0.0), "kite", id="similarity"),
        pytest.param((0.0, 0.0, 1.0), "kestrel", id="reranker"),
    ],
)
def test_each_weight_of_iba_alone(scripting: type[Any], monkeypatch, weights: Sequence[float], best: str) -> None:
    monkeypatch.setattr("reflectune.inference.pipelines.iba.WEIGHTS", weights)
    script = scripting(say=identify, find=lambda query, base: NAMES, score=lambda text: float(text == "kestrel"))
    (read,) = run(iba(passages=1), script).passages
    assert read.passage.entry_id == best


def test_iba_with_a_model_that_names_nothing_takes_the_entries_that_look_most_alike(scripting: type[Any]) -> None:
    script = scripting(say=lambda prompt: "A bird of prey.", find=lambda query, base: NAMES)
    trace = run(iba(passages=3), script)
    assert trace.ended == "identified kite, kestrel, merlin"
    assert [read.passage.entry_id for read in trace.passages] == ["kite", "kestrel", "merlin"]


def test_scores_are_scaled_to_what_any_reranker_has() -> None:
    assert scaled([-4.0, 0.0, 4.0]) == [0.0, 0.5, 1.0]
    assert scaled([2.0, 2.0]) == [0.0, 0.0]
    assert scaled([]) == []
