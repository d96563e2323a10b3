import pytest

from reflectune.core.types import Passage, Question
from reflectune.data_builders.annotators.llm import LlmAnnotator, conversation, read_reply
from reflectune.models.remote.client import RemoteModel
from reflectune.models.remote.endpoint import Endpoint

QUESTION = Question("q1", "i.png", "When was it founded?", ("1872", "A.D. 1872"))
PASSAGE = Passage("e1", 0, 0, "Gold Tower", "A tower.", "History", "It was founded in 1872.")
CASE = (QUESTION, PASSAGE)


def test_the_prompt_is_the_papers_with_the_case_filled_in() -> None:
    (message,) = conversation(CASE)
    assert message["content"].startswith("Instruction:\nGiven a question and its corresponding answer, I need")
    assert message["content"].endswith(
        "Input:\nQuestion: When was it founded?.\nAnswer: 1872.\n"
        "Retrieved document: Gold Tower: History. It was founded in 1872..\n"
    )


def test_braces_in_a_paragraph_are_kept() -> None:
    tricky = Passage("e1", 0, 0, "", "", "", "{answer} {question} {x}")
    assert "Retrieved document: {answer} {question} {x}.\n" in conversation((QUESTION, tricky))[0]["content"]


@pytest.mark.parametrize(
    ("reply", "label"),
    [
        ("[Relevant]\nAnswer source: It was founded in 1872.", "relevant"),
        ("1. [Relevant]\n\nAnswer source: a\nb", "relevant"),
        ("**[Relevant]**", "relevant"),
        ("[**Relevant**]\n**Answer source:** x", "relevant"),
        ("Relevant\nAnswer source: x", "relevant"),
        ("<think>Is it [Irrelevant]? No.</think>\n[Relevant]", "relevant"),
        ("Is it [Irrelevant]? No.</think>\n[Relevant]", "relevant"),  # the prompt's template opens them
        ("[Irrelevant]", "irrelevant"),
        ("2. [Irrelevant]", "irrelevant"),
        ("[irrelevant] The document is not relevant to the question.", "irrelevant"),
        ("Irrelevant.", "irrelevant"),
    ],
)
def test_a_reply_in_one_of_the_two_forms_is_read(reply: str, label: str) -> None:
    judgement = read_reply(reply, CASE)
    assert judgement.label == label
    assert judgement.answer == ("1872" if label == "relevant" else "")


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "I think the document supports the answer.",
        "[Relevant/Irrelevant]",
        "[Relevant]\nor rather [Irrelevant]",
        "Relevant information is missing from the document.",
        "relevant / irrelevant",
        "Irrelevant or relevant?",
        "<think>[Relevant]</think>",
        "<think>[Relevant] and never an end",
        "\x00\ufffd[",
    ],
)
def test_any_other_reply_is_a_third_class(reply: str) -> None:
    assert read_reply(reply, CASE).label == "unclear"


def test_the_answer_is_the_first_where_the_paragraph_says_it_in_other_words() -> None:
    other = Passage("e1", 0, 0, "", "", "", "It dates from the early seventies of that century.")
    assert read_reply("[Relevant]", (QUESTION, other)).answer == "1872"


def test_a_refused_paragraph_is_unclear_and_shows_no_secret_of_the_address(stub_server, tmp_path) -> None:
    poem = Passage("e1", 1, 0, "Gold Tower", "", "Poem", "poem")
    server = stub_server(
        lambda text: "[Relevant]",
        lambda text, number: {"status": 400, "body": "no /v1?key=hidden"} if "poem" in text else {},
    )
    url = server.url.replace("//", "//me:hidden@") + "?key=hidden"
    with RemoteModel(Endpoint(url, "stub"), tmp_path / "replies.jsonl") as model:
        judgements = LlmAnnotator(model)([CASE, (QUESTION, poem)])
        shown = model.summary()
    assert [one.label for one in judgements] == ["relevant", "unclear"]
    assert "no /v1?key=***" in shown
    assert "hidden" not in shown + (tmp_path / "replies.jsonl").read_text()
