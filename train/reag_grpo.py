"""Train ReAG's answers by GRPO: `accelerate launch train/reag_grpo.py --config configs/….yaml [--key value …]`.

Stage 3 of ReAG's training, with TRL's `GRPOTrainer`. The prompts are the pipeline's, with the passages that its critic
keeps. The reward is a weighted sum of the official metric and the format. The same command resumes an interrupted run.
"""

from __future__ import annotations

from pathlib import Path

from reflectune.core.command import command
from reflectune.train.answer_rewards.config import AnswerGrpoConfig


@command(AnswerGrpoConfig, writes="output_dir")
def reag_grpo(config: AnswerGrpoConfig) -> None:
    """Train the answers of a fine-tuned checkpoint by TRL's GRPO."""
    # slow to import: after the config is right
    from reflectune.formats.dataset import Dataset
    from reflectune.inference.operators import parsing
    from reflectune.metrics.scoring.registry import find_metric
    from reflectune.train.answer_rewards.run import AnswerTraining
    from reflectune.train.runs.skeleton import run

    config.metric = config.scored_by(config.dataset)
    bem = config.open_bem(config.device)
    hashes = {"bem_fingerprint": bem.fingerprint} if bem else {}
    dataset, correctness = Dataset(Path(config.dataset)), find_metric(config.metric, bem)
    run(config, AnswerTraining(config, dataset, hashes, correctness, parsing.answer))


if __name__ == "__main__":
    reag_grpo.main()
