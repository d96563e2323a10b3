"""MI-RAG (arXiv 2509.00798, algorithm 1): search, reason and search again N times; answer from all records.

Iteration 0 searches with the question and a description of the picture. Each further one searches with the question and
the last reasoning record (query expansion) and with two follow-up questions written from all records, in a text and a
multimodal knowledge base, and writes a record of the new information. The answer is read from the records alone.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reflectune.core.types import Passage, Question
from reflectune.inference.operators.budget import BudgetSpent
from reflectune.inference.operators.query_reply import read_queries
from reflectune.inference.operators.requests import WriteReply
from reflectune.inference.operators.trajectory import TrajectoryResult
from reflectune.inference.operators.vocabulary import Steps, merge, search, texts_of, write
from reflectune.inference.pipelines.iterative import (
    Budgets,
    RecordSettings,
    answer_instruction,
    expanded,
    iterative_recipe,
    searched,
    split,
)
from reflectune.inference.pipelines.requirements import ANY_INDEX, OPTIONAL_TEXTS

DESCRIBE = "Question: {question}\n Concisely describe image which is relevant to question.\n"
FOLLOW_UP = """\
Question: {question}
Knowledge: {documents}

Please first analyze all the information in a section named Analysis (## Analysis).
Generate two follow-up questions to search for additional information and helpful to confirm knowledge, in a section \
named Queries (## Queries).
Your output should be in the following format:

## Analysis
Analysis question and knowledge to ask context-specific queries that helps to address question.
## Queries
Question 1: question 1.
Question 2: question 2.
"""
REASON = """\
Question: {question}
Knowledge: {documents}

Based on image, description and knowledge, summarize correct and relevant information with image and question.
"""
ANSWER = """\
Please answer the following question using the provided information and image.

Question: {question}
Relevant Knowledge: {documents}

"""
"""The prompts of the paper's figure A11. `ANSWER` goes on with how an answer is asked for."""
REASON_TEXTS = REASON.replace("image, description and knowledge", "knowledge").replace("image and question", "question")
ANSWER_TEXTS = ANSWER.replace("information and image", "information")
"""The same for a question without a picture."""
FOLLOW_UPS = 2
REPEATS = "queries repeat"
"""End of a trajectory whose queries repeat (PMSR)."""


@dataclass(frozen=True)
class RecordTrajectory(ABC):
    """A trajectory of one question that searches, writes records, and answers from them.

    Attributes:
        settings: The settings; `iterations` is N, 4 in the papers.
        budgets: The most passages of an iteration, by knowledge base.
    """

    settings: RecordSettings
    budgets: Budgets

    def __call__(self, question: Question) -> Steps[TrajectoryResult]:
        """Generate the steps."""
        records: list[str] = []
        passages: dict[str, Passage] = {}
        repeats = False
        with contextlib.suppress(BudgetSpent):
            repeats = yield from self._search(question, records, passages)
        answer = yield from answered(question, records, passages, self.settings)
        ended = REPEATS if repeats else f"after {self.settings.iterations} iterations"
        return TrajectoryResult(answer.text, ended, answer.score, tuple(passages.values()), records=tuple(records))

    @abstractmethod
    def _search(self, question: Question, records: list[str], passages: dict[str, Passage]) -> Steps[bool]:
        """Search and reason, adding to `records` and `passages` also if a budget ends this; True if queries repeat."""


@dataclass(frozen=True)
class MiRag(RecordTrajectory):
    """MI-RAG's trajectory of one question."""

    def _search(self, question: Question, records: list[str], passages: dict[str, Passage]) -> Steps[bool]:
        """Search and reason; results are added to `records` and `passages`, and stay if a budget ends this early."""
        slots, budgets = {"question": question.text}, searched(question, self.budgets)
        max_tokens = self.settings.max_record_tokens
        first, description = yield from opening(question, max_tokens)
        for iteration in range(self.settings.iterations + 1):
            queries = [expanded(question.text, records[-1]) if records else first]
            if records:
                follow_up = yield from write(
                    "rewrite", iteration, FOLLOW_UP, slots, documents=records, max_tokens=max_tokens, form="queries"
                )
                queries += read_queries(follow_up.text, FOLLOW_UPS)
            shares = [len(queries) - 1 or 1, *(1 for _ in queries[1:])]
            retrieved = merge((yield from search(iteration, queries, split(budgets, shares))))
            passages |= {passage.id: passage for passage in retrieved}
            documents = texts_of(retrieved) if records else [*description, *texts_of(retrieved)]
            records.append((yield from recorded(iteration, question, documents, max_tokens)))
        return False


def opening(question: Question, max_tokens: int) -> Steps[tuple[str, list[str]]]:
    """Write the first query and a picture's description: [Q; description]; without a picture the question alone."""
    if not question.image:
        return question.text, []
    described = yield from write("caption", 0, DESCRIBE, {"question": question.text}, max_tokens=max_tokens)
    return expanded(question.text, described.text), [described.text]


def recorded(iteration: int, question: Question, documents: Sequence[str], max_tokens: int) -> Steps[str]:
    """Write a reasoning record of the results."""
    template = REASON if question.image else REASON_TEXTS
    slots = {"question": question.text}
    return (yield from write("reason", iteration, template, slots, documents=documents, max_tokens=max_tokens)).text


def answered(
    question: Question, records: Sequence[str], passages: Mapping[str, Passage], settings: RecordSettings
) -> Steps[WriteReply]:
    """Answer from the records; from the passages by id if a budget left no record."""
    return (
        yield from write(
            "answer",
            max(len(records) - 1, 0),
            (ANSWER if question.image else ANSWER_TEXTS)
            + answer_instruction(question, detailed=settings.detailed_answer),
            {"question": question.text},
            documents=records or texts_of(list(passages.values())),
            max_tokens=settings.max_new_tokens,
            model="answerer",
        )
    )


RECIPES = iterative_recipe(
    "mi_rag",
    "MI-RAG",
    RecordSettings,
    lambda settings, parts: MiRag(settings, settings.budgets(parts)),
    requires=(ANY_INDEX, OPTIONAL_TEXTS),
    pair_text="section",
    takes_texts=True,
    has_own_depth=True,
)
