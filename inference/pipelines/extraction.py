"""Few-shot answer extraction (MI-RAG, appendix E): from a detailed answer to the short one that exact match wants.

Behind a trajectory's detailed answer one more step, `extract`, asks for a short one with the prompt of figure A12. Its
context is the detailed answer, then the reasoning records. Its examples are questions of the training split, the three
whose words are most like the question's, each with its first accepted answer. In the paper an example's context is the
records of its own trajectory, and its picture is shown; here it is the passages that state the answer, since records
would cost a trajectory of every training question, and a prompt shows one picture, the question's.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.formats.dataset import Dataset
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.formats.passages import Lead, split_passages
from reflectune.inference.operators import parsing
from reflectune.inference.operators.trajectory import TrajectoryResult
from reflectune.inference.operators.vocabulary import Steps, texts_of, write
from reflectune.inference.pipelines.diagnostics import gold_passages, is_stating
from reflectune.metrics.judging.extraction import (
    SHOTS,
    Shot,
    extraction_template,
    extraction_texts,
    nearest,
    short_answer,
)

UNREAD: Final = "extract_unread"
"""What a trace calls the number of replies without a short answer: 1 if the detailed one stands."""
_POOL: Final = 1_000
"""Questions of the training split among which a question's examples are looked for."""

Shots = Callable[[Question], Sequence[Shot]]
"""The examples that a question is shown with."""


def with_extraction(
    trajectory: Callable[[Question], Steps[TrajectoryResult]], shots: Shots, max_tokens: int
) -> Callable[[Question], Steps[TrajectoryResult]]:
    """A trajectory, and then the step that makes its detailed answer short; a reply without one leaves it as it is.

    Args:
        trajectory: Ends with a detailed answer, and with records.
        shots: The examples.
        max_tokens: The longest short answer.
    """

    def steps(question: Question) -> Steps[TrajectoryResult]:
        outcome = yield from trajectory(question)
        if not outcome.answer.strip() and not outcome.records:
            return outcome
        examples = shots(question)
        template = extraction_template(len(examples)).replace("{context}", "{documents}")
        texts = extraction_texts(Shot(question.text, ""), examples)
        reply = yield from write(
            "extract",
            max(len(outcome.records) - 1, 0),
            template,
            texts,
            documents=[outcome.answer, *outcome.records],
            max_tokens=max_tokens,
            model="answerer",
        )
        short = short_answer(parsing.spoken(reply.text))
        counts = {**outcome.counts, UNREAD: int(short is None)}
        if short is None:
            return dataclasses.replace(outcome, counts=counts)
        return dataclasses.replace(outcome, answer=short, confidence=reply.score, counts=counts)

    return steps


def drawn_shots(folder: Path, split: str, knowledge: KnowledgeBase, lead: Lead) -> Shots:
    """Finds examples among questions of a split that have an answer which the knowledge base states.

    Args:
        folder: The data set's.
        split: Whose questions; "" for no examples.
        knowledge: The entries.
        lead: What stands before a passage.

    Raises:
        UserError: The data set has no such split.
    """
    if not split:
        return lambda question: ()
    usable = [
        question
        for question in Dataset(folder).stream(split)
        if question.answers and question.answer_style != "free" and (question.evidence or question.entity_ids)
    ]
    if not usable:
        raise UserError(
            f"`extract_split`: {folder} has no question of the split `{split}` with an answer and its entry; name "
            "another one, or leave it empty for a prompt without examples"
        )
    drawn = random.Random(0).sample(usable, min(_POOL, len(usable)))
    by_id = {question.id: question for question in drawn}
    pool = [Shot(question.text, question.id, question.image) for question in drawn]

    def shots(question: Question) -> list[Shot]:
        found: list[Shot] = []
        for shot in nearest(Shot(question.text, "", question.image), pool, n=len(pool)):
            example = by_id[shot.context]
            if len(found) < SHOTS and (context := stated(example, knowledge, lead)):
                found.append(dataclasses.replace(shot, context=context, answer=example.answers[0]))
        return found

    return shots


def stated(question: Question, knowledge: KnowledgeBase, lead: Lead) -> str:
    """The passages that answer a question: those of its evidence, else the first of its entries' that states it.

    An entry that the knowledge base lacks has none.
    """
    entries = dict.fromkeys([*(evidence.entry_id for evidence in question.evidence), *question.entity_ids])
    known = [knowledge.get(name) for name in entries if name in knowledge]
    passages = [passage for entry in known for passage in split_passages(entry, lead=lead)]
    gold = gold_passages(question, passages) or [each for each in passages if is_stating(question, each)][:1]
    return "\n".join(texts_of(gold))
