"""IBA, identify before answer (arXiv 2606.23881, ACL 2026 findings): identify the entity, then rank its sections.

The image finds entries. From their names alone the model picks three, with probabilities. All passages of the three
are ranked by α · ID + β · V + γ · T: the entity's probability, the image's similarity to its entry, and the score of
a text reranker. The question is answered from the best ones. Nothing is trained.

Published: 20 names (`top_n: 20`), 3 picks, options by letter, the sum and its weights (1, 0.5 and 0.5 for T, V and ID
are the released script's defaults). Ours: the words of the prompts (the authors' code has no licence); T is scaled to
[0, 1] over a question's passages, since rerankers have no common scale, and the script's additional product of T and ID
is left out; as many passages are read as in the other pipelines (`passages`), where the script reads one section; if
the model gives no probabilities, the three count as equally likely.
"""

from __future__ import annotations

import contextlib
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reflectune.core.types import Passage, Question
from reflectune.inference.operators import parsing
from reflectune.inference.operators.budget import BudgetSpent
from reflectune.inference.operators.requests import Form, WriteOperator, WriteReply
from reflectune.inference.operators.reranking import best_first
from reflectune.inference.operators.trajectory import TrajectoryResult
from reflectune.inference.operators.vocabulary import Steps, rerank_scores, search, texts_of, write
from reflectune.inference.pipelines.iterative import (
    CandidateSettings,
    TrajectorySettings,
    answer_instruction,
    iterative_recipe,
)
from reflectune.inference.pipelines.requirements import ENTRY_INDEX, RERANKER
from reflectune.inference.pipelines.settings import DepthSettings, PickingSettings

IDENTIFY = """\
The image shows one of these, or something related to one of them:
{documents}

Which three are the most likely? Go by the image. Reply with their letters, the most likely one first, in the \
following format:

Answer: X, Y, Z
"""
PROBABILITIES = """\
Question: {question}
The image may show one of these:
{documents}

How likely is each of them to be what the image shows? Reply with a JSON object alone, with one number from 0 to 1 for \
each in their order:

{"probabilities": [...]}
"""
ANSWER = "{question} {documents} "

PICKS = 3
WEIGHTS = (0.5, 0.5, 1.0)
"""α, β and γ: of the entity's probability, the image's similarity to the entry, and the reranker's scaled score."""


class IbaSettings(PickingSettings, CandidateSettings, DepthSettings, TrajectorySettings):
    """Settings of IBA."""


@dataclass(frozen=True)
class Iba:
    """IBA's steps for one question."""

    settings: IbaSettings

    def __call__(self, question: Question) -> Steps[TrajectoryResult]:
        """Generate the steps."""
        best, identified = list[Passage](), list[str]()
        with contextlib.suppress(BudgetSpent):
            yield from self._identify(question, best, identified)
        answer = yield from write(
            "answer",
            0,
            ANSWER + answer_instruction(question, detailed=False),
            {"question": question.text},
            documents=texts_of(best),
            max_tokens=self.settings.max_new_tokens,
            model="answerer",
        )
        ended = f"identified {', '.join(identified)}" if identified else "nothing identified"
        return TrajectoryResult(answer.text, ended, answer.score, tuple(best[: answer.shown]))

    def _identify(self, question: Question, best: list[Passage], identified: list[str]) -> Steps[None]:
        """Fill `best` with the passages to read, and `identified` with the titles of the picked entries.

        Until the passages are ranked, `best` has the first ones of the search, in case the budget ends before.
        """
        asked = {"question": question.text}
        found = yield from search(0, [""], {"pairs": [self.settings.candidates]})
        passages = [hit.passage for hit in found.all_hits]
        if not passages:
            return
        titles = {passage.entry_id: passage.title for passage in passages}
        best += passages[: self.settings.passages]
        names = list(titles)[: len(string.ascii_uppercase)]

        def choose(operator: WriteOperator, template: str, options: Sequence[str], form: Form) -> Steps[WriteReply]:
            documents, most = _options(options, titles), self.settings.max_record_tokens
            return write(operator, 0, template, asked, documents=documents, max_tokens=most, form=form)

        reply = yield from choose("rerank", IDENTIFY, names, "letters")
        picked = [names[place] for place in parsing.letters(reply.text, len(names))]
        picked = list(dict.fromkeys([*picked, *names]))[:PICKS]
        identified += [titles[name] for name in picked]
        reply = yield from choose("verify", PROBABILITIES, picked, "shares")
        likely = parsing.shares(reply.text, len(picked)) or (1 / PICKS,) * len(picked)
        opened = [passage for passage in passages if passage.entry_id in picked]
        scores = (yield from rerank_scores(0, question.text, opened)).scores
        similar = {hit.passage.entry_id: hit.score for hit in found.all_hits}
        best[:] = self._best(opened, dict(zip(picked, likely, strict=True)), similar, scaled(scores))

    def _best(
        self,
        passages: Sequence[Passage],
        likely: Mapping[str, float],
        similar: Mapping[str, float],
        relevant: Sequence[float],
    ) -> list[Passage]:
        """Return the passages with the highest α · ID + β · V + γ · T, best first."""
        alpha, beta, gamma = WEIGHTS
        scores = [
            alpha * likely[passage.entry_id] + beta * similar[passage.entry_id] + gamma * score
            for passage, score in zip(passages, relevant, strict=True)
        ]
        return [*best_first(passages, scores)[: self.settings.passages]]


def _options(names: Sequence[str], titles: Mapping[str, str]) -> list[str]:
    return [f"{letter}. {titles[name]}" for letter, name in zip(string.ascii_uppercase, names, strict=False)]


def scaled(scores: Sequence[float]) -> list[float]:
    """Scale scores linearly to [0, 1]; 0 if all are equal."""
    low, high = min(scores, default=0.0), max(scores, default=0.0)
    return [(score - low) / (high - low) if high > low else 0.0 for score in scores]


RECIPES = iterative_recipe(
    "iba", "IBA", IbaSettings, lambda settings, parts: Iba(settings), requires=(ENTRY_INDEX, RERANKER)
)
