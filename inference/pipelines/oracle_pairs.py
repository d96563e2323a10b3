"""Answer from the gold section next to retrieved image-text pairs: PMSR's appendix M, Table A8.

The section is given, so that a loss of score by more pairs is the loss by distractors.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from reflectune.core.types import Passage, Question
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.formats.passages import split_passages
from reflectune.inference.operators.pair_images import PairImageSettings, images_of
from reflectune.inference.operators.requests import SearchReply
from reflectune.inference.operators.searching import SearchSettings
from reflectune.inference.operators.trajectory import TrajectoryResult
from reflectune.inference.operators.vocabulary import Steps, merge, search, texts_of, write
from reflectune.inference.pipelines.extraction import Shorten
from reflectune.inference.pipelines.iterative import PairSettings, answer_instruction, iterative_recipe
from reflectune.inference.pipelines.mi_rag import ANSWER, DetailedSettings, shorten_by
from reflectune.inference.pipelines.recipe import with_evidence
from reflectune.inference.pipelines.requirements import ENTRY_INDEX


class OraclePairsSettings(PairImageSettings, PairSettings, SearchSettings, DetailedSettings):
    """Settings of answers from the gold section and pairs."""


@dataclass(frozen=True)
class OraclePairs:
    """Answers one question from its gold section and `pair_passages` pairs, found by its image and text.

    A pair of the gold section itself is left out.

    Attributes:
        settings: The settings.
        knowledge: The entries of the evidence.
        shorten: Shortens the answer.
    """

    settings: OraclePairsSettings
    knowledge: KnowledgeBase
    shorten: Shorten | None = None

    def __call__(self, question: Question) -> Steps[TrajectoryResult]:
        """Generate the steps."""
        sections = self._sections(question)
        found = SearchReply()
        if self.settings.pair_passages:
            found = yield from search(0, [question.text], {"pairs": [self.settings.pair_passages]})
        known = {(section.entry_id, section.section) for section in sections}
        pairs = [passage for passage in merge(found) if (passage.entry_id, passage.section) not in known]
        images = images_of(found, pairs, self.settings.pair_images)
        reply = yield from write(
            "answer",
            0,
            ANSWER + answer_instruction(question, detailed=self.settings.detailed_answer),
            {"question": question.text},
            documents=texts_of([*sections, *pairs]),
            max_tokens=self.settings.answer_tokens,
            model="answerer",
            images={len(sections) + place: path for place, path in images.items()},
        )
        if self.shorten is not None:
            reply = (yield from self.shorten(question, 0, reply.text, ())) or reply
        ended = f"with {len(pairs)} pairs"
        return TrajectoryResult(reply.text, ended, reply.score, (*sections, *pairs))

    def _sections(self, question: Question) -> list[Passage]:
        """Return the sections of a question's evidence, each whole."""
        return [
            passage
            for evidence in question.evidence
            for passage in split_passages(self.knowledge.get(evidence.entry_id), cut="sections", lead="none")
            if passage.section == evidence.section
        ]


_RECIPES = iterative_recipe(
    "oracle_pairs",
    "Gold section and pairs",
    OraclePairsSettings,
    lambda settings, parts: OraclePairs(settings, parts.knowledge, shorten_by(settings, parts)),
    requires=(ENTRY_INDEX,),
    pair_text="summary",
    has_own_depth=True,
)
RECIPES = {name: dataclasses.replace(recipe, takes=with_evidence, reads_gold=True) for name, recipe in _RECIPES.items()}
