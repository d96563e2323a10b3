"""Settings of `promsa_grpo.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

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
    """Train the trajectories of ProMSA's agent by TRL's GRPO, GSPO or TN-GSPO."""

    ratio: Literal["token", "sequence"] = setting(
        "sequence", "importance ratio: of each token (GRPO), or of a whole trajectory (GSPO)"
    )
    horizon: float = setting(
        0.04, "TN-GSPO's c: a trajectory's log-ratio is divided by 1 + c x its calls; 0 for GSPO", ge=0
    )
    clip_low: float = setting(0.2, "a ratio is clipped at 1 - this", gt=0, le=1)
    clip_high: float = setting(0.28, "a ratio is clipped at 1 + this", gt=0)
    format_reward: float = setting(0.5, "reward of a trajectory whose replies are thoughts and one action each", ge=0)
    call_cost: float = setting(0.5, "cost of using all calls; of fewer, their share of it", ge=0)

    @cross_check
    def agent_problems(self) -> Iterator[str]:
        """Yield the problems of the ratio, the index and the summaries."""
        if self.horizon and self.ratio == "token":
            yield "`horizon` is of a trajectory's ratio: set `ratio: sequence`, or `horizon: 0`"
        yield from LISTED_ENTRIES.missing(self, "trajectories")
        if PromsaSettings.of(self).page_summaries != "none":
            yield "`page_summaries` is none in training: no other model is loaded"
