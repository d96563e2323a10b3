"""The trainer of gates: that of fine-tuning with another objective, and rewards that are measured anew on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from peft import PeftModel
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from reflectune.core.gate_outcomes import GateOutcome, Measure
from reflectune.models.tree import IGNORE
from reflectune.train.order import TrainingOrder
from reflectune.train.refining.gate_policy import (
    Advantage,
    divergence,
    expected_rewards,
    gate_losses,
    outcome_probabilities,
)
from reflectune.train.refining.rewards import Costs, Rewards, rewards_of
from reflectune.train.trainer import ReflectionTrainer


@dataclass(frozen=True)
class Objective:
    """What is trained for.

    Attributes:
        costs: What is taken off rewards.
        beta: Weight of the divergence from the start.
        advantage: See `reflectune.train.refining.gate_policy.advantages`.
        pairs: The positive and the negative token of the retrieval gate, and of the relevance gate.
    """

    costs: Costs
    beta: float
    advantage: Advantage
    pairs: tuple[tuple[int, int], tuple[int, int]]


class GateTrainer(ReflectionTrainer):
    """Trains gates on batches of `GateExamples`.

    The reference is what the first round of measuring read from the gates: no second model is in memory. A later
    round takes the outcomes anew, with the weights as they are by then.

    Args:
        model: As `ReflectionTrainer`, like what follows it and is not named here.
        objective: What is trained for.
        first: The first round's outcomes.
        measure: Makes later rounds'.
        refresh_steps: Steps from one round to the next; 0 for the first one alone.
    """

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        args: TrainingArguments,
        dataset: Dataset,
        collator: Callable[[list[Any]], dict[str, Any]],
        order: TrainingOrder,
        save: Callable[[Path, nn.Module, Mapping[str, Tensor] | None], None],
        settings: Mapping[str, Any],
        *,
        objective: Objective,
        first: Sequence[GateOutcome],
        measure: Measure,
        refresh_steps: int = 0,
    ) -> None:
        super().__init__(model, args, dataset, collator, order, save, settings)
        self._objective, self._measure = objective, measure
        self._reference = {own.question_id: rewards_of(own, objective.costs).log_odds for own in first}
        self._rewards = self._by_question(first)
        self._sums = torch.zeros(5)
        self.add_callback(_Refresh(self, refresh_steps))

    def take_round(self, number: int, *, kept: bool = False) -> None:
        """Go on with the rewards of a later round; `kept` if an earlier run has measured it."""
        self._bare_model.eval()
        with self.accelerator.autocast():
            outcomes = self._measure(number, kept=kept)
        self._bare_model.train()
        self._rewards = self._by_question(outcomes)

    def summed_loss(self, model: nn.Module, inputs: dict[str, Any], sample_ids: Sequence[str]) -> Tensor:
        """The losses of a batch's gates, times their weights."""
        labels, weights = inputs.pop("labels"), inputs.pop("weights")
        targets = labels[:, 1:] != IGNORE  # position i predicts label i + 1
        read = model(**inputs, logits_to_keep=F.pad(targets, (0, 1)), use_cache=False).logits.float()
        positive, kept = labels[:, 1:][targets], weights[:, 1:][targets]  # (gates,), as the rows of what was read
        negative = positive.clone()
        for yes, no in self._objective.pairs:
            negative[positive == yes] = no
        log_odds = (read.gather(1, positive[:, None]) - read.gather(1, negative[:, None]))[:, 0]
        reference = log_odds.new_tensor([value for key in sample_ids for value in self._reference[key]])
        rewards = log_odds.new_tensor([pair for key in sample_ids for pair in self._rewards[key].rewards])
        losses = gate_losses(
            log_odds, reference, rewards, beta=self._objective.beta, advantage=self._objective.advantage
        )
        retrieval = (positive == self._objective.pairs[0][0]).float()
        self._count(log_odds.detach(), reference, rewards, retrieval, kept)
        return (losses * kept).sum()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log with E_π[R], the probability of retrieving and the divergence, means since the last time."""
        if "loss" in logs:
            sums = self.accelerator.reduce(self._sums.to(self.args.device), "sum").tolist()
            self._sums.zero_()
            reward, divergent, weight, retrieving, questions = sums
            if questions:
                logs["reward"], logs["kl"] = reward / weight, divergent / weight
                logs["retrieving"] = retrieving / questions
        super().log(logs, start_time)

    def _count(self, log_odds: Tensor, reference: Tensor, rewards: Tensor, retrieval: Tensor, weights: Tensor) -> None:
        probabilities = outcome_probabilities(log_odds)
        counted = [
            expected_rewards(probabilities, rewards) * weights,
            divergence(log_odds, reference) * weights,
            weights,
            probabilities[:, 0] * retrieval,
            retrieval,
        ]
        self._sums += torch.stack([each.sum() for each in counted]).cpu()

    def _by_question(self, outcomes: Sequence[GateOutcome]) -> dict[str, Rewards]:
        return {own.question_id: rewards_of(own, self._objective.costs) for own in outcomes}


class _Refresh(TrainerCallback):
    """Has the rewards measured anew every so many steps. A step's round is a function of its number alone."""

    def __init__(self, trainer: GateTrainer, steps: int) -> None:
        self._trainer, self._steps = trainer, steps

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._steps and state.global_step >= self._steps:  # a resumed run
            self._trainer.take_round(state.global_step // self._steps, kept=state.global_step % self._steps > 0)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._steps and state.global_step % self._steps == 0 and state.global_step < state.max_steps:
            self._trainer.take_round(state.global_step // self._steps)
