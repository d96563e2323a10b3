"""Train ProMSA's agent by TN-GSPO or GSPO: `accelerate launch train/promsa_grpo.py --config FILE.yaml [--key value …]`.

The model in training samples trajectories, whose tool calls search the data set's indexes. The reward is a weighted sum
of the official metric and the format, less a cost of calls. The same command resumes an interrupted run.
"""

from __future__ import annotations

from pathlib import Path

from reflectune.core.command import command
from reflectune.train.answer_rewards.agent_config import AgentGrpoConfig


@command(AgentGrpoConfig, writes="output_dir")
def promsa_grpo(config: AgentGrpoConfig) -> None:
    """Train the trajectories of ProMSA's agent by TN-GSPO or GSPO."""
    # slow to import: after the config is right
    from reflectune.formats.dataset import Dataset
    from reflectune.inference.config import TextIndexSettings
    from reflectune.inference.pipelines.promsa import PromsaSettings
    from reflectune.inference.running.agent_search import agent_search
    from reflectune.metrics.scoring.registry import find_metric
    from reflectune.retrieval.config import RetrieverConfig
    from reflectune.train.answer_rewards.agent import AgentTraining
    from reflectune.train.runs.skeleton import run

    config.metric = config.scored_by(config.dataset)
    bem = config.open_bem(config.device)
    dataset, settings = Dataset(Path(config.dataset)), PromsaSettings.of(config)
    retriever, texts = RetrieverConfig.of(config), TextIndexSettings.of(config)
    hashes = {
        "index_fingerprint": retriever.finder_fingerprint(),
        "texts_fingerprint": texts.texts_fingerprint(),
        **({"bem_fingerprint": bem.fingerprint} if bem else {}),
    }

    run(
        config,
        AgentTraining(
            config,
            dataset,
            hashes,
            find_metric(config.metric, bem),
            settings,
            lambda: agent_search(dataset, settings, retriever, texts, config.device),
        ),
    )


if __name__ == "__main__":
    promsa_grpo.main()
