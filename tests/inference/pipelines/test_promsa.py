"""ProMSA: every prompt, search and result of a question, written out by hand."""

import dataclasses
import json
from typing import Any

import pytest
from PIL import Image

from reflectune.core.types import Question
from reflectune.inference.operators.budget import Budget
from reflectune.inference.operators.models import conversation
from reflectune.inference.operators.requests import Prompt
from reflectune.inference.operators.tool_calls import Action, keeps_format, read_action
from reflectune.inference.operators.trajectory import TrajectoryPipeline
from reflectune.inference.operators.trajectory_state import REMINDER
from reflectune.inference.pipelines.promsa import LAST, SYSTEM, Promsa, PromsaSettings
from reflectune.inference.scoring.scores import TraceScorer
from reflectune.inference.scoring.trajectories import trajectories
from reflectune.inference.trace import Trace, from_row, to_row

QUESTION = "What does this bird eat?"
BIRDS = ["kestrel", "merlin", "hobby", "osprey"]
IMAGE = '<thinking>Which bird?</thinking>\n<tool_call>{"name": "image_search", "arguments": {}}</tool_call>'
TEXT = (
    "<thinking>A merlin.</thinking>\n"
    '<tool_call>{"name": "text_search", "arguments": {"query": "merlin diet"}}</tool_call>'
)
ANSWER = "<thinking>It hunts larks.</thinking>\n<answer> larks </answer>"
UNKNOWN = '<tool_call>{"name": "web", "arguments": {}}</tool_call>'
ERROR = "Error: not a call. Call image_search, or text_search with a query, as JSON."
BEGIN = f"[system] {SYSTEM} [user] {QUESTION} Answer the question with a single word or phrase."


def run(script: Any, *, base: str = "texts", tools: Any = None, **settings: Any) -> Trace:
    steps = Promsa(PromsaSettings(max_record_tokens=32, max_new_tokens=8, call_passages=2, **settings), base)
    asked = Question("q", "bird.png", QUESTION)
    return TrajectoryPipeline("promsa", steps, tools or script.tools).run([asked], [Image.new("RGB", (8, 8))])[0]


def scripted(scripting: type[Any], *replies: str, **more: Any) -> Any:
    said = iter(replies)
    found = {"pairs": BIRDS, "texts": ["lark", "kestrel"]}
    return scripting(say=lambda prompt: next(said), find=lambda query, base: found[base], **more)


def test_every_prompt_and_search_of_a_trajectory(scripting: type[Any]) -> None:
    script = scripted(scripting, IMAGE, IMAGE, TEXT, ANSWER)
    trace = run(script)
    first = f"{BEGIN} [assistant] {IMAGE} [tool] - kestrel: kestrel\n\n- merlin: merlin"
    second = f"{first} [assistant] {IMAGE} [tool] - hobby: hobby\n\n- osprey: osprey"  # entries that are new
    third = f"{second} [assistant] {TEXT} [tool] - lark: lark"
    assert script.asked == [
        ("write", BEGIN),
        ("search", "", "pairs", 2),
        ("write", first),
        ("search", "", "pairs", 4),
        ("write", second),
        ("search", "merlin diet", "texts", 6),
        ("write", third),
    ]
    assert (trace.answer, trace.ended) == ("larks", "answered in turn 4")
    assert [read.passage.entry_id for read in trace.passages] == [*BIRDS, "lark"]
    assert trace.tokens["image_search_calls"] == 2
    assert trace.tokens["text_search_calls"] == 1
    assert trace.tokens["calls_unread"] == trace.tokens["replies_unread"] == 0
    assert from_row(to_row(trace)) == trace
    measured: Any = trajectories(
        [Question("q", "bird.png", QUESTION)],
        {"promsa": {"q": trace}},
        seed=0,
        measure=TraceScorer("exact_match"),
        names={},
    )
    assert measured["promsa"]["asked"]["value"] == 0.5  # the second search has the image alone, the third a query


def test_an_agent_that_knows_the_tools_has_no_system_prompt(scripting: type[Any]) -> None:
    script = scripted(scripting, ANSWER)
    run(script, describe_tools=False)
    assert script.asked == [("write", BEGIN.removeprefix(f"[system] {SYSTEM} [user] "))]


