"""PMSR: search by the last record and by the whole trajectory, record new information, stop when queries repeat.

Iteration 0 is MI-RAG's: a description of the picture expands the question, and the results become the first record.
Iteration t searches with [Q; r_{t-1}] (the record's scope, equation 4) and with a query that the model writes from all
records (the trajectory's scope, equation 5), each with half of the budget. A record is written from the new results,
without earlier records (equation 8). The trajectory ends when the similarity of a query to an earlier one reaches τ
(equations 9 and 10); that is tested before the search, so that the last iteration costs no search and no record.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial
from typing import Final

from reflectune.core.types import Passage, Question
from reflectune.inference.config import ReadingConfig, Scope
from reflectune.inference.operators import parsing
from reflectune.inference.operators.budget import BudgetSpent
from reflectune.inference.operators.trajectory import TrajectoryResult
from reflectune.inference.operators.vocabulary import Steps, liken, merge, search, texts_of, write
from reflectune.inference.pipelines.iterative import Budgets, expanded, iterative_recipe, searched, split
from reflectune.inference.pipelines.mi_rag import answered, opening, recorded

TRAJECTORY: Final = """\
Question: {question}
Knowledge: {documents}

Please first analyze the question and all the information in a section named Analysis (## Analysis): what is missing, \
underspecified or in conflict.
Then write one question to search for it, in a section named Output (## Output).
Your output should be in the following format:

## Analysis
What the knowledge lacks to answer the question.
## Output
Question: the question.
"""
"""The trajectory's query. The paper's figure A2 is a picture; these words follow its description in A.2."""

REPEATS = "queries repeat"
NEVER = 2.0
"""Above any similarity: `pmsr_fixed` always runs all iterations, to measure the savings of the stop."""


@dataclass(frozen=True)
class Pmsr:
    """PMSR's trajectory of one question.

    Attributes:
        iterations: How many follow the first, at most; the paper's is 4.
        budgets: The most passages of an iteration, by knowledge base.
        saturation: τ; 0.9 in the paper.
        max_answer: The longest answer in tokens.
        max_record: The longest description, query and reasoning record, in tokens.
        scopes: Which queries are made: of the record, of the trajectory, or both.
        strip_question: Compare queries without the question that begins them, as the released code does.
        detailed: Whether the answer is asked for as in the paper, in detail; else in the words of all pipelines here.
    """

    iterations: int
    budgets: Budgets
    saturation: float
    max_answer: int
    max_record: int
    scopes: Scope = "both"
    strip_question: bool = False
    detailed: bool = False

    def __call__(self, question: Question) -> Steps[TrajectoryResult]:
        """Generate the steps."""
        records: list[str] = []
        passages: dict[str, Passage] = {}
        repeats = False
        with contextlib.suppress(BudgetSpent):
            repeats = yield from self._search(question, records, passages)
        answer = yield from answered(question, records, passages, self.max_answer, detailed=self.detailed)
        ended = REPEATS if repeats else f"after {self.iterations} iterations"
        return TrajectoryResult(answer.text, ended, answer.score, tuple(passages.values()), records=tuple(records))

    def _search(self, question: Question, records: list[str], passages: dict[str, Passage]) -> Steps[bool]:
        """Search and reason; results are added to `records` and `passages`, and stay if a budget ends this early.

        Returns:
            True if it ended because queries repeat.
        """
        budgets = searched(question, self.budgets)
        first, description = yield from opening(question, self.max_record)
        queries = [first]
        earlier = [self._compared(query, question) for query in queries]
        for iteration in range(self.iterations + 1):
            if iteration:
                queries = yield from self._queries(iteration, question, records)
                if (yield from self._repeats(iteration, question, queries, earlier)):
                    return True
            retrieved = merge((yield from search(iteration, queries, split(budgets, [1] * len(queries)))))
            passages |= {passage.id: passage for passage in retrieved}
            documents = texts_of(retrieved) if records else [*description, *texts_of(retrieved)]
            records.append((yield from recorded(iteration, question, documents, self.max_record)))
        return False

    def _queries(self, iteration: int, question: Question, records: list[str]) -> Steps[list[str]]:
        """Write the queries of both scopes; that of the record alone if the model's reply has no other."""
        of_record = expanded(question.text, records[-1])
        return (yield from self._of_scopes(of_record, iteration, question, records, otherwise=of_record))

    def _of_scopes(
        self, of_record: str, iteration: int, question: Question, records: list[str], *, otherwise: str
    ) -> Steps[list[str]]:
        """Write the queries of the scopes; `otherwise` if the trajectory's is the only one, and the reply has none."""
        if self.scopes == "record":
            return [of_record]
        slots = {"question": question.text}
        reply = yield from write("rewrite", iteration, TRAJECTORY, slots, documents=records, max_tokens=self.max_record)
        of_trajectory = [*parsing.queries(reply.text, 1)]
        if self.scopes == "trajectory":
            return of_trajectory or [otherwise]
        return [of_record, *of_trajectory]

    def _repeats(self, iteration: int, question: Question, queries: list[str], earlier: list[str]) -> Steps[bool]:
        """Return True if a query's similarity to an earlier one reaches τ; add the queries to the earlier ones."""
        compared = [self._compared(query, question) for query in queries]
        alike = yield from liken(iteration, compared, earlier)
        earlier += compared
        return max(alike.highest, default=-1.0) >= self.saturation

    def _compared(self, query: str, question: Question) -> str:
        """Return the part of a query that the stop rule compares."""
        return query.removeprefix(expanded(question.text, "").rstrip()).strip() if self.strip_question else query


def _make(config: ReadingConfig, budgets: Budgets, saturation: float) -> Pmsr:
    longest = config.max_new_tokens, config.max_record_tokens
    scopes, strip = config.scopes, config.strip_question
    return Pmsr(config.iterations, budgets, saturation, *longest, scopes, strip, config.detailed_answer)


_BOTH = partial(iterative_recipe, pair_text="summary", has_records=True, takes_texts=True)
RECIPES = {
    **_BOTH("pmsr", lambda c, budgets: _make(c, budgets, c.saturation), ("saturation", "scopes", "strip_question")),
    **_BOTH("pmsr_fixed", lambda c, budgets: _make(c, budgets, NEVER), ("scopes", "strip_question")),
}
