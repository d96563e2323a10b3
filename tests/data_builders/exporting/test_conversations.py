from dataclasses import replace

import pytest

from reflectune.core.errors import UserError
from reflectune.core.types import FollowUp, Passage
from reflectune.data_builders.exporting.conversations import ConversationForm, Masking, conversations
from reflectune.models.rendering.turns import ANSWER_PROMPTS
from reflectune.models.schemes.examples import Branch, PromptedBranch, PromptedExample, ReflectionExample
from reflectune.models.schemes.mmkb_rag import SCHEME as MMKB_RAG
from reflectune.models.schemes.mr2ag import SCHEME as MR2AG
from reflectune.models.schemes.plain import SCHEME as PLAIN

GOLD = Passage("t", 0, 0, "Tower", "", "", "Founded in 1872.")
OTHER = Passage("l", 0, 0, "Lake", "", "", "It is deep.")
KNOWLEDGE = ReflectionExample("k", "i.png", "When?", True, branches=(Branch(GOLD, True, "1872"), Branch(OTHER, False)))
READ = ANSWER_PROMPTS["read_short"].removeprefix("{passage} ")
READ_LIST = (
    "Based on the retrieved documents, answer the question as briefly as possible, using '&&' to connect multiple "
    "different answers."
)
SHORT, LIST = ANSWER_PROMPTS["answer_short"], ANSWER_PROMPTS["answer_list"]
VISUAL = ReflectionExample("v", "i.png", "Which colour?", False, answer="blue")


def turns_of(example: ReflectionExample | PromptedExample, masking: Masking) -> list[list[tuple[str, bool]]]:
    scheme = MMKB_RAG if isinstance(example, PromptedExample) else MR2AG
    rows = conversations(example, scheme, ConversationForm(masking, str.strip))
    return [[(message.text, message.supervised) for message in row.messages] for row in rows]


def test_a_passage_is_a_conversation_as_in_the_paper() -> None:
    first, second = turns_of(KNOWLEDGE, "none")
    assert [text for text, _ in first] == ["When?", "[Retrieval]", f"Tower: Founded in 1872. {READ}", "[Relevant] 1872"]
    assert second[3] == ("[Irrelevant]", True)


@pytest.mark.parametrize(("masking", "times"), [("last_turn", 1), ("per_turn", 1), ("none", 2)])
def test_retrieval_counts_once_per_question_if_the_layout_allows_it(masking: Masking, times: int) -> None:
    turns = [turn for row in turns_of(KNOWLEDGE, masking) for turn in row]
    assert turns.count(("[Retrieval]", True)) == times
    counted = [text for text, supervised in turns if supervised and text != "[Retrieval]"]
    assert counted == ["[Relevant] 1872", "[Irrelevant]"]


def test_where_a_rows_last_turn_counts_alone_no_other_is_marked() -> None:
    for row in turns_of(KNOWLEDGE, "last_turn"):
        assert [supervised for _, supervised in row] == [False] * (len(row) - 1) + [True]


@pytest.mark.parametrize("masking", ["last_turn", "per_turn", "none"])
def test_a_free_answer_without_retrieval_is_one_turn_as_in_the_paper(masking: Masking) -> None:
    looked = replace(VISUAL, answer="A blue one.", style="free")
    assert turns_of(looked, masking) == [[("Which colour?", False), ("[No Retrieval] A blue one.", True)]]


ROUNDS = (FollowUp("Big?", "Yes."), FollowUp("Why?", "So."))
TALK = replace(VISUAL, answer="A blue one.", style="free", follow_ups=ROUNDS)
TURNS = [
    *[("Which colour?", False), ("[No Retrieval] A blue one.", True)],
    *[("Big?", False), ("[No Retrieval] Yes.", True), ("Why?", False), ("[No Retrieval] So.", True)],
]


@pytest.mark.parametrize("masking", ["per_turn", "none"])
def test_a_conversation_is_one_row_with_each_reply_supervised(masking: Masking) -> None:
    assert turns_of(TALK, masking) == [TURNS]


def test_where_a_rows_last_turn_counts_alone_a_conversation_is_a_row_a_round() -> None:
    rows = turns_of(TALK, "last_turn")
    assert [[text for text, _ in row] for row in rows] == [[text for text, _ in TURNS[:count]] for count in (2, 4, 6)]
    assert [[supervised for _, supervised in row].index(True) for row in rows] == [1, 3, 5]


