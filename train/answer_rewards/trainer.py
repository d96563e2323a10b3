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
    """TRL's order of the prompts, each as often as it has replies, as a pure function of its seed and the epoch.

    TRL's sampler (1.16) continues one generator through all epochs, so that a resumed run would begin with the first
    epoch's order. Here the shuffles of earlier epochs are drawn again. Can go once TRL's sampler follows epochs.

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
        run: The model, TRL's arguments, and how checkpoints are written.
        rows: Rows of TRL's data set; see `rows_of`.
        processor: Renders their prompts.
        rewards: In the order of `args.reward_weights`.
        rollout: TRL's `rollout_func`; None for one reply to a prompt.
        server: Samples the replies; None for transformers.

    Attributes:
        server: The server.
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
        """Train; the weights that the server read are deleted at the end."""
        try:
            return super().train(*arguments, **named)
        finally:
            if self.server is not None and self.processes.index == 0:
                self.server.remove_weights()

    def begin_rollouts(self) -> None:
        """Give the server the weights of this step; all processes call this together."""
        if self.server is not None and self._served_step != self.state.global_step:
            self.server.load(self._bare_model, self.processes)
            self._served_step = self.state.global_step

    def sample(self, rows: Sequence[Sequence[int]], prompts: Sequence[Rendered]) -> list[list[int]]:
        """Sample a reply after each row of ids, with its end token unless it is cut off.

        Transformers reads no more rows at a time than a step of training: the keys and values of long rows take GBs.

        Args:
            rows: Token ids.
            prompts: The prompt, with its image, that each row begins with.
        """
        if self.server is not None:
            return self.server.sample(rows, prompts)
        sampled: list[list[int]] = []
        for start in range(0, len(rows), size := self.args.per_device_train_batch_size):
            some = rows[start : start + size]
            fields = self._processor.fields(prompts[start : start + size], some)
            sampled += self._generate_single_turn(some, None, fields, 1)[0]
        return sampled

    def _replies(self, prompts: Sequence[Any], _: Any) -> dict[str, Any]:
        """Return TRL's keys of one reply to each prompt."""
        self.begin_rollouts()
        rendered = [self._processor.rendered(prompt_id(prompt)) for prompt in prompts]
        rows = [prompt.ids for prompt in rendered]
        return {"prompt_ids": rows, "completion_ids": self.sample(rows, rendered), "logprobs": None}

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """Sample a step's replies if it begins, and add the gradients of a batch. Errors name the questions."""
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
        """Do nothing: the checkpoint's card is ours, and is written at the end."""

    def _get_train_sampler(self, dataset: Any = None) -> Sampler[int]:
        return self._order
