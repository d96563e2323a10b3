"""PMSR: search by the last record and by the whole trajectory, record new information, stop when queries repeat.

Iteration 0 is MI-RAG's: a description of the picture expands the question, and the results become the first record.
Iteration t searches with [Q; r_{t-1}] (the record's scope, equation 4) and with a query that the model writes from all
records (the trajectory's scope, equation 5), each with half of the budget. A record is written from the new results,
without earlier records (equation 8). The trajectory ends when the similarity of a query to an earlier one reaches τ
(equations 9 and 10); that is tested before the search, so that the last iteration costs no search and no record.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from reflectune.core.config import setting
from reflectune.core.types import Passage, Question
from reflectune.inference.operators.query_reply import read_queries
from reflectune.inference.operators.vocabulary import Steps, liken, merge, search, texts_of, write
from reflectune.inference.pipelines.iterative import RecordSettings, expanded, iterative_recipe, searched, split
from reflectune.inference.pipelines.mi_rag import RecordTrajectory, opening, recorded
from reflectune.inference.pipelines.requirements import ANY_INDEX, OPTIONAL_TEXTS

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


class PmsrFixedSettings(RecordSettings):
    """Settings of PMSR without its stop; `iterations: 4` in the paper."""

    scopes: Literal["both", "record", "trajectory"] = setting(
        "both", "PMSR: queries of the last record, of the whole trajectory, or both"
    )
    strip_question: bool = setting(False, "PMSR: compare queries without the question, as its released code does")


class PmsrSettings(PmsrFixedSettings):
    """Settings of PMSR."""

    saturation: float = setting(
        0.9, "PMSR: τ, 0.9 in the paper: stop when a query's similarity to an earlier one reaches it", ge=-1, le=2
    )


@dataclass(frozen=True)
class PmsrFixed(RecordTrajectory):
    """PMSR's trajectory of one question that always runs all iterations, to measure the savings of the stop."""

    settings: PmsrFixedSettings

    def _search(self, question: Question, records: list[str], passages: dict[str, Passage]) -> Steps[bool]:
        budgets = searched(question, self.budgets)
        first, description = yield from opening(question, self.settings.max_record_tokens)
        queries = [first]
        earlier = [self._compared(query, question) for query in queries]
        for iteration in range(self.settings.iterations + 1):
            if iteration:
                of_record = expanded(question.text, records[-1])
                queries = yield from self._of_scopes(of_record, iteration, question, records, otherwise=of_record)
                if (yield from self._repeats(iteration, question, queries, earlier)):
                    return True
            retrieved = merge((yield from search(iteration, queries, split(budgets, [1] * len(queries)))))
            passages |= {passage.id: passage for passage in retrieved}
            documents = texts_of(retrieved) if records else [*description, *texts_of(retrieved)]
            records.append((yield from recorded(iteration, question, documents, self.settings.max_record_tokens)))
        return False

    def _of_scopes(
        self, of_record: str, iteration: int, question: Question, records: list[str], *, otherwise: str
    ) -> Steps[list[str]]:
        """Write the queries of the scopes; `otherwise` if the trajectory's is the only one, and the reply has none."""
        if self.settings.scopes == "record":
            return [of_record]
        slots = {"question": question.text}
        reply = yield from write(
            "rewrite",
            iteration,
            TRAJECTORY,
            slots,
            documents=records,
            max_tokens=self.settings.max_record_tokens,
            form="queries",
        )
        of_trajectory = [*read_queries(reply.text, 1)]
        if self.settings.scopes == "trajectory":
            return of_trajectory or [otherwise]
        return [of_record, *of_trajectory]

    def _repeats(self, iteration: int, question: Question, queries: list[str], earlier: list[str]) -> Steps[bool]:
        """Return True if a query's similarity to an earlier one reaches τ; add the queries to the earlier ones."""
        compared = [self._compared(query, question) for query in queries]
        alike = yield from liken(iteration, compared, earlier)
        earlier += compared
        return self._stops(max(alike.highest, default=-1.0))

    def _compared(self, query: str, question: Question) -> str:
        """Return the part of a query that the stop rule compares."""
        return (
            query.removeprefix(expanded(question.text, "").rstrip()).strip() if self.settings.strip_question else query
        )

    def _stops(self, similarity: float) -> bool:
        """Return True if a query's similarity to an earlier one ends the trajectory."""
        return False


@dataclass(frozen=True)
class Pmsr(PmsrFixed):
    """PMSR's trajectory of one question."""

    settings: PmsrSettings

    def _stops(self, similarity: float) -> bool:
        return similarity >= self.settings.saturation


_recipe = partial(
    iterative_recipe, requires=(ANY_INDEX, OPTIONAL_TEXTS), pair_text="summary", takes_texts=True, has_own_depth=True
)
RECIPES = {
    **_recipe("pmsr", "PMSR", PmsrSettings, lambda settings, parts: Pmsr(settings, settings.budgets(parts))),
    **_recipe(
        "pmsr_fixed",
        "PMSR, all iterations",
        PmsrFixedSettings,
        lambda settings, parts: PmsrFixed(settings, settings.budgets(parts)),
    ),
}
