"""TRL's GRPO trainer with our prompts, rewards and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.utils.data import Sampler
from trl import GRPOTrainer

from reflectune.models.rendering.renderer import Rendered
from reflectune.train.answer_rewards.prompts import PromptProcessor, prompt_id
from reflectune.train.answer_rewards.rewards import Reward
from reflectune.train.answer_rewards.rollout_server import RolloutServer
from reflectune.train.data.order import FollowEpochs
from reflectune.train.runs.checkpointed_trainer import CheckpointedTrainer, Run
from reflectune.train.runs.failures import FailingBatch, naming
from reflectune.train.runs.logs import LogFile


class PromptOrder(Sampler[int]):
    """TRL's order of the prompts, as a pure function of the seed and the epoch.

    TRL's sampler (1.16) continues one generator through all epochs, so a resumed run would begin with the order of the
    first epoch. Here the shuffles of earlier epochs are replayed. Can go once TRL's sampler follows epochs.

    Args:
        sampler: TRL's sampler, which repeats each prompt for its replies.
    """

    def __init__(self, sampler: Any) -> None:
        super().__init__()
        self._sampler, self._epoch = sampler, 0

    def start_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
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
        run: The model, TRL's arguments, and the function that writes checkpoints.
        rows: Rows of TRL's data set; see `rows_of`.
        processor: Renders their prompts.
        rewards: Reward functions, in the order of `args.reward_weights`.
        rollout: TRL's `rollout_func`; None for single-turn replies.
        server: Samples the replies; None for transformers.

    Attributes:
        server: See the argument.
    """

    def __init__(
        self,
        run: Run,
        rows: Sequence[Mapping[str, Any]],
        processor: PromptProcessor,
        rewards: Sequence[Reward],
        rollout: Callable[..., dict[str, Any]] | None = None,
        server: RolloutServer | None = None,
    ) -> None:
        self.server, self._served_step, self._processor = server, -1, processor
        GRPOTrainer.__init__(
            self,
            run.model,
            [*rewards],
            run.args,
            Dataset.from_list([dict(row) for row in rows]),
            processing_class=processor,
            callbacks=[LogFile()],
            rollout_func=rollout or self._replies,
        )
        self._order = PromptOrder(GRPOTrainer._get_train_sampler(self))
        self.add_callback(FollowEpochs(self._order))
        self.keep_checkpoints(run)

    def train(self, *arguments: Any, **named: Any) -> Any:
        """Train, and delete the weights written for the server at the end."""
        try:
            return super().train(*arguments, **named)
        finally:
            if self.server is not None and self.processes.index == 0:
                self.server.remove_weights()

    def begin_rollouts(self) -> None:
        """Let the server load the weights of this step. All processes call this together."""
        if self.server is not None and self._served_step != self.state.global_step:
            self.server.load(self._bare_model, self.processes)
            self._served_step = self.state.global_step

    def sample(self, rows: Sequence[Sequence[int]], prompts: Sequence[Rendered]) -> list[list[int]]:
        """Sample a reply after each row of ids; it ends with an end token unless it is truncated.

        transformers generates for one training batch at a time: the keys and values of long rows take gigabytes.

        Args:
            rows: Token ids.
            prompts: The prompt at the beginning of each row, with its image.
        """
        if self.server is not None:
            return self.server.sample(rows, prompts)
        sampled: list[list[int]] = []
        size = self.args.per_device_train_batch_size
        for start in range(0, len(rows), size):
            batch = rows[start : start + size]
            fields = self._processor.fields(prompts[start : start + size], batch)
            sampled += self._generate_single_turn(batch, None, fields, 1)[0]
        return sampled

    def _replies(self, prompts: Sequence[Any], _: Any) -> dict[str, Any]:
        """Sample one reply to each prompt, and return TRL's keys."""
        self.begin_rollouts()
        rendered = [self._processor.rendered(prompt_id(prompt)) for prompt in prompts]
        rows = [prompt.ids for prompt in rendered]
        return {"prompt_ids": rows, "completion_ids": self.sample(rows, rendered), "logprobs": None}

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """Sample replies at the beginning of a step, and add a batch's gradients. Errors name the questions."""
        questions = list(dict.fromkeys(str(row["question_id"]) for row in inputs))
        with naming(FailingBatch(self.state.global_step + 1, questions)):
            loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        return loss

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Return TRL's loss."""
        loss: Tensor = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        self.step_losses.append((loss.detach(), ()))
        return loss

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: we write our own model card at the end."""

    def _get_train_sampler(self, dataset: Any = None) -> Sampler[int]:
        return self._order
