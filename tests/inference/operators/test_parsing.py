"""Replies in the forms that models give them: each is read right, or counted as unread; none breaks the parser."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectune.inference.operators.parsing import (
    answer,
    box,
    fields,
    is_readable,
    label,
    letters,
    named_documents,
    order,
    preferred,
    shares,
)
from reflectune.inference.operators.query_reply import read_queries

BOTH = ("Who built it?", "When was it built?")
ANALYSIS = "## Analysis\nThe question asks who built it. The knowledge lacks:\n1. The builder.\n2. Which year?\n"
QUERIES = {
    "a heading of a lower level": (f"{ANALYSIS}\n### Queries\nQuestion 1: {BOTH[0]}\nQuestion 2: {BOTH[1]}", BOTH),
    "a bold heading": (f"**Analysis**\nWhich year?\n\n**Queries**\n1. {BOTH[0]}\n2. {BOTH[1]}", BOTH),
    "a bold heading with a colon": (f"**Analysis:** It is red.\n\n**Queries:**\n- {BOTH[0]}\n- {BOTH[1]}", BOTH),
    "a plain heading": (f"Analysis:\nWhich year?\n\nQueries:\n1) {BOTH[0]}\n2) {BOTH[1]}", BOTH),
    "a heading of other words": (f"{ANALYSIS}## Follow-up Questions\n1. {BOTH[0]}\n2. {BOTH[1]}", BOTH),
    "a heading with a remark": (f"{ANALYSIS}## Queries (two follow-up questions)\n1. {BOTH[0]}\n2. {BOTH[1]}", BOTH),
    "a heading with a number": (f"{ANALYSIS}## Follow-up Queries\nQuestion 1: {BOTH[0]}\nQuestion 2: {BOTH[1]}", BOTH),
    "a sign in brackets": (f'The sign reads ["EXIT"].\n## Queries\n1. {BOTH[0]}\n2. {BOTH[1]}', BOTH),
    "an output without a question mark": ("## Output\nWhich species eats sponges", ()),
    "a numbered heading": (f"1. **Analysis**\nIt is red.\n2. **Queries**\n* {BOTH[0]}\n* {BOTH[1]}", BOTH),
    "a section's name": (f"Section: Analysis\nRed.\nSection: Queries\n• {BOTH[0]}\n• {BOTH[1]}", BOTH),
    "PMSR's output": (f"{ANALYSIS}## Output\nQuestion: {BOTH[0]}", BOTH[:1]),
    "an output in bold": (f"**Analysis:** Red.\n**Output:** Question: {BOTH[0]}", BOTH[:1]),
    "a heading with its query": (f"Analysis: Red.\n\nQueries: {BOTH[0]} {BOTH[1]}", BOTH),
    "a heading with its one query": (f"## Output: {BOTH[0]}", BOTH[:1]),
    "a heading of one query": (f"{ANALYSIS}## Query\n{BOTH[0]}", BOTH[:1]),
    "queries before the analysis": (f"## Queries\n1. {BOTH[0]}\n2. {BOTH[1]}\n{ANALYSIS}", BOTH),
    "a note after the queries": (f"## Queries\n1. {BOTH[0]}\n\n## Notes\n1. Which bridge?", BOTH[:1]),
    "the form again, unfilled": (f"## Queries\nQuestion 1: {BOTH[0]}\n## Queries\nQuestion 1: question 1.", BOTH[:1]),
    "bold labels": (f"## Queries\n**Question 1:** {BOTH[0]}\n**Question 2**: {BOTH[1]}", BOTH),
    "labels in brackets": (f"## Queries\n[Question 1]: {BOTH[0]}\n[Question 2] {BOTH[1]}", BOTH),
    "labels in bullets": (f"## Queries\n- Question 1: {BOTH[0]}\n- Question 2: {BOTH[1]}", BOTH),
    "labels in headings": (f"## Queries\n### Question 1\n{BOTH[0]}\n### Question 2\n{BOTH[1]}", BOTH),
    "labels with a number sign": (f"## Queries\nQuery #1: {BOTH[0]}\nQuery #2: {BOTH[1]}", BOTH),
    "labels of a letter": (f"## Queries\nQ1: {BOTH[0]}\nQ2. {BOTH[1]}", BOTH),
    "follow-up labels": (f"Follow-up Question 1: {BOTH[0]}\nFollow-up question 2: {BOTH[1]}", BOTH),
    "a label of its own line": (f"## Queries\nQuestion 1:\n{BOTH[0]}\n\nQuestion 2:\n  - {BOTH[1]}", BOTH),
    "labels on one line": (f"## Queries\nQuestion 1: {BOTH[0]} Question 2: {BOTH[1]}", BOTH),
    "a full-width colon": (f"## Queries\nQuestion 1：{BOTH[0]}\nQuestion 2：{BOTH[1]}", BOTH),
    "quoted": (f'## Queries\nQuestion 1: "{BOTH[0]}"\nQuestion 2: “{BOTH[1]}”', BOTH),
    "keywords": (
        "## Queries\nQuestion 1: Kirk Bridge builder\nQuestion 2: year of it",
        ("Kirk Bridge builder", "year of it"),
    ),
    "bullets that go on": (
        f"## Queries\n1. **{BOTH[0]}**\n   - It names the builder.\n2. **{BOTH[1]}**\n   - A year.",
        BOTH,
    ),
    "labels with reasons": (
        f"## Queries\nQuestion 1: {BOTH[0]}\n- Reason: the builder.\nQuestion 2: {BOTH[1]}\n1. Why?",
        BOTH,
    ),
    "bullets and their notes": (f"## Queries\n- {BOTH[0]}\n- This names the builder.\n- {BOTH[1]}", BOTH),
    "a note after each": (f"1. **{BOTH[0]}** – to find the builder.\n2. {BOTH[1]} (the year)", BOTH),
    "a line that goes on": ("## Queries\nQuestion 1: Who built\nit?\nQuestion 2: When was it built?", BOTH),
    "a sentence before a list": (f"Here are two follow-up questions:\n\n1. {BOTH[0]}\n2. {BOTH[1]}", BOTH),
    "no heading after an analysis": (
        f"**Analysis:** Red.\n\n**Question 1:** {BOTH[0]}\n**Question 2:** {BOTH[1]}",
        BOTH,
    ),
    "tags": (f"<analysis>Which?</analysis>\n<query>{BOTH[0]}</query>\n<query>{BOTH[1]}</query>", BOTH),
    "a reference before JSON": (f'As [1] says: {{"queries": ["{BOTH[0]}", "{BOTH[1]}"]}}', BOTH),
    "JSON with an analysis": (f'{{"analysis": "Which?", "follow_up_questions": ["{BOTH[0]}", "{BOTH[1]}"]}}', BOTH),
    "JSON by number": (f'{{"Queries": {{"1": "{BOTH[0]}", "2": "{BOTH[1]}"}}}}', BOTH),
    "JSON with the question": (f'{{"question": "Who?", "queries": ["{BOTH[0]}"], "query_type": "text"}}', BOTH[:1]),
    "JSON with purposes": (f'```json\n[{{"query": "{BOTH[0]}", "purpose": "to name it"}}]\n```', BOTH[:1]),
    "JSON of several lines": (f'{{\n "analysis": [\n  "Which?"\n ],\n "queries": [\n  "{BOTH[0]}"\n ]\n}}', BOTH[:1]),
    "a list in its section": (f'{ANALYSIS}["a", "b c"]\n## Queries\n["{BOTH[0]}", "{BOTH[1]}"]', BOTH),
    "cut inside the analysis": (ANALYSIS, ()),
    "cut inside the analysis, with the question": ("## Analysis\nQuestion: Who built it?\n- Which year?", ()),
    "cut inside the analysis, with a list": ('**Analysis**\nIt reads ["Kirk Bridge", "Ann Kirk"].\n1. Which year?', ()),
    "cut after the heading": (f"{ANALYSIS}## Queries\nQuestion 1:", ()),
    "no need": ("## Analysis\nAll is known.\n## Queries\nNo further questions are needed.", ()),
    "none": ("## Queries\nQuestion 1: None\nQuestion 2: N/A", ()),
    "placeholders": ("## Queries\nQuestion 1: [Your question here]\nQuestion 2: <question 2>\nQuestion 3: ...", ()),
    "a refusal": ("I'm sorry, but I can't help with identifying people.", ()),
    "JSON that is cut off": (f'{{"queries": ["{BOTH[0]}", "When', ()),
}
ORDERS = {
    "the paper's form": ("[Document 2] > [Document 1] > [Document 3]", (1, 0, 2)),
    "a chain after its reasons": ("[Document 1] shows a bridge.\nRanking: [Document 3] > [Document 1]", (2, 0, 1)),
    "reasons after the chain": ("[Document 2] > [Document 1]\n[Document 3] is about a church.", (1, 0, 2)),
    "a numbered list with reasons": ("1. **Document 2**: the bridge\n2. **Document 1**: not as in [3]", (1, 0, 2)),
    "bare numbers": ("3 > 1 > 2", (2, 0, 1)),
    "JSON": ('{"ranking": [3, 1, 2]}', (2, 0, 1)),
    "the only one": ("[Document 3]", (2, 0, 1)),
    "repeats itself": ("[Document 2] > " * 40, (1, 0, 2)),
    "numbers of no document": ("[Document 7] > [Document 0] > [Document 2]", (1, 0, 2)),
    "only numbers of no document": ("[Document 9] > [Document 0]", None),
    "cut off": ("[Document 3] > [Docum", (2, 0, 1)),
    "a comparison in words": ("Document 1 is not relevant, but Document 2 is.", None),
    "prose": ("[Document 1] shows a red bridge.\n[Document 3] says who built it.", None),
    "a sentence": ("The most relevant is [Document 3], followed by [Document 2].", (2, 1, 0)),
    "another sentence": ("The best is document 3, then Document 1.", (2, 0, 1)),
    "prose in a line": ("[Document 1] shows a bridge and [Document 3] says who built it.", None),
    "the prompt's example": ("[Document 4] > [Document 2] > ...", None),
    "the prompt's form": ("[Document x] > [Document y]", None),
}
PREFERENCES = {
    "the form": ("[Document B]", "B"),
    "a lower-case letter": ("document a", "A"),
    "a letter alone": ("**B**", "B"),
    "repeats itself": ("[Document B] " * 40, "B"),
    "bold, and a reason": ("**[Document A]**\n\nIt names Document B's builder.", "A"),
    "a sentence before it": ("Here is my output:\n[Document B]", "B"),
    "JSON": ('{"document": "A"}', "A"),
    "a denial": ("Document A is not relevant.", None),
    "a comparison": ("Document A is better than Document B.", None),
    "neither": ("Neither of them.", None),
    "a word that begins alike": ("Document about Ann", None),
    "a letter among words": ("It is a bridge", None),
    "nothing": ("", None),
}
LABELS = {
    "after a name": ("Label: **Yes**", True),
    "with a reason": ("No, the document describes a church.", False),
    "after thoughts": ("<think>Yes or no?</think>yes.", True),
    "a reason below": ("Yes.\nNo other document says so.", True),
    "both": ("Yes or No", None),
    "another word": ("Not sure.", None),
    "nothing": ("", None),
}

STATE = {"need": "its diet", "referent": "kestrel"}
PARSERS: dict[str, Callable[[str], object]] = {
    "queries": lambda reply: read_queries(reply, 2),
    "named documents": lambda reply: named_documents(reply, 3),
    "fields": lambda reply: fields(reply, ["need", "referent", "constraints"]),
    "letters": lambda reply: letters(reply, 4),
    "shares": lambda reply: shares(reply, 3),
    "answer": answer,
    "order": lambda reply: order(reply, 3),
    "preferred": preferred,
    "label": lambda reply: label(reply, "Yes", "No"),
}
REPLIES: dict[str, dict[str, tuple[str, object]]] = {
    "queries": {
        "the paper's form": (
            "## Analysis\nA bridge.\n## Queries\nQuestion 1: Who built it?\nQuestion 2: When?",
            ("Who built it?", "When?"),
        ),
        "a list without a heading": ("- Who built it?\n- When?", ("Who built it?", "When?")),
        "lines that ask": ("It is a bridge.\nWho built it?\nWhen was that?", ("Who built it?", "When was that?")),
        "JSON of one question": ('{"analysis": "A bridge.", "question": "Who built it?"}', ("Who built it?",)),
        "thoughts first": ("<think>Question 1: no?</think>\nQuestion 1: Who?", ("Who?",)),
        "twice the same": ("Question 1: Who?\nQuestion 2: Who?", ("Who?",)),
        "the prompt's form": ("Question 1: question 1.\nQuestion 2: question 2.\nQuestion 3: question", ()),
        "PMSR's form": ("## Output\nQuestion: the question.", ()),
        "a number alone": ("1. 1.\n2. Who built it?", ("Who built it?",)),
        "a year": ("1. 1987 in film", ("1987 in film",)),
        "too many": ("1. a?\n2. b?\n3. c?", ("a?", "b?")),
        "an empty list": ('{"queries": []}', ()),
        "a bracket never closed": ('{"queries": ["Who?"', ()),
        "nothing": ("", ()),
        **QUERIES,
    },
    "order": ORDERS,
    "preferred": PREFERENCES,
    "label": LABELS,
    "named documents": {
        "numbers alone": ("[3] > [1]", (2, 0)),
        "twice, and one that isn't there": ("[Document 2], then [2] and [9]", (1,)),
        "numbers without brackets": ("3 and 1", ()),
        "thoughts first": ("<think>[1]</think>[2]", (1,)),
    },
    "fields": {
        "lines": ("Need: its diet\nReferent: kestrel", STATE),
        "bold lines in another order": ("- **Referent:** kestrel\n- **Need:** its diet\n- **Constraints:**", STATE),
        "JSON": ('{"need": "its diet", "referent": "kestrel", "constraints": null}', STATE),
        "fenced JSON behind words": (
            '[see] ```json\n{"Need": ["its", "diet"], "other": 1, "referent": "kestrel"}\n```',
            {"need": "its, diet", "referent": "kestrel"},
        ),
        "a list, and JSON of other names": ('[1] {"other": "b"}\nNeed: a', {"need": "a"}),
        "JSON that is cut off": ('{"need": "its diet", "referent', {}),
        "a line of the first only": ("Need: its diet", {"need": "its diet"}),
        "the first line of two": ("Need: a\nNeed: b", {"need": "a"}),
        "thoughts first": ("<think>Need: no</think>Need: a", {"need": "a"}),
        "prose": ("It needs a kestrel.", {}),
        "nothing": ("", {}),
    },
    "letters": {
        "the form asked for": ("Answer: C, A, B", (2, 0, 1)),
        "the last of several": ("Answer: A\nLet me look again.\n**Answer:** B, D", (1, 3)),
        "letters alone": ("D > B > A.", (3, 1, 0)),
        "an article is no letter": ("A bridge of stone.", ()),
        "twice the same": ("Answer: B, B, A", (1, 0)),
        "letters of no option": ("Answer: Z, B", (1,)),
        "words after the label": ("Answer: I would say C, A", ()),
        "in thoughts": ("<think>Answer: A</think>Answer: B", (1,)),
        "nothing": ("", ()),
    },
    "shares": {
        "JSON": ('{"probabilities": [0.7, 0.2, 0.1]}', (0.7, 0.2, 0.1)),
        "fenced": ("```json\n[1, 0, .5]\n```", (1.0, 0.0, 0.5)),
        "too few": ("[0.7, 0.3]", None),
        "percent": ("[70, 20, 10]", None),
        "the list that fits": ("[1] says so: [0.1, 0.2, 0.3]", (0.1, 0.2, 0.3)),
        "prose": ("Most likely the first.", None),
    },
    "answer": {
        "both tags": ("<think>a</think><answer> oak </answer>", "oak"),
        "no answer's tag": ("<think>a</think>oak", "oak"),
        "cut off": ("<answer>oak", "oak"),
        "thoughts alone": ("<think>endless", ""),
        "no tags": ("oak", "oak"),
    },
}


@pytest.mark.parametrize(
    ("kind", "reply", "expected"),
    [pytest.param(kind, *case, id=f"{kind}-{name}") for kind, cases in REPLIES.items() for name, case in cases.items()],
)
def test_a_reply_is_read_or_counted_as_unread(kind: Any, reply: str, expected: object) -> None:
    assert PARSERS[kind](reply) == expected
    if kind in ("queries", "order", "preferred"):  # forms whose unreadable replies are counted
        assert is_readable(reply, kind, 3, 3) is (expected not in ((), None))


@settings(deadline=None)
@given(st.text(alphabet=st.sampled_from('[]{}":,#\n Question12Document<think>/`-?ABanswer.0')), st.integers(1, 5))
def test_no_reply_breaks_the_parser(reply: str, count: int) -> None:
    assert len(read_queries(reply, count)) <= count
    found = order(reply, count)
    assert found is None or sorted(found) == list(range(count))
    assert preferred(reply) in ("A", "B", None)
    assert all(place < count for place in letters(reply, count))
    assert shares(reply, count) is None or len(shares(reply, count) or ()) == count
    assert len(answer(reply)) <= len(reply)
    assert set(fields(reply, ["Question", "Document"])) <= {"Question", "Document"}
    assert all(place < count for place in named_documents(reply, count))
    made = box(reply)
    assert made is None or (made[0] < made[2] <= 1 and made[1] < made[3] <= 1)


def test_deep_nesting_is_no_query() -> None:
    assert read_queries("[" * 100_000, 2) == ()
