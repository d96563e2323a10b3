"""PMSR: search by the last record and by the whole trajectory, record new information, stop when queries repeat.

Iteration 0 is MI-RAG's: a description of the image expands the question, and the results become the first record.
Iteration t searches with [Q; r_{t-1}] (the record's scope, equation 4) and with a query that the model writes from all
records (the trajectory's scope, equation 5), each with half of the budget. A record is written from the new results,
without earlier records (equation 8). The trajectory ends when the similarity of a query to an earlier one reaches τ
(equations 9 and 10); that is tested before the search, so that the last iteration costs no search and no record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from reflectune.core.config import setting
from reflectune.core.types import Question
from reflectune.inference.operators.vocabulary import Steps, similarity
from reflectune.inference.pipelines.iterative import expand, iterative_recipe
from reflectune.inference.pipelines.mi_rag import RecordSettings, RecordTrajectory, with_options
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
"""The trajectory's query. The paper's figure A2 is an image; these words follow its description in A.2."""


class PmsrFixedSettings(RecordSettings):
    """Settings of PMSR without its stop; `iterations: 4` in the paper."""

    scopes: Literal["both", "record", "trajectory"] = setting(
        "both", "PMSR: queries of the last record, of the whole trajectory, or both"
    )


class PmsrSettings(PmsrFixedSettings):
    """Settings of PMSR."""

    saturation: float = setting(
        0.9, "PMSR: τ, 0.9 in the paper: stop when a query's similarity to an earlier one reaches it", ge=-1, le=2
    )


@dataclass(frozen=True)
class PmsrFixed(RecordTrajectory):
    """PMSR's trajectory of one question that always runs all iterations, to measure the savings of the stop."""

    settings: PmsrFixedSettings

    def _next(self, iteration: int, question: Question, records: Sequence[str]) -> Steps[list[str]]:
        """Write the queries of the scopes: equations 3 to 5."""
        of_record = [] if self.settings.scopes == "trajectory" else [expand(question.text, records[-1])]
        of_trajectory = yield from self._of_trajectory(iteration, question, records)
        return [*of_record, *of_trajectory] or [expand(question.text, records[-1])]

    def _of_trajectory(self, iteration: int, question: Question, records: Sequence[str]) -> Steps[list[str]]:
        """Write the query of the trajectory's scope; none if it isn't used, or the reply has none."""
        if self.settings.scopes == "record":
            return []
        return (yield from self._generate(iteration, TRAJECTORY, question, records, 1))

    def _repeats(self, iteration: int, question: Question, queries: Sequence[str], earlier: list[str]) -> Steps[bool]:
        """Return True if a query's similarity to an earlier one reaches τ: equations 9 and 10."""
        alike = yield from similarity(iteration, queries, earlier)
        earlier += queries
        return self._stops(max(alike.highest, default=-1.0))

    def _stops(self, similarity: float) -> bool:
        """Return True if a query's similarity to an earlier one ends the trajectory."""
        return False


@dataclass(frozen=True)
class Pmsr(PmsrFixed):
    """PMSR's trajectory of one question."""

    settings: PmsrSettings

    def _stops(self, similarity: float) -> bool:
        return similarity >= self.settings.saturation


_recipe = partial(iterative_recipe, requires=(ANY_INDEX, OPTIONAL_TEXTS), pair_text="summary", has_own_depth=True)
RECIPES = {
    **_recipe(
        "pmsr", "PMSR", PmsrSettings, with_options(lambda settings, parts: Pmsr(settings, settings.budgets(parts)))
    ),
    **_recipe(
        "pmsr_fixed",
        "PMSR, all iterations",
        PmsrFixedSettings,
        with_options(lambda settings, parts: PmsrFixed(settings, settings.budgets(parts))),
    ),
}
