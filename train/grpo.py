"""Train gates by reward: `accelerate launch train/grpo.py --config configs/….yaml [--key value …] [--dry_run]`.

The pipeline answers the training questions without and with retrieval, and the gate learns from both rewards; see
`reflectune.train.gate_rewards.policy`. The same command resumes an interrupted run.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

from reflectune.core.command import command
from reflectune.core.config import cross_check
from reflectune.inference.config import BaseModelSettings, DatasetSettings, EngineSettings, ModelSettings
from reflectune.inference.pipelines.mmkb_rag import MmkbRagSettings
from reflectune.inference.pipelines.registry import find_recipe, reflecting
from reflectune.inference.pipelines.settings import GateSettings
from reflectune.inference.running.config import ReflectingPipelines, unread_settings
from reflectune.models.rendering.image_config import ImageKeys
from reflectune.retrieval.config import RetrieverConfig
from reflectune.train.gate_rewards.config import GateConfig


class GrpoConfig(GateConfig, BaseModelSettings, EngineSettings, DatasetSettings, ReflectingPipelines):
    """Settings of the training of gates, and of the pipeline that measures their rewards."""

    @classmethod
    def unread_keys(cls, values: Mapping[str, Any]) -> Set[str]:
        """Return the keys of other schemes' pipelines, and of a gate's decision: both outcomes are measured."""
        scheme = str(values.get("scheme", cls.model_fields["scheme"].default))
        return super().unread_keys(values) | {"gamma", "ret"} | unread_settings(cls, ReflectingPipelines, [scheme])

    @cross_check
    def grpo_problems(self) -> Iterator[str]:
        """Yield the problems of measuring rewards."""
        if GateSettings.of(self) != GateSettings() or not MmkbRagSettings.of(self).ret:
            yield "`gamma` and `ret` have no effect: rewards are measured for both outcomes of the gate; leave them out"
        if not RetrieverConfig.of(self).finds_entries:
            yield "`index` is needed, or `ranked_entities`: rewards are measured with retrieval"
        if self.scheme not in reflecting():
            yield f"`scheme` is one of {', '.join(reflecting())}; found `{self.scheme}`"
            return
        recipe = find_recipe(self.scheme)
        if recipe.models(self).base_answers and not self.base_model:
            yield f"`base_model` is needed: it answers for {self.scheme}, unless `answer_model` is tuned"
        if "relevance" in self.gates and recipe.answer_each is None:
            yield f"`gates`: {self.scheme} can't answer from each passage alone; train the retrieval gate only"
        settings = recipe.settings_of(self)
        if "relevance" in self.gates and isinstance(settings, MmkbRagSettings) and not settings.srt:
            yield "`gates` with relevance needs `srt: true`: it trains SRT's gate"

    def models(self) -> ModelSettings:
        """Return the settings for loading the models that answer."""
        shared = {*BaseModelSettings.model_fields, *EngineSettings.model_fields, *ImageKeys.model_fields}
        return ModelSettings(**self.model_dump(include={*shared, "dtype", "device"}))


@command(GrpoConfig, writes="output_dir")
def grpo(config: GrpoConfig) -> None:
    """Train the gates of a fine-tuned checkpoint by reward."""
    # slow to import: after the config is right
    from reflectune.core.hashing import fingerprint
    from reflectune.formats.dataset import Dataset
    from reflectune.inference.running.loading import require_models
    from reflectune.inference.running.rollout import GateRewardRollout
    from reflectune.metrics.scoring.registry import find_metric
    from reflectune.train.gate_rewards.run import GateTraining
    from reflectune.train.runs.skeleton import run

    recipe = find_recipe(config.scheme)
    require_models([config.model, config.base_model if recipe.models(config).base_answers else ""])
    config.metric = config.scored_by(config.dataset)
    bem = config.open_bem(config.device)
    measuring = functools.partial(
        GateRewardRollout,
        recipe.settings_of(config),
        config.models(),
        RetrieverConfig.of(config),
        folder=config.rewards_folder(),
        correctness=find_metric(config.metric, bem),
        batch_questions=config.batch_questions,
        relevance="relevance" in config.gates,
        run=fingerprint(config.hashed()),
    )
    hashes = {
        "base_model": config.base_model,
        "index_fingerprint": RetrieverConfig.of(config).finder_fingerprint(),
        **({"bem_fingerprint": bem.fingerprint} if bem else {}),
    }
    run(config, GateTraining(config, Dataset(Path(config.dataset)), hashes, measuring))


if __name__ == "__main__":
    grpo.main()
