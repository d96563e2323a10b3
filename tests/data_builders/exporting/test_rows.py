from dataclasses import replace

import pytest

from reflectune.core.errors import UserError
from reflectune.core.types import Branch, Passage, PromptedBranch, PromptedExample, ReflectionExample
from reflectune.data_builders.exporting.rows import Masking, rows_of
from reflectune.models.scheme import MMKB_RAG, MR2AG, reading_instruction

GOLD = Passage("t", 0, 0, "Tower", "", "", "Founded in 1872.")
OTHER = Passage("l", 0, 0, "Lake", "", "", "It is deep.")
KNOWLEDGE = ReflectionExample("k", "i.png", "When?", True, branches=(Branch(GOLD, True, "1872"), Branch(OTHER, False)))
READ = reading_instruction(multi_answer=False)


def conversations(example: ReflectionExample | PromptedExample, masking: Masking) -> list[list[tuple[str, bool]]]:
    scheme = MMKB_RAG if isinstance(example, PromptedExample) else MR2AG
    rows = rows_of(example, scheme, masking, str.strip)
    return [[(message.text, message.supervised) for message in row.messages] for row in rows]


def test_a_passage_is_a_conversation_as_the_paper_has_it() -> None:
    first, second = conversations(KNOWLEDGE, "none")

    assert [text for text, _ in first] == [
        "When?",
        "[Retrieval]",
        f"Tower: Founded in 1872. {READ}",
        "[Relevant] 1872",
    ]
    assert second[3] == ("[Irrelevant]", True)


@pytest.mark.parametrize(("masking", "times"), [("last_turn", 1), ("per_turn", 1), ("none", 2)])
def test_retrieval_counts_once_for_a_question_where_the_layout_can_say_so(masking: Masking, times: int) -> None:
    turns = [turn for row in conversations(KNOWLEDGE, masking) for turn in row]

    assert turns.count(("[Retrieval]", True)) == times
    assert [text for text, supervised in turns if supervised and text != "[Retrieval]"] == [
        "[Relevant] 1872",
        "[Irrelevant]",
    ]


def test_where_a_rows_last_turn_counts_alone_no_other_is_marked() -> None:
    for row in conversations(KNOWLEDGE, "last_turn"):
        assert [supervised for _, supervised in row] == [False] * (len(row) - 1) + [True]


def test_a_question_answered_by_looking_is_one_row() -> None:
    looked = ReflectionExample("v", "i.png", "Which colour?", False, answer="blue")

    assert conversations(looked, "last_turn") == [[("Which colour?", False), ("[No Retrieval] blue", True)]]


def test_each_of_mmkb_rags_tasks_is_one_turn_behind_the_question() -> None:
    tasks = (
        PromptedBranch("ret", role="retrieve"),
        PromptedBranch("srt", (GOLD,), role="irrelevant"),
        PromptedBranch("mct", (GOLD, OTHER), reply="1. Founded in 1872."),
        PromptedBranch("vqa", reply="1872"),
    )

    rows = conversations(PromptedExample("p", "i.png", "When?", tasks), "none")

    assert [row[1] for row in rows] == [
        ("[Ret]", True),
        ("[NoRel]", True),
        ("1. Founded in 1872.", True),
        ("1872", True),
    ]
    assert rows[1][0][0] == ("When? Document: Tower: Founded in 1872. Does this document help to answer the question?")
    assert "1. Tower: Founded in 1872. 2. Lake: It is deep." in rows[2][0][0]
    assert rows[3][0][0] == "When?"


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (replace(KNOWLEDGE, question=" "), "question is empty"),
        (replace(KNOWLEDGE, image=""), "no image"),
        (replace(KNOWLEDGE, branches=()), "needs a passage"),
        (replace(KNOWLEDGE, branches=(Branch(GOLD, True, " "),)), "branch 0: a relevant passage needs an answer"),
        (replace(KNOWLEDGE, retrieve=False), "needs an answer"),
        (PromptedExample("p", "i.png", "When?", ()), "nothing is asked"),
        (PromptedExample("p", "i.png", "When?", (PromptedBranch("srt", (GOLD,)),)), "branch 0, `srt`"),
        (PromptedExample("p", "i.png", "When?", (PromptedBranch("ret", role="perhaps"),)), "unknown role `perhaps`"),
    ],
)
def test_what_could_not_be_trained_on_is_refused(example: ReflectionExample | PromptedExample, message: str) -> None:
    with pytest.raises(UserError, match=message):
        conversations(example, "none")
