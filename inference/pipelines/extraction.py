"""Few-shot answer extraction (MI-RAG, appendix E): from a detailed answer to the short one that exact match needs.

After a trajectory's detailed answer the step `extract` requests a short one with the prompt of figure A12. Its context
is the detailed answer and the reasoning records. Its examples are the three training questions with the most similar
words, each with its first accepted answer. In the paper an example shows its image and the records of its own
trajectory. Here it has the passages that state the answer, since records would take a trajectory for every training
question, and only the question's own image is shown.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from reflectune.core.config import Settings, setting
from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.core.values import SplitName
from reflectune.formats.dataset import Dataset
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.formats.passages import Lead, split_passages
from reflectune.inference.operators.reply_text import clean_reply
from reflectune.inference.operators.vocabulary import Steps, WriteReply, texts_of, write
from reflectune.inference.pipelines.diagnostics import gold_passages, is_stating
from reflectune.metrics.judging.extraction import (
    SHOTS,
    Shot,
    extraction_template,
    extraction_texts,
    nearest,
    short_answer,
)

_POOL: Final = 1_000
"""Number of training questions among which a question's examples are searched."""

Shots = Callable[[Question], Sequence[Shot]]
"""Returns the examples of a question's prompt."""
Shorten = Callable[[Question, int, str, Sequence[str]], Steps[WriteReply | None]]
"""Shortens an iteration's detailed answer by its records; None if the reply can't be read."""


class ExtractionSettings(Settings):
    """Settings of answer extraction."""

    extract_answer: bool = setting(
        False, "MI-RAG, PMSR: after a detailed answer ask for a short one, by MI-RAG's few-shot prompt; it is scored"
    )
    extract_split: SplitName = setting(
        "train", "extract_answer: split whose questions are the prompt's examples; empty: no examples"
    )


def shortener(shots: Shots, max_tokens: int) -> Shorten:
    """Return the step `extract`, which shortens a detailed answer.

    Args:
        shots: Returns a question's examples.
        max_tokens: Maximum length of the short answer.
    """

    def shorten(question: Question, iteration: int, answer: str, records: Sequence[str]) -> Steps[WriteReply | None]:
        if not answer.strip() and not records:
            return None
        examples = shots(question)
        reply = yield from write(
            "extract",
            iteration,
            extraction_template(len(examples)).replace("{context}", "{documents}"),
            extraction_texts(Shot(question.text, ""), examples),
            documents=[answer, *records],
            max_tokens=max_tokens,
            model="answerer",
            form="short",
        )
        short = extracted(reply.text)
        return None if short is None else dataclasses.replace(reply, text=short)

    return shorten


def extracted(reply: str) -> str | None:
    """Return the short answer in a reply of the step `extract`; None if it can't be read."""
    return short_answer(clean_reply(reply))


def sample_shots(folder: Path, split: str, knowledge: KnowledgeBase, lead: Lead) -> Shots:
    """Find examples among questions of a split whose answer the knowledge base states.

    Args:
        folder: The data set's folder.
        split: Split of the questions; "" for no examples.
        lead: Text before a passage.

    Raises:
        UserError: The data set lacks such questions.
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
            "a different split, or leave it empty for a prompt without examples"
        )
    drawn = random.Random(0).sample(usable, min(_POOL, len(usable)))
    by_id = {question.id: question for question in drawn}
    pool = [Shot(question.text, question.id, question.image) for question in drawn]

    def shots(question: Question) -> list[Shot]:
        found: list[Shot] = []
        for shot in nearest(Shot(question.text, "", question.image), pool):
            example = by_id[shot.context]
            if len(found) < SHOTS and (context := evidence_text(example, knowledge, lead)):
                found.append(dataclasses.replace(shot, context=context, answer=example.answers[0]))
        return found

    return shots


def evidence_text(question: Question, knowledge: KnowledgeBase, lead: Lead) -> str:
    """Return the passages of a question's evidence, or else the first passage of its entries that states the answer.

    Entries that the knowledge base lacks are skipped.
    """
    entries = dict.fromkeys([*(evidence.entry_id for evidence in question.evidence), *question.entity_ids])
    known = [knowledge.get(name) for name in entries if name in knowledge]
    passages = [passage for entry in known for passage in split_passages(entry, lead=lead)]
    gold = gold_passages(question, passages)
    gold = gold or [passage for passage in passages if is_stating(question, passage)][:1]
    return "\n".join(texts_of(gold))
