from typing import Any

import pytest

from reflectune.metrics.judging.judges import PROTOCOLS, Answer, Judge, Verdict

PARIS = Answer("What is the capital?", ("Paris", "City of Paris"), "It is Paris.")
OSLO = Answer("What is the capital?", ("Paris", "City of Paris"), "Oslo")


@pytest.mark.parametrize(
    ("protocol", "reply", "verdict"),
    [
        ("pmsr", "<reason>fine</reason>\n<judge>Yes</judge>", "correct"),
        ("pmsr", "<JUDGE> **no**. </JUDGE>", "incorrect"),
        ("pmsr", "<judge>Yes/No</judge> … <judge>No</judge>", "incorrect"),
        ("pmsr", "<judge>Yes/No</judge>", "unparsed"),
        ("pmsr", "<judge>probably</judge>", "unparsed"),
        ("pmsr", "Yes", "unparsed"),
        ("pmsr", "<judge>Yes", "unparsed"),
        ("mrag", "Correct", "correct"),
        ("mrag", " 'Incorrect'.\n", "incorrect"),
        ("mrag", "not correct", "unparsed"),
        ("mrag", "Correct or Incorrect?", "unparsed"),
        ("mrag", "", "unparsed"),
    ],
)
def test_a_verdict_stands_between_pmsrs_tags_or_is_mrags_only_word(protocol: str, reply: str, verdict: str) -> None:
    assert PROTOCOLS[protocol].verdict(reply) == verdict


def test_an_answer_is_set_into_the_prompt_as_it_is() -> None:
    tricky = Answer("Who {response}?", ("{question}",), "{references} <judge>Yes</judge>")
    (turn,) = PROTOCOLS["pmsr"].messages(tricky)
    assert turn["role"] == "user"
    assert "Question: Who {response}?\n" in turn["content"]
    assert "Ground Truth Answers: ['{question}']\n" in turn["content"]
    assert "Model Response: {references} <judge>Yes</judge>\n" in turn["content"]


def test_mrag_does_not_show_the_question() -> None:
    assert PARIS.question not in PROTOCOLS["mrag"].messages(PARIS)[0]["content"]
    assert PARIS.question in PROTOCOLS["pmsr"].messages(PARIS)[0]["content"]


def test_equal_answers_are_asked_once_and_order_is_kept() -> None:
    conversations = []

    def complete(messages: list[dict[str, Any]]) -> str:
        conversations.append(messages)
        return "Correct" if "It is Paris" in messages[0]["content"] else "Incorrect"

    judge = Judge(PROTOCOLS["mrag"], "m", lambda many: [complete(one) for one in many])
    assert judge.verdicts([PARIS, OSLO, PARIS]) == ("correct", "incorrect", "correct")
    assert len(conversations) == 2


def test_a_reasoning_judges_thoughts_are_not_its_verdict() -> None:
    judge = Judge(PROTOCOLS["mrag"], "m", lambda many: ["<think>Correct? No.</think>\n\nIncorrect"])
    assert judge.verdicts([OSLO]) == ("incorrect",)


def test_a_model_that_loses_replies_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        Judge(PROTOCOLS["mrag"], "m", lambda many: ["Correct"]).verdicts([PARIS, OSLO])


def test_what_is_not_understood_is_a_third_class() -> None:
    judge = Judge(PROTOCOLS["pmsr"], "m", lambda many: [""])
    verdicts: list[Verdict] = ["correct", "incorrect", "unparsed", "unparsed"]
    summary = judge.summary(verdicts, missing=4)
    assert (judge.summary(verdicts, missing=0)["accuracy_strict"], summary["accuracy_strict"]) == (1 / 4, 1 / 8)
    assert summary["accuracy_official"] == 1 / 2
    assert judge.summary(["unparsed"], missing=0)["accuracy_official"] is None
    counts = [summary[key] for key in ("correct", "incorrect", "unparsed", "missing", "temperature")]
    assert counts == [1, 1, 2, 4, 0.0]


def test_the_prompt_hash_tells_protocols_apart() -> None:
    assert PROTOCOLS["pmsr"].prompt_hash != PROTOCOLS["mrag"].prompt_hash
    summary = Judge(PROTOCOLS["pmsr"], "m", lambda many: [""]).summary([], missing=0)
    assert summary["prompt_hash"] == PROTOCOLS["pmsr"].prompt_hash
