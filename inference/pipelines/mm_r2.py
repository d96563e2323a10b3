"""MM-R2 (arXiv 2607.22643), from the abstract: state the intent, select units, search inside them.

The model writes an intent state: the need, the referent in the image, and constraints. It selects units of a
knowledge map, and writes a query that is searched inside those units alone. The results are answered from.

From the abstract: the three steps, their order, the state's three parts. All else is ours: a unit is a section of an
entry, and the map has the sections of the entries that are similar to the image and the referent's name; at most
three units are selected; one query for all of them, by which the text reranker ranks their passages; one round, though
the authors' trajectories may take several; all prompts; the treatment of unreadable replies; and nothing is trained.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from reflectune.core.types import Passage, Question
from reflectune.inference.operators import parsing
from reflectune.inference.operators.budget import BudgetSpent
from reflectune.inference.operators.query_reply import read_queries
from reflectune.inference.operators.requests import SearchReply
from reflectune.inference.operators.reranking import best_first
from reflectune.inference.operators.searching import SearchSettings
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

STATE: Final = """\
Question: {question}

The question is about the image, and an encyclopedia has to be searched to answer it. First say what is searched \
for, in three lines of the following format:

Need: what has to be found out.
Referent: the name of what the image shows that the question is about, as precisely as you can.
Constraints: what else must hold, such as a time or a place; none if nothing must.
"""
SELECT: Final = """\
Question: {question}
{state}
The knowledge map has these units, each a section of an article:
{documents}

Which units can hold what is needed? Go by the image, too. Reply with the numbers of at most three, the most likely \
one first, in the following format:

[3] > [1]
"""
QUERY: Final = """\
Question: {question}
{state}
Chosen units:
{documents}

Write one search query to find what is needed in these units. Name the referent. Reply in the following format:

Query: the query.
"""
ANSWER: Final = "{question} {documents} "
UNITS: Final = 3
MapUnit: TypeAlias = tuple[str, int]
"""A unit of a knowledge map: an entry's id, and the index of a section."""


class MmR2Settings(PickingSettings, CandidateSettings, SearchSettings, DepthSettings, TrajectorySettings):
    """Settings of MM-R2."""


@dataclass(frozen=True)
class MmR2:
    """MM-R2's steps for one question."""

    settings: MmR2Settings

    def __call__(self, question: Question) -> Steps[TrajectoryResult]:
        """Generate the steps."""
        best: list[Passage] = []
        with contextlib.suppress(BudgetSpent):
            yield from self._search(question, best)
        read, longest = best[: self.settings.passages], self.settings.max_new_tokens
        template, slots = ANSWER + answer_instruction(question, detailed=False), {"question": question.text}
        answer = yield from write(
            "answer", 0, template, slots, documents=texts_of(read), max_tokens=longest, model="answerer"
        )
        ended = f"units searched: {len({_unit(passage) for passage in best})}"
        return TrajectoryResult(answer.text, ended, answer.score, tuple(read[: answer.shown]))

    def _search(self, question: Question, best: list[Passage]) -> Steps[None]:
        """Fill `best` with the passages of the selected units, in their order until the query ranks them."""
        slots, longest = {"question": question.text}, self.settings.max_record_tokens
        reply = yield from write("rewrite", 0, STATE, slots, max_tokens=longest, form="state")
        state = parsing.fields(reply.text, parsing.STATE_FIELDS)
        slots["state"] = "\n".join(f"{name.capitalize()}: {text}" for name, text in state.items())
        retrieved = yield from search(0, [state.get("referent", "")], {"pairs": [self.settings.candidates]})
        units = knowledge_map(retrieved)
        if not units:
            return
        listed = _listed(units)
        reply = yield from write("rerank", 0, SELECT, slots, documents=listed, max_tokens=longest, form="documents")
        named = parsing.named_documents(reply.text, len(units))[:UNITS]
        chosen = [list(units)[place] for place in named or range(min(UNITS, len(units)))]
        best += [passage for unit in chosen for passage in units[unit]]
        labels = _listed({unit: units[unit] for unit in chosen})
        reply = yield from write("rewrite", 0, QUERY, slots, documents=labels, max_tokens=longest, form="queries")
        queries = read_queries(reply.text, 1)
        scores = (yield from rerank_scores(0, queries[0] if queries else question.text, best)).scores
        best[:] = best_first(best, scores)


def knowledge_map(retrieved: SearchReply) -> dict[MapUnit, list[Passage]]:
    """Group the passages found by unit: the most similar entry first, its sections in the order of the article."""
    hits = retrieved.all_hits
    similar: dict[str, float] = {}
    for hit in hits:
        similar[hit.passage.entry_id] = max(hit.parts.get("entry", hit.score), similar.get(hit.passage.entry_id, -2.0))
    place = {name: rank for rank, name in enumerate(sorted(similar, key=lambda name: -similar[name]))}
    passages = {hit.passage.id: hit.passage for hit in hits}.values()
    units: dict[MapUnit, list[Passage]] = {}
    for passage in sorted(passages, key=lambda p: (place[p.entry_id], p.section, p.index)):
        units.setdefault(_unit(passage), []).append(passage)
    return units


def _unit(passage: Passage) -> MapUnit:
    return passage.entry_id, passage.section


def _listed(units: Mapping[MapUnit, Sequence[Passage]]) -> list[str]:
    """List the units by number, title and heading; an article's beginning has no heading."""
    names = (" – ".join(filter(None, (passages[0].title, passages[0].heading))) for passages in units.values())
    return [f"[{number}] {name}" for number, name in enumerate(names, start=1)]


RECIPES = iterative_recipe(
    "mm_r2", "MM-R2", MmR2Settings, lambda settings, parts: MmR2(settings), requires=(ENTRY_INDEX, RERANKER)
)
