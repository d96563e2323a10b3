"""TRL's GRPO trainer with our prompts, rewards and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from peft import PeftModel
from torch import Tensor, nn
from torch.utils.data import Sampler
from transformers import PreTrainedModel, ProgressCallback
from trl import GRPOConfig, GRPOTrainer

from reflectune.core.errors import UserError
from reflectune.train.data.order import FollowEpochs
from reflectune.train.rewards.answer_prompts import PromptProcessor
from reflectune.train.rewards.answer_rewards import Reward
from reflectune.train.runs.checkpointed import CheckpointedTrainer, Save
from reflectune.train.runs.logs import LogFile, Progress


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


class PromptOrder(Sampler[int]):
    """TRL's order of the prompts, each as often as it has replies, as a pure function of its seed and the epoch.

    TRL's sampler (1.16) shuffles each epoch with the generator that the epoch before left, and knows no epochs: a run
    that is resumed in a later one would read the first one's order. Here the shuffles before are drawn again, so that
    every epoch has the order that it has in a run that nothing interrupts. Can go once TRL's sampler follows epochs.

    Args:
        sampler: TRL's, which shuffles.
    """

    def __init__(self, sampler: Any) -> None:
        super().__init__()
        self._sampler, self._epoch = sampler, 0

    def start_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order the next iteration gives."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[int]:
        generator = self._sampler.generator.manual_seed(self._sampler.seed)
        for _ in range(self._epoch):
            torch.randperm(self._sampler.num_samples, generator=generator)
        yield from self._sampler


class AnswerTrainer(CheckpointedTrainer, GRPOTrainer):
    """Trains answers by GRPO; sampling, advantages, loss and the order of the prompts are TRL's.

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
        self._order = PromptOrder(GRPOTrainer._get_train_sampler(self))
        self.add_callback(FollowEpochs(self._order))
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

    def _get_train_sampler(self, dataset: Any = None) -> Sampler[int]:
        return self._order
