"""mR²AG, arXiv 2411.15041, §3.1: retrieval-reflection and relevance-reflection, turn by turn."""

from __future__ import annotations

from typing import Final

from reflectune.models.rendering.turns import ANSWER_PROMPTS
from reflectune.models.schemes.passages import PassageScheme


class MR2AG(PassageScheme):
    """mR²AG."""

    title = "mR²AG ([2411.15041](https://arxiv.org/abs/2411.15041))"


SCHEME: Final = MR2AG(
    name="mr2ag",
    tokens={
        "retrieve": "[Retrieval]",
        "no_retrieve": "[No Retrieval]",
        "relevant": "[Relevant]",
        "irrelevant": "[Irrelevant]",
    },
    descriptions={
        "retrieve": "search for a document about this",
        "no_retrieve": "look at the picture and answer",
        "relevant": "yes, this document is evidence",
        "irrelevant": "no, another document",
    },
    prompts=ANSWER_PROMPTS,
)
