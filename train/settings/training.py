"""The settings that every training has, by whatever objective."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from reflectune.core.config import setting
from reflectune.models.weights.quantization import missing_bitsandbytes
from reflectune.train.settings.model import AdapterConfig, ModelConfig
from reflectune.train.settings.optimisation import ComputeConfig, OptimisationConfig
from reflectune.train.settings.saving import PublishingConfig, SavingConfig


@dataclass
class TrainingConfig(PublishingConfig, SavingConfig, ComputeConfig, OptimisationConfig, AdapterConfig, ModelConfig):
    """Train a model: which one, how, and what is written. A dataclass takes its last base's fields first."""

    dry_run: bool = setting(False, "say what would be trained, and stop")

    def problems(self) -> list[str]:
        """What is wrong with the values, and with what they name, one sentence each."""
        issues = [f"`{name}` is needed: {why}" for name, why in _NEEDED.items() if not getattr(self, name)]
        issues += self.value_problems() + self.tracker_problems()
        if self.method == "qlora" and (missing := missing_bitsandbytes()):
            issues.append(f"`method`: {missing}")
        return issues + self.hub_problems()

    def value_problems(self) -> list[str]:
        """What is wrong with the values by themselves, wherever they are read."""
        concerns = (ModelConfig, AdapterConfig, OptimisationConfig, ComputeConfig, SavingConfig)
        issues = [problem for concern in concerns for problem in concern.problems(self)]
        return issues + self.token_problems(self.scheme)

    def run_settings(self) -> dict[str, Any]:
        """The settings that determine the weights: a run can only be resumed if they are the same."""
        unread = _FREE | (set() if self.method == "qlora" else {"double_quantization"}) | self.tower_settings()
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in unread}


_FREE = frozenset(
    "model output_dir resume save_steps save_total_limit logging_steps report_to cache_mib dataloader_workers "
    "gradient_checkpointing push_to_hub hub_private licence dry_run per_device_train_batch_size "
    "gradient_accumulation_steps image_fit min_pixels max_pixels".split()
)
"""Settings that don't determine the weights. (`model` may be moved: its content is hashed, and how pictures are fitted
with it. Of the batch sizes their product with the number of processes does: see `reflectune.train.data.global_batch`.)
"""
_NEEDED = {
    "output_dir": "a folder for the checkpoint",
    "model": "e.g. miniature/llava, llava-hf/llava-1.5-7b-hf or a folder",
    "scheme": "e.g. mr2ag",
}