@pytest.mark.parametrize(
    ("replies", "settings", "results", "answer", "ended"),
    [
        pytest.param([ANSWER], {}, [], "larks", "answered in turn 1", id="no search"),
        pytest.param(["Larks."], {}, [], "Larks.", "a reply without an action", id="no action"),
        pytest.param([UNKNOWN, ANSWER], {}, [ERROR], "larks", "answered in turn 2", id="no such tool"),
        pytest.param(
            ["<tool_call>image</tool_call>", ANSWER], {}, [ERROR], "larks", "answered in turn 2", id="no JSON"
        ),
        pytest.param(
            [IMAGE, ANSWER],
            {"image_calls": 0},
            ["Error: there are no further calls of image_search."],
            "larks",
            "answered in turn 2",
            id="no call left",
        ),
        pytest.param([TEXT], {"turns": 1}, None, "", "no answer in 1 turns", id="no turn left"),
    ],
)
def test_a_trajectory_ends_with_an_answer_or_a_reason(
    scripting: type[Any], replies: list[str], settings: Any, results: list[str] | None, answer: str, ended: str
) -> None:
    script = scripted(scripting, *replies)
    trace = run(script, **settings)
    assert (trace.answer, trace.ended) == (answer, ended)
    if results is not None:
        rounds = "".join(f" [assistant] {r} [tool] {t}" for r, t in zip(replies, results, strict=False))
        assert script.asked[-1] == ("write", BEGIN + rounds)
        assert trace.tokens["calls_unread"] == results.count(ERROR)


def test_an_unreadable_reply_is_asked_for_once_more(scripting: type[Any]) -> None:
    script = scripted(scripting, IMAGE, "Larks?", ANSWER, retries=True)
    trace = run(script)
    first = f"{BEGIN} [assistant] {IMAGE} [tool] - kestrel: kestrel\n\n- merlin: merlin"
    assert script.asked[2:] == [("write", first), ("write", first + REMINDER)]
    assert (trace.answer, trace.tokens["replies_retried"], trace.tokens["replies_unread"]) == ("larks", 1, 0)


def test_a_summarizer_shortens_passages(scripting: type[Any]) -> None:
    script = scripted(scripting, IMAGE, "A falcon.", "A small falcon.", ANSWER)
    run(script, page_summaries="reader")
    assert script.asked[-1][1] == f"{BEGIN} [assistant] {IMAGE} [tool] - A falcon.\n\n- A small falcon."


@pytest.mark.parametrize(("reply", "answer"), [(ANSWER, "larks"), ("Larks.", "Larks."), (TEXT, "")])
def test_a_spent_budget_asks_for_the_answer(scripting: type[Any], reply: str, answer: str) -> None:
    script = scripted(scripting, IMAGE, reply)
    trace = run(script, tools=dataclasses.replace(script.tools, budget=Budget(question_tokens=1)))
    assert script.asked[1:] == [("write", f"{BEGIN} [assistant] {IMAGE} [tool] {LAST}")]
    assert (trace.answer, trace.limit) == (answer, {"question_tokens": 1})
    assert [step.iteration for step in trace.steps] == [0, 1]


def test_results_that_do_not_fit_are_left_out() -> None:
    prompt = Prompt("{question}", {"question": "q"}, rounds=(("a", "one"), ("b", "two")))
    assert prompt.droppable == 2
    assert [prompt.text(1)[f"result_{n}"] for n in range(2)] == ["(left out)", "two"]


def test_a_server_reads_rounds_as_turns() -> None:
    prompt = Prompt("{question}", {"question": "q"}, system="s", image=False, rounds=(("a", "one"),))
    assert conversation((), prompt) == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "q"}]},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "<tool_response>\none\n</tool_response>"},
    ]


@pytest.mark.parametrize(
    ("reply", "action", "formed"),
    [
        (IMAGE, Action("image_search"), True),
        (TEXT, Action("text_search", "merlin diet"), True),
        (ANSWER, Action(answer="larks"), True),
        ("<answer>larks</answer>", Action(answer="larks"), False),
        (ANSWER + " or so", Action(answer="larks"), False),
        (IMAGE + ANSWER.split("\n")[1], Action("image_search"), False),
        ('<tool_call>{"name": "text_search", "arguments": "x"}', Action("text_search"), False),
        ("<tool_call>[1]</tool_call>", None, False),
        ("<thinking>x</thinking><answer> </answer>", None, False),
        ("Larks.", None, False),
    ],
)
def test_an_action_is_read_from_a_reply(reply: str, action: Action | None, formed: bool) -> None:
    assert read_action(reply) == action
    assert keeps_format(reply) is formed


def test_the_tools_of_the_system_prompt_are_json() -> None:
    lines = [json.loads(line) for line in SYSTEM.splitlines() if line.startswith('{"type"')]
    assert [line["function"]["name"] for line in lines] == ["image_search", "text_search"]
