"""The trainer of gates: that of fine-tuning with another objective, and rewards that are measured anew on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from reflectune.models.attention.tree import IGNORE
from reflectune.models.schemes.gate_outcomes import GateOutcome, Measure
from reflectune.train.rewards.gate_policy import (
    PolicyLoss,
    divergence,
    expected_rewards,
    gate_losses,
    outcome_probabilities,
)
from reflectune.train.rewards.gate_trees import Costs, Rewards, rewards_of
from reflectune.train.runs.trainer import ReflectionTrainer, TrainingRun


@dataclass(frozen=True)
class Objective:
    """What is trained for.

    Attributes:
        costs: What is taken off rewards.
        beta: Weight of the divergence from the start.
        hold: Weight of what else is held; see `gate_tree`.
        policy_loss: See `reflectune.train.rewards.gate_policy.gate_losses`.
        pairs: The positive and the negative token of the retrieval gate, and of the relevance gate.
    """

    costs: Costs
    beta: float
    hold: float
    policy_loss: PolicyLoss
    pairs: tuple[tuple[int, int], tuple[int, int]]


class GateTrainer(ReflectionTrainer):
    """Trains gates on batches of `GateExamples`.

    The reference is what the first round of measuring read from the gates: no second model is in memory. A later
    round takes the outcomes anew, with the weights as they are by then.

    Args:
        run: What trains, on what, and how it is kept.
        objective: What is trained for.
        first: The first round's outcomes.
        measure: Makes later rounds'.
        refresh_steps: Steps from one round to the next; 0 for the first one alone.
    """

    def __init__(
        self,
        run: TrainingRun,
        *,
        objective: Objective,
        first: Sequence[GateOutcome],
        measure: Measure,
        refresh_steps: int = 0,
    ) -> None:
        super().__init__(run)
        self._objective, self._measure = objective, measure
        self._reference = {outcome.question_id: rewards_of(outcome, objective.costs).log_odds for outcome in first}
        self._held = {
            outcome.question_id: [each.log_odds for each in outcome.anchor.passages if each.log_odds is not None]
            for outcome in first
        }
        self._rewards = self._by_question(first)
        self._sums = torch.zeros(7)
        self.add_callback(_Refresh(self, refresh_steps))

    def take_round(self, number: int, *, kept: bool = False) -> None:
        """Go on with the rewards of a later round; `kept` if an earlier run has measured it."""
        self._bare_model.eval()
        with self.accelerator.autocast():
            outcomes = self._measure(number, kept=kept)
        self._bare_model.train()
        self._rewards = self._by_question(outcomes)

    def summed_loss(self, model: nn.Module, inputs: dict[str, Any], sample_ids: Sequence[str]) -> Tensor:
        """The weighted loss of a batch: of its refined gates, and of the gates and words that are held as they were."""
        labels, weights = inputs.pop("labels"), inputs.pop("weights")
        places = labels[:, 1:] != IGNORE  # position i predicts label i + 1
        logits = model(**inputs, logits_to_keep=F.pad(places, (0, 1)), use_cache=False).logits.float()
        targets, kept = labels[:, 1:][places], weights[:, 1:][places]  # (places,), as the rows of logits
        is_gate = sum(targets == yes for yes, _ in self._objective.pairs).bool()
        log_odds = self._log_odds(logits[is_gate], targets[is_gate])
        reference, rewards, is_held = self._known(sample_ids, log_odds)
        is_refined, retrieval = ~is_held, targets[is_gate] == self._objective.pairs[0][0]
        how, weigh, spoken = self._objective, kept[is_gate], kept[~is_gate]
        refined = gate_losses(log_odds[is_refined], reference[is_refined], rewards, beta=how.beta, kind=how.policy_loss)
        gates = divergence(log_odds[is_held], reference[is_held])
        words = F.cross_entropy(logits[~is_gate], targets[~is_gate], reduction="none")
        held = (gates * weigh[is_held]).sum() + (words * spoken).sum()
        self._count(
            log_odds[is_refined].detach(), reference[is_refined], rewards, retrieval[is_refined], weigh[is_refined]
        )
        self._sums[5:] += torch.stack([held.detach(), weigh[is_held].sum() + spoken.sum()]).cpu()
        return (refined * weigh[is_refined]).sum() + held

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log with means since the last time: E_π[R], the probability of retrieving, the divergence, what is held."""
        if "loss" in logs:
            sums = self.accelerator.reduce(self._sums.to(self.args.device), "sum").tolist()
            self._sums.zero_()
            reward, divergent, weight, retrieving, questions, held, held_weight = sums
            if questions:
                logs["reward"], logs["kl"] = reward / weight, divergent / weight
                logs["retrieving"] = retrieving / questions
            if held_weight:
                logs["held"] = held / held_weight
        super().log(logs, start_time)

    def _log_odds(self, logits: Tensor, positive: Tensor) -> Tensor:
        """z of each gate from logits of shape (gates, vocabulary) and its positive token: shape (gates,)."""
        negative = positive.clone()
        for yes, no in self._objective.pairs:
            negative[positive == yes] = no
        return (logits.gather(1, positive[:, None]) - logits.gather(1, negative[:, None]))[:, 0]

    def _known(self, sample_ids: Sequence[str], log_odds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Reference log-odds (gates,), rewards of the refined gates (refined, 2), and which gates are held (gates,)."""
        reference: list[float] = []
        rewards: list[tuple[float, float]] = []
        is_held: list[bool] = []
        for key in sample_ids:
            gate_log_odds, held = self._reference[key], self._held[key] if self._objective.hold else []
            reference += [*gate_log_odds, *held]
            rewards += self._rewards[key].rewards
            is_held += [False] * len(gate_log_odds) + [True] * len(held)
        pairs = log_odds.new_tensor(rewards).view(-1, 2)
        return log_odds.new_tensor(reference), pairs, torch.tensor(is_held, device=log_odds.device)

    def _count(self, log_odds: Tensor, reference: Tensor, rewards: Tensor, retrieval: Tensor, weights: Tensor) -> None:
        probabilities = outcome_probabilities(log_odds)
        counted = [
            expected_rewards(probabilities, rewards) * weights,
            divergence(log_odds, reference) * weights,
            weights,
            probabilities[:, 0] * retrieval * weights,  # a retrieval gate weighs one, and a filler's nothing
            retrieval * weights,
        ]
        self._sums[:5] += torch.stack([each.sum() for each in counted]).cpu()

    def _by_question(self, outcomes: Sequence[GateOutcome]) -> dict[str, Rewards]:
        return {outcome.question_id: rewards_of(outcome, self._objective.costs) for outcome in outcomes}


class _Refresh(TrainerCallback):
    """Has the rewards measured anew every so many steps. A step's round is a function of its number alone."""

    def __init__(self, trainer: GateTrainer, steps: int) -> None:
        super().__init__()
        self._trainer, self._steps = trainer, steps

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._steps and state.global_step >= self._steps:  # a resumed run
            self._trainer.take_round(state.global_step // self._steps, kept=state.global_step % self._steps > 0)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._steps and state.global_step % self._steps == 0 and state.global_step < state.max_steps:
            self._trainer.take_round(state.global_step // self._steps)
