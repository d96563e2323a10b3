"""The annotator `llm`: any OpenAI-compatible model with mR²AG's prompt for GPT-4 (supplementary, section 7.1)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from reflectune.core.hashing import fingerprint
from reflectune.data_builders.annotators.protocol import IRRELEVANT, UNCLEAR, Annotation, Case
from reflectune.data_builders.annotators.string import canonical_answer, stated_answer
from reflectune.models.remote.client import Messages, RemoteModel
from reflectune.models.rendering.thoughts import without_thoughts
from reflectune.models.rendering.turns import passage_text

PROMPT = """\
Instruction:
Given a question and its corresponding answer, I need your help to verify whether the retrieved document provided \
below can fully and effectively support the corresponding answer to the question, and then accurately locate the \
source of the answer within the paragraph. If so, please respond with [Relevant] and find the evidence sentence \
supporting the answer. If not, please just respond with [Irrelevant]. There are only two formats for your response:
1. [Relevant]
Answer source: source sentence.
2. [Irrelevant]
Input:
Question: {question}.
Answer: {answer}.
Retrieved document: {paragraph}.
"""
"""The paper's prompt, word for word."""

PROMPT_HASH = fingerprint(PROMPT)

_LABEL = re.compile(
    r"[^\w\[]*(?:[12]\.[^\w\[]*)?"  # the form's number, if the reply repeats it
    r"(?:\[[^\w\]]*(?P<bracketed>relevant|irrelevant)[^\w\]]*\]"
    r"|(?P<alone>relevant|irrelevant)(?=[^\w\n/]*(?:\n|$|answer source)))"  # without brackets: alone on its line
    r"(?P<rest>.*)",
    re.DOTALL | re.IGNORECASE,
)
_BRACKETED = re.compile(r"\[\W*(relevant|irrelevant)\W*\]", re.IGNORECASE)


class LlmAnnotator:
    """An annotator that asks a model about each case, many concurrently.

    Args:
        model: The model; its file of replies resumes an interrupted annotation.
    """

    def __init__(self, model: RemoteModel) -> None:
        self.model = model

    def __call__(self, cases: Sequence[Case]) -> list[Annotation]:
        """Label cases. A reply in neither of the two forms, or a refusal by the server, is `unclear`."""
        replies = self.model.complete_all([conversation(case) for case in cases], desc="paragraphs")
        return [
            UNCLEAR if reply.refused else read_reply(reply.text, case)
            for case, reply in zip(cases, replies, strict=True)
        ]


def conversation(case: Case) -> Messages:
    """Return the conversation about a case: the paper's prompt with the paragraph, its title and its heading."""
    question, passage = case
    values = {
        "question": question.text.strip(),
        "answer": canonical_answer(question),
        "paragraph": passage_text(replace(passage, lead="")),
    }
    # In one pass, so that braces in a paragraph are kept.
    content = re.sub(r"\{(question|answer|paragraph)\}", lambda slot: values[slot[1]], PROMPT)
    return [{"role": "user", "content": content}]


def read_reply(text: str, case: Case) -> Annotation:
    """Parse a reply by the label at its beginning.

    A reply that begins with neither label, or also contains the other, is `unclear`.
    """
    answer_part = without_thoughts(text).strip()
    match = _LABEL.fullmatch(answer_part)
    if match is None:
        return UNCLEAR
    label = (match["bracketed"] or match["alone"]).lower()
    if any(other.lower() != label for other in _BRACKETED.findall(match["rest"])):
        return UNCLEAR
    if label == "irrelevant":
        return IRRELEVANT
    question, passage = case
    return Annotation("relevant", stated_answer(question, passage) or canonical_answer(question))
