"""The annotator `gold`: a passage is evidence if it stands in a section that the data set names as evidence.

Encyclopedic-VQA names evidence sections, Natural Questions has long answers; InfoSeek has neither.
"""

from __future__ import annotations

from collections.abc import Sequence

from reflectune.core.types import Evidence
from reflectune.data_builders.annotators.protocol import IRRELEVANT, Case, Judgement
from reflectune.data_builders.annotators.string import canonical_answer, stated_answer

NO_EVIDENCE_NAMED = Judgement("unclear", note="the data set names no evidence for the question")


def by_gold(cases: Sequence[Case]) -> list[Judgement]:
    """Judge passages by the data set's evidence sections.

    The answer of an evidence passage is the accepted one that occurs in it, else the question's first. A section of
    several paragraphs is evidence as a whole: the strict string filter then keeps those that hold the answer.
    """
    return [_judge(case) for case in cases]


def _judge(case: Case) -> Judgement:
    question, passage = case
    if not question.evidence:
        return NO_EVIDENCE_NAMED
    if Evidence(passage.entry_id, passage.section) not in question.evidence:
        return IRRELEVANT
    return Judgement("relevant", stated_answer(question, passage) or canonical_answer(question))
