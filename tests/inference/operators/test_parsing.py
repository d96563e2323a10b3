"""Replies as models write them: what they say is found, what says nothing is empty, and nothing breaks the parser."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectune.inference.operators.parsing import (
    answer,
    box,
    fields,
    letters,
    named_documents,
    order,
    preferred,
    shares,
)
from reflectune.inference.operators.query_reply import read_queries

STATE = {"need": "its diet", "referent": "kestrel"}
PARSERS: dict[str, Callable[[str], object]] = {
    "queries": lambda reply: read_queries(reply, 2),
    "named documents": lambda reply: named_documents(reply, 3),
    "fields": lambda reply: fields(reply, ["need", "referent", "constraints"]),
    "letters": lambda reply: letters(reply, 4),
    "shares": lambda reply: shares(reply, 3),
    "answer": answer,
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
    },
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
def test_what_a_reply_says_is_found(kind: str, reply: str, expected: object) -> None:
    assert PARSERS[kind](reply) == expected


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
