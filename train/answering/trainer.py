"""TRL's GRPO trainer with our prompts, rewards and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel, ProgressCallback
from trl import GRPOConfig, GRPOTrainer

from reflectune.core.errors import UserError
from reflectune.train.answering.prompts import PromptProcessor
from reflectune.train.answering.rewards import Reward
from reflectune.train.fine_tuning.checkpointed import CheckpointedTrainer, Save
from reflectune.train.fine_tuning.logs import LogFile, Progress


@dataclass(frozen=True, eq=False)
class AnswerRun:
    """What a run trains, on what, and how it is kept.

    Attributes:
        model: The model, with whatever shall not train frozen.
        args: TRL's arguments.
        rows: Of its data set; see `rows_of`.
        processor: Renders their prompts.
        rewards: In the order of `args.reward_weights`.
        save: Writes model, processor and scheme into a folder.
        settings: What determines the run.
    """

    model: PreTrainedModel | PeftModel
    args: GRPOConfig
    rows: Sequence[Mapping[str, Any]]
    processor: PromptProcessor
    rewards: Sequence[Reward]
    save: Save
    settings: Mapping[str, Any]


class AnswerTrainer(CheckpointedTrainer, GRPOTrainer):
    """Trains answers by GRPO; sampling, advantages and loss are TRL's.

    Args:
        run: What trains, on what, and how it is kept.
    """

    def __init__(self, run: AnswerRun) -> None:
        GRPOTrainer.__init__(
            self,
            run.model,
            [*run.rewards],
            run.args,
            Dataset.from_list([dict(row) for row in run.rows]),
            processing_class=run.processor,
            callbacks=[LogFile()],
        )
        self.keep_checkpoints(run.model, run.save, run.settings)
        if self.pop_callback(ProgressCallback):  # there is none if tqdm is off
            self.add_callback(Progress())

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """TRL's loss.

        Raises:
            UserError: It is not finite.
        """
        loss: Tensor = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if not torch.isfinite(loss):
            raise UserError(
                f"the loss became {loss.item()} at step {self.state.global_step + 1}; lower `learning_rate`. The last "
                "checkpoint is kept"
            )
        return loss

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: the checkpoint's card is ours, and is written at the end."""
