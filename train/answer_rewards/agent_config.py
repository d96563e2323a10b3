"""Settings of `promsa_grpo.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from reflectune.core.config import Settings, cross_check, setting
from reflectune.inference.config import TextIndexSettings
from reflectune.inference.pipelines.promsa import PromsaSettings
from reflectune.inference.pipelines.requirements import LISTED_ENTRIES
from reflectune.retrieval.config import RetrieverConfig
from reflectune.train.answer_rewards.config import ReplyGrpoConfig

# Type checkers see no keys of pipelines here: only the pipelines' own files may read them.
if TYPE_CHECKING:
    PromsaKeys = Settings
else:
    PromsaKeys = PromsaSettings


class AgentGrpoConfig(ReplyGrpoConfig, RetrieverConfig, TextIndexSettings, PromsaKeys):
    """Train the trajectories of ProMSA's agent by TN-GSPO or GSPO."""

    horizon: float = setting(
        0.04, "TN-GSPO's c: a trajectory's gradient is divided by 1 + c x its calls; 0 for GSPO", ge=0
    )
    format_reward: float = setting(0.5, "reward of a trajectory whose replies are thoughts and one action each", ge=0)
    call_cost: float = setting(0.5, "cost of using all calls; of fewer, their share of it", ge=0)

    @cross_check
    def agent_problems(self) -> Iterator[str]:
        """Yield the problems of the index and the summaries."""
        yield from LISTED_ENTRIES.missing(self, "trajectories")
        if PromsaSettings.of(self).page_summaries != "none":
            yield "`page_summaries` is none in training: no other model is loaded"
