"""The teacher says what the evidence allows, and nothing that the prompt doesn't show."""

import json
from pathlib import Path

import pytest

from reflectune.core.types import Entry, Evidence, Question, Section
from reflectune.examples.lessons.teacher import NOTHING, UNKNOWN, TrajectoryTeacher, teacher_of
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base
from reflectune.inference.operators.query_reply import read_queries
from reflectune.inference.operators.requests import Prompt, WriteOperator, WriteRequest
from reflectune.inference.operators.tool_calls import keeps_format
from reflectune.inference.pipelines import mi_rag, pmsr

OAK = Entry(
    "oak",
    "Vik Oak",
    summary="A green oak on rock. Children draw it.",
    sections=(Section("Size", "It is 9 m tall."), Section("Neighbours", "It is old. Beside it stands the Ulm Tower.")),
)
TOWER = Entry(
    "tower",
    "Ulm Tower",
    summary="A red tower on sand.",
    sections=(Section("People", "After Ada Falk had declined, Ben Roth built it. A plaque records it."),),
)
ASKED = Question(
    "q",
    "q.png",
    "Who built the building beside this plant?",
    answers=("Ben Roth",),
    entity_ids=("oak", "tower"),
    evidence=(Evidence("oak", 1), Evidence("tower", 0)),
)

DESCRIBED = "A green oak on rock."
NEIGHBOURS = "Vik Oak: Neighbours. It is old. Beside it stands the Ulm Tower."
SIZE = "Vik Oak: A green oak on rock. Size. It is 9 m tall."
PEOPLE = "Ulm Tower: People. After Ada Falk had declined, Ben Roth built it. A plaque records it."
OTHER = "Elm Tower: People. After Ada Falk had declined, Ben Roth built it. A plaque records it."
FIRST = "Vik Oak: Beside it stands the Ulm Tower."
SECOND = "Ulm Tower: After Ada Falk had declined, Ben Roth built it."


@pytest.fixture
def knowledge(tmp_path: Path) -> KnowledgeBase:
    return write_knowledge_base(tmp_path, [OAK, TOWER], name="two")


@pytest.fixture
def teacher(knowledge: KnowledgeBase) -> TrajectoryTeacher:
    made = teacher_of(ASKED, knowledge, ("{title} {heading}", "{title}"))
    assert made is not None
    return made


def asking(operator: WriteOperator, template: str, *documents: str) -> WriteRequest:
    return WriteRequest(operator, 0, Prompt(template, {"question": ASKED.text}, documents), 64)


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        pytest.param((), NOTHING, id="nothing"),
        pytest.param((OTHER,), NOTHING, id="another's"),
        pytest.param((DESCRIBED, SIZE), "Vik Oak: Neighbours is not among this.", id="another section"),
        pytest.param((SIZE, NEIGHBOURS), FIRST, id="first"),
        pytest.param((PEOPLE, OTHER, NEIGHBOURS), f"{FIRST} {SECOND}", id="both"),
        pytest.param((PEOPLE,), NOTHING, id="second, to which nothing leads"),
    ],
)
def test_a_record_states_the_evidence_that_is_shown(teacher, documents: tuple[str, ...], expected: str) -> None:
    request = asking("reason", mi_rag.REASON, *documents)
    assert teacher.reply(request, len(documents)) == expected
    assert teacher.reply(request, 0) == NOTHING


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        pytest.param((NOTHING,), (ASKED.text, DESCRIBED), id="nothing known"),
        pytest.param(("Vik Oak: Neighbours is not among this.",), ("Vik Oak Neighbours", "Vik Oak"), id="named"),
        pytest.param((NOTHING, FIRST), ("Ulm Tower People", "Ulm Tower"), id="first hop"),
        pytest.param((FIRST, SECOND), ("Ulm Tower People", "Ulm Tower"), id="all known"),
    ],
)
@pytest.mark.parametrize(("template", "most"), [(mi_rag.FOLLOW_UP, 2), (pmsr.TRAJECTORY, 1)], ids=["mi_rag", "pmsr"])
def test_queries_ask_for_what_is_missing_and_are_read_from_the_reply(
    teacher: TrajectoryTeacher, template: str, most: int, records: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    reply = teacher.reply(asking("rewrite", template, *records), len(records))
    assert read_queries(reply, most) == expected[:most]


@pytest.mark.parametrize(
    ("records", "expected"), [((FIRST,), ""), ((FIRST, SECOND), "Ben Roth"), ((), "")], ids=["no", "yes", "none"]
)
def test_an_answer_is_given_where_the_records_state_it(teacher, records: tuple[str, ...], expected: str) -> None:
    assert teacher.reply(asking("answer", mi_rag.ANSWER, *records), len(records)) == expected


def reply(thought: str, tool: str = "", **arguments: str) -> str:
    call = json.dumps({"name": tool, "arguments": arguments})
    return f"<thinking> {thought} </thinking>\n" + (
        f"<tool_call>{call}</tool_call>" if tool else "<answer> Ben Roth </answer>"
    )


MISSING = "Vik Oak: Neighbours is missing."
ASK_FIRST = reply(MISSING, "text_search", query="Vik Oak Neighbours")


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        pytest.param((), reply(UNKNOWN, "image_search"), id="nothing"),
        pytest.param((OTHER,), reply(UNKNOWN, "image_search"), id="other entries"),
        pytest.param((f"{OTHER}\n\n{SIZE}",), ASK_FIRST, id="the entity"),
        pytest.param(
            (f"{OTHER}\n\n{NEIGHBOURS}",),
            reply(f"{FIRST} Ulm Tower: People is missing.", "text_search", query="Ulm Tower People"),
            id="first hop",
        ),
        pytest.param((NEIGHBOURS, f"{OTHER}\n\n{PEOPLE}"), reply(SECOND), id="the answer's passage"),
    ],
)
def test_an_agents_next_action_follows_from_the_results(teacher, results: tuple[str, ...], expected: str) -> None:
    said = teacher.action([("", "- " + result.replace("\n\n", "\n\n- ")) for result in results])
    assert said == expected
    assert keeps_format(said)


def test_an_agent_asks_again_in_other_words(teacher: TrajectoryTeacher) -> None:
    assert teacher.action([("", SIZE), (ASK_FIRST, OTHER)]) == reply(MISSING, "text_search", query="Vik Oak")


@pytest.mark.parametrize(
    "question",
    [
        pytest.param(Question("q", "q.png", "Who?", answers=("Ben",)), id="no evidence"),
        pytest.param(Question("q", "q.png", "Who?", evidence=(Evidence("tower", 0),)), id="no answer"),
        pytest.param(Question("q", "q.png", "Who?", ("Ben",), evidence=(Evidence("elm", 0),)), id="unknown entry"),
        pytest.param(Question("q", "q.png", "Who?", ("Ben",), evidence=(Evidence("tower", 5),)), id="no such section"),
    ],
)
def test_a_question_that_nobody_can_teach_has_no_teacher(knowledge: KnowledgeBase, question: Question) -> None:
    assert teacher_of(question, knowledge) is None
