"""Extract the short answer that exact match needs from a long reply, by MI-RAG's few-shot prompt (figure A12).

Three demonstrations of the training split, those whose questions are most like the one asked, show the form. MI-RAG
says "question similarity" and no more; here it is the overlap of word sets.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from reflectune.metrics.judging.cover import spaced_tokens

SHOTS = 3
"""Number of examples in the template; §4.1 of MI-RAG says four."""

EXTRACTION_START = """\
Answer the knowledge-intensive question based on the provided image and context.
Generate a concise and accurate answer grounded in the retrieved information.
Use the context to support reasoning, and directly output the final answer.

{count} examples are shown below:
"""
EXTRACTION_EXAMPLE = """
##Example {number}:
"""
EXTRACTION_QUESTION = """
Now, answer this question
"""
EXTRACTION_FIELDS = """
##Context: {context}
##Question: {question}
##Best Answer:"""
EXTRACTION_ANSWER = """ {answer}
"""
"""MI-RAG, figure A12. An image precedes each group of fields, and an answer follows those of an example."""

_CUE = "##best answer:"
_COUNTS = {1: "One", 2: "Two", 3: "Three"}


@dataclass(frozen=True)
class Shot:
    """A question with its image and context, and its answer if it is a demonstration.

    Attributes:
        question: The question.
        context: The reasoning records, or a reply to be shortened.
        image: URL or data URL of the image; None for models that read no images.
        answer: The short answer; "" for the question to be answered.
    """

    question: str
    context: str
    image: str | None = None
    answer: str = ""


def extraction_template(demonstrations: int) -> str:
    """Return the whole prompt without images, with slots for what `extraction_texts` names."""
    start = EXTRACTION_START.split("\n\n")[0] + "\n"
    if demonstrations:
        start = EXTRACTION_START.format(count=_COUNTS[demonstrations])
    shots = [
        EXTRACTION_EXAMPLE.format(number=number)
        + re.sub(r"\{(\w+)\}", rf"{{\1_{number}}}", EXTRACTION_FIELDS + EXTRACTION_ANSWER)
        for number in range(1, demonstrations + 1)
    ]
    return "".join([start, *shots, EXTRACTION_QUESTION, EXTRACTION_FIELDS])


def extraction_texts(query: Shot, demonstrations: Sequence[Shot]) -> dict[str, str]:
    """Return the texts of the slots: `context` and `question`, and for each example, from 1, `context_1` and so on."""
    texts = {"context": query.context, "question": query.question}
    for number, shot in enumerate(demonstrations, start=1):
        texts |= {
            f"context_{number}": shot.context,
            f"question_{number}": shot.question,
            f"answer_{number}": shot.answer,
        }
    return texts


def nearest(query: Shot, pool: Sequence[Shot]) -> list[Shot]:
    """Return the demonstrations by the similarity of their questions, best first; ties keep the pool's order.

    The asked question itself is left out if it is in the pool with the same image.
    """
    others = [shot for shot in pool if (shot.question, shot.image) != (query.question, query.image)]
    return sorted(others, key=lambda shot: -word_overlap(query.question, shot.question))


def word_overlap(first: str, second: str) -> float:
    """Return the intersection over union of two texts' word sets; 0 if both are empty."""
    one, other = set(spaced_tokens(first).split()), set(spaced_tokens(second).split())
    return len(one & other) / len(one | other) if one | other else 0.0


def short_answer(reply: str) -> str | None:
    """Return the reply's first line that is not empty, without the prompt's own cue; None if nothing is left."""
    for line in reply.splitlines():
        text = line.strip()
        if text.lower().startswith(_CUE):
            text = text[len(_CUE) :].strip()
        if text:
            return text
    return None
