"""Train ProMSA's agent by GRPO or GSPO: `accelerate launch train/promsa_grpo.py --config FILE.yaml [--key value …]`.

Trajectories are sampled with the trained model, and their calls search the data set's indexes. Rewards are for the
official metric and the format, less a cost of calls. The same command resumes the run.
"""

from __future__ import annotations

from pathlib import Path

from reflectune.core.command import command
from reflectune.train.answer_rewards.agent_config import AgentGrpoConfig


@command(AgentGrpoConfig, writes="output_dir")
def promsa_grpo(config: AgentGrpoConfig) -> None:
    """Train the trajectories of ProMSA's agent by TRL's GRPO or GSPO."""
    # slow to import: after the config is right
    from reflectune.formats.dataset import Dataset
    from reflectune.formats.knowledge_base import KnowledgeBase
    from reflectune.inference.config import TextIndexSettings
    from reflectune.inference.operators.searching import knowledge_bases
    from reflectune.inference.operators.trajectory import SearchFunction
    from reflectune.inference.pipelines.promsa import PromsaSettings
    from reflectune.inference.running.loading import open_entries, open_texts
    from reflectune.metrics.scoring.registry import find_metric
    from reflectune.retrieval.config import RetrieverConfig
    from reflectune.retrieval.retrievers.entry_retriever import EntryRetriever
    from reflectune.train.answer_rewards.agent import AgentTraining
    from reflectune.train.runs.skeleton import run

    config.metric = config.scored_by(config.dataset)
    bem = config.open_bem(config.device)
    dataset, settings = Dataset(Path(config.dataset)), PromsaSettings.of(config)
    retriever, texts = RetrieverConfig.of(config), TextIndexSettings.of(config)
    hashes = {
        "index_fingerprint": retriever.finder_fingerprint(),
        **({"bem_fingerprint": bem.fingerprint} if bem else {}),
    }

    def bases() -> tuple[SearchFunction, str]:
        """Open the indexes, and name the base that text_search searches."""
        entries = open_entries(retriever, dataset, config.device)
        assert isinstance(entries, EntryRetriever)  # the config has an index
        knowledge = KnowledgeBase(texts.text_knowledge) if texts.text_knowledge else dataset.knowledge
        passages = open_texts(texts, knowledge, config.device) if texts.text_index else None
        opened = knowledge_bases(
            entries,
            passages,
            dataset.knowledge,
            "section",
            search=settings,
            on_failure="stop",
            top_n=0,
            lead=settings.lead,
        )
        return opened.search, "texts" if passages else "pairs"

    run(config, AgentTraining(config, dataset, hashes, find_metric(config.metric, bem), settings, bases))


if __name__ == "__main__":
    promsa_grpo.main()
