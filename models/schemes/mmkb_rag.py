"""MMKB-RAG, arXiv 2504.10074, §3.1: P_RET, P_SRT, P_MCT, P_vqa. The paper doesn't print its prompts: these are ours.

P_vqa is the prompt of a plain model (`turns.answer_turns`), as naive RAG and closed book ask a base model.
"""

from __future__ import annotations

from typing import ClassVar, Final

from reflectune.models.rendering.turns import ANSWER_PROMPTS
from reflectune.models.schemes.base import Gate
from reflectune.models.schemes.prompts import PromptScheme


class MMKBRAG(PromptScheme):
    """MMKB-RAG."""

    title = "MMKB-RAG ([2504.10074](https://arxiv.org/abs/2504.10074))"
    gates = (Gate("ret", "retrieve", "no_retrieve"), Gate("srt", "relevant", "irrelevant"))
    long_question = 12  # RET, ten documents and MCT
    variants: ClassVar = {
        "search_result": {
            "srt": "Search result {found}. Document: {passage} Does this document help to answer the question?"
        }
    }

    def retrieves(self, probability: float, gamma: float) -> bool:
        """Return True if Score_RET is above γ (equation 3)."""
        return probability > gamma


SCHEME: Final = MMKBRAG(
    name="mmkb_rag",
    tokens={"retrieve": "[Ret]", "no_retrieve": "[NoRet]", "relevant": "[Rel]", "irrelevant": "[NoRel]"},
    descriptions={
        "retrieve": "search for a document about this",
        "no_retrieve": "the answer is known",
        "relevant": "yes, this document helps",
        "irrelevant": "no, another document",
    },
    prompts={
        "ret": "Are documents needed to answer the question?",
        "srt": "Document: {passage} Does this document help to answer the question?",
        "mct": "Documents: {passage} Which documents agree with each other and support the answer? "
        "Give their numbers, then a summary of what they say.",
        # What Algorithm 3 asks a model that hasn't learned P_MCT yet.
        "summary": "{passage} Summarize in one or two short sentences what these documents say about the question.",
        **ANSWER_PROMPTS,
    },
)
