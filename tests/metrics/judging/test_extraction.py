import re
from collections.abc import Sequence

import pytest

from reflectune.metrics.judging.extraction import (
    SHOTS,
    Shot,
    extraction_template,
    extraction_texts,
    nearest,
    short_answer,
    word_overlap,
)

ASKED = Shot("How tall is this tower?", "Record: {context} 330 m high.", image="data:image/png;base64,AA==")
POOL = (
    Shot("Who built this bridge?", "c1", "i1", "Eiffel"),
    Shot("How tall is this mountain?", "c2", "i2", "8,849"),
    Shot("How old is this tower?", "c3", "i3", "135"),
    Shot("What is this bird?", "c4", "i4", "finch"),
    ASKED,
)


def prompt(query: Shot, shots: Sequence[Shot]) -> str:
    texts = extraction_texts(query, shots)
    return re.sub(r"\{(\w+)\}", lambda slot: texts[slot[1]], extraction_template(len(shots)))


def test_the_prompt_is_that_of_figure_a12() -> None:
    assert prompt(ASKED, nearest(ASKED, POOL)[:SHOTS]) == (
        "Answer the knowledge-intensive question based on the provided image and context.\n"
        "Generate a concise and accurate answer grounded in the retrieved information.\n"
        "Use the context to support reasoning, and directly output the final answer.\n\n"
        "Three examples are shown below:\n\n"
        "##Example 1:\n\n##Context: c2\n##Question: How tall is this mountain?\n##Best Answer: 8,849\n\n"
        "##Example 2:\n\n##Context: c3\n##Question: How old is this tower?\n##Best Answer: 135\n\n"
        "##Example 3:\n\n##Context: c4\n##Question: What is this bird?\n##Best Answer: finch\n\n"
        "Now, answer this question\n\n"
        "##Context: Record: {context} 330 m high.\n##Question: How tall is this tower?\n##Best Answer:"
    )


def test_without_demonstrations_none_are_announced() -> None:
    written = prompt(Shot("Q?", "C"), [])
    assert "examples" not in written
    assert written.endswith("##Context: C\n##Question: Q?\n##Best Answer:")


def test_the_nearest_are_those_of_like_words_and_never_the_question_itself() -> None:
    assert [shot.answer for shot in nearest(ASKED, POOL)[:2]] == ["8,849", "135"]
    assert ASKED not in nearest(ASKED, POOL)


def test_overlap_is_of_word_sets() -> None:
    assert word_overlap("the red bird", "A Red car") == pytest.approx(1 / 3)
    assert word_overlap("", "the") == 0.0


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("Paris", "Paris"),
        ("\n  Paris. \nBecause …", "Paris."),
        ("##Best Answer: Paris", "Paris"),
        ("##Best Answer:\nParis", "Paris"),
        (" \n", None),
        ("", None),
    ],
)
def test_the_answer_is_the_first_line_that_says_something(reply: str, answer: str | None) -> None:
    assert short_answer(reply) == answer