@pytest.mark.parametrize(("style", "instruction"), [("short", SHORT), ("list", LIST)])
@pytest.mark.parametrize("masking", ["per_turn", "none"])
def test_a_short_answer_without_retrieval_has_a_turn_of_its_own(masking, style, instruction) -> None:
    gate, short_answer = [("Which colour?", False), ("[No Retrieval]", True)], [(instruction, False), ("blue", True)]
    assert turns_of(replace(VISUAL, style=style), masking) == [[*gate, *short_answer]]


def test_no_retrieval_counts_where_only_a_rows_last_turn_does() -> None:
    """[No Retrieval] gets a row of its own, as [Retrieval] does: an unsupervised gate would never be learned."""
    question, instruction = ("Which colour?", False), (SHORT, False)
    assert turns_of(VISUAL, "last_turn") == [
        [question, ("[No Retrieval]", True)],
        [question, ("[No Retrieval]", False), instruction, ("blue", True)],
    ]


def test_each_task_of_mmkb_rag_is_one_turn_after_the_question() -> None:
    tasks = (
        PromptedBranch("ret", role="retrieve"),
        PromptedBranch("srt", (GOLD,), role="irrelevant"),
        PromptedBranch("mct", (GOLD, OTHER), reply="1. Founded in 1872."),
        PromptedBranch("vqa", reply="1872"),
    )
    rows = turns_of(PromptedExample("p", "i.png", "When?", tasks), "none")
    replies = ("[Ret]", "[NoRel]", "1. Founded in 1872.", "1872")
    assert [row[1] for row in rows] == [(reply, True) for reply in replies]
    assert rows[1][0][0] == "When? Document: Tower: Founded in 1872. Does this document help to answer the question?"
    assert "1. Tower: Founded in 1872. 2. Lake: It is deep." in rows[2][0][0]
    assert rows[3][0][0] == f"When? {SHORT}"


@pytest.mark.parametrize(
    ("style", "alone", "reading"),
    [
        ("short", f"When? {SHORT}", f"When? Tower: Founded in 1872. {READ}"),
        ("list", f"When? {LIST}", f"When? Tower: Founded in 1872. {READ_LIST}"),
        ("free", "When?", "When? Tower: Founded in 1872. Based on the retrieved document, answer the question."),
    ],
)
@pytest.mark.parametrize("scheme", [MMKB_RAG, PLAIN], ids=lambda scheme: scheme.name)
def test_every_prompted_scheme_asks_for_an_answer_the_same_way(scheme, style, alone, reading) -> None:
    tasks = (PromptedBranch("vqa", reply="1872"), PromptedBranch("vqa", (GOLD,), reply="1872"))
    example = PromptedExample("p", "i.png", "When?", tasks, style)
    rows = conversations(example, scheme, ConversationForm("none", str.strip))
    assert [[message.text for message in row.messages] for row in rows] == [[alone, "1872"], [reading, "1872"]]


@pytest.mark.parametrize(
    ("branch", "more", "said"),
    [
        (PromptedBranch("ret", role="perhaps"), {}, "branch 0, `ret`: unknown role `perhaps`"),
        (PromptedBranch("srt", (GOLD,), role="relevant", weight=0.98), {}, "weighted labels"),
        (PromptedBranch("vqa", reply="Ann"), {"follow_ups": ROUNDS}, "several rounds"),
    ],
)
def test_what_a_layout_cannot_hold_is_refused(branch: PromptedBranch, more: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        turns_of(PromptedExample("p", "i.png", "When?", (branch,), **more), "none")


def test_a_prompt_of_a_pipeline_is_exported_as_it_is() -> None:
    texts = {"template": "Q: {question}\n{documents}\n", "documents": "A\nB"}
    prompted = PromptedExample("q", "i.png", " Who? ", (PromptedBranch("vqa", reply="Ann"),), **texts)
    (row,) = conversations(prompted, PLAIN, ConversationForm("none", str.strip))
    turns = [(message.text, message.supervised) for message in row.messages]
    assert turns == [("Q: Who?\nA\nB\n", False), ("Ann", True)]
