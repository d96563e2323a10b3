"""ReAG's GRPO: `accelerate launch train/reag_grpo.py --config configs/….yaml [--key value …] [--dry_run]`.

Also `reflectune reag_grpo`, from any folder. Stage 3 of ReAG's training, on TRL's `GRPOTrainer`: the
prompts are the pipeline's own, with the passages that its critic keeps; replies are rewarded for answers that are right
by the official metric, and for the format. A run that was cut off goes on where it stopped when the same command is
given again.

An entry script stands above all floors: here the pipeline's way of reading an answer meets the trainer.
"""

from __future__ import annotations

from pathlib import Path

from reflectune.core.command import command
from reflectune.train.rewards.answers.config import AnswerGrpoConfig


@command(AnswerGrpoConfig, writes="output_dir")
def reag_grpo(config: AnswerGrpoConfig) -> None:
    """Reinforce the answers of a fine-tuned checkpoint with TRL's GRPO."""
    # slow to import: after the config is right
    from reflectune.formats.dataset import Dataset
    from reflectune.inference.operators import parsing
    from reflectune.metrics.scoring.registry import find_metric
    from reflectune.train.rewards.answers.run import train_answers

    config.metric = config.scored_by(config.dataset)
    bem = config.open_bem(config.device)
    hashes = {"bem_fingerprint": bem.fingerprint} if bem else {}
    train_answers(config, Dataset(Path(config.dataset)), hashes, find_metric(config.metric, bem), parsing.answer)


if __name__ == "__main__":
    reag_grpo.main()
