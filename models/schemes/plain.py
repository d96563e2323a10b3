"""Supervised fine-tuning without reflection: the papers' baselines, e.g. LLaVA-FT of mR²AG's Table 9."""

from __future__ import annotations

from typing import Final

from reflectune.models.rendering.turns import ANSWER_PROMPTS
from reflectune.models.schemes.prompts import PromptScheme


class Plain(PromptScheme):
    """Plain fine-tuning: prompts for an answer alone."""

    title = "supervised fine-tuning without reflection, the baselines of mR²AG"
    long_question = 2


SCHEME: Final = Plain(name="plain", tokens={}, descriptions={}, prompts=ANSWER_PROMPTS)
