"""The trainer of gates: the fine-tuning trainer with a reward objective, and rewards that are measured repeatedly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from reflectune.models.attention.collation import supervised
from reflectune.models.schemes.gate_outcomes import GateOutcome, Measure
from reflectune.train.data.examples import Collator
from reflectune.train.data.order import TrainingOrder
from reflectune.train.gate_rewards.config import PolicyLoss
from reflectune.train.gate_rewards.policy import divergence, expected_rewards, gate_losses, outcome_probabilities
from reflectune.train.gate_rewards.trees import Costs, GateExamples, Rewards, rewards_of
from reflectune.train.runs.checkpointed_trainer import Run
from reflectune.train.runs.packing import uncompiled
from reflectune.train.runs.trainer import ReflectionTrainer


@dataclass(frozen=True)
class Objective:
    """The objective of a run.

    Attributes:
        costs: Costs that reduce rewards.
        beta: Weight of the divergence from the reference.
        hold: Weight of preserving other outputs; see `gate_tree`.
        policy_loss: See `reflectune.train.gate_rewards.policy.gate_losses`.
        pairs: The positive and the negative token of the retrieval gate, and of the relevance gate.
    """

    costs: Costs
    beta: float
    hold: float
    policy_loss: PolicyLoss
    pairs: tuple[tuple[int, int], tuple[int, int]]


class GateTrainer(ReflectionTrainer):
    """Trains gates on batches of `GateExamples`.

    The reference is the gates' log-odds in the first round of measuring, so no second model is in memory. Later rounds
    measure the outcomes again with the current weights.

    Args:
        run: The model, the arguments, and the function that writes checkpoints.
        dataset: The examples.
        collator: Makes a batch of them.
        order: The order in which to read them.
        projector_learning_rate: Peak learning rate of the projector; None for that of all other weights.
        first: Outcomes of the first round.
        measure: Measures the outcomes of later rounds.
        refresh_steps: Steps from one round to the next; 0 for the first round alone.
        packs: Read trees by FlexAttention (`packs_trees`).
    """

    def __init__(
        self,
        run: Run,
        dataset: GateExamples,
        collator: Collator,
        order: TrainingOrder,
        *,
        projector_learning_rate: float | None,
        objective: Objective,
        first: Sequence[GateOutcome],
        measure: Measure,
        refresh_steps: int,
        packs: bool,
    ) -> None:
        super().__init__(run, dataset, collator, order, projector_learning_rate=projector_learning_rate, packs=packs)
        self._objective, self._measure = objective, measure
        self._reference = {outcome.question_id: rewards_of(outcome, objective.costs).log_odds for outcome in first}
        self._held = {
            outcome.question_id: [
                passage.log_odds for passage in outcome.anchor.passages if passage.log_odds is not None
            ]
            for outcome in first
        }
        self._rewards = self._by_question(first)
        self._sums = torch.zeros(7)
        self.add_callback(_Refresh(self, refresh_steps))

    def take_round(self, number: int, *, kept: bool = False) -> None:
        """Continue with the rewards of a later round; `kept` means that an earlier run has measured them."""
        self._bare_model.eval()
        with self.accelerator.autocast(), uncompiled(self._bare_model):
            outcomes = self._measure(number, kept=kept)
        self._bare_model.train()
        self._rewards = self._by_question(outcomes)

    def summed_loss(self, model: nn.Module, inputs: dict[str, Any], sample_ids: Sequence[str]) -> Tensor:
        """Return the weighted loss of a batch: of trained gates, and of preserved gates and words."""
        logits, targets, target_weights = supervised(model, inputs)
        logits = logits.float()
        is_gate = torch.stack([targets == yes for yes, _ in self._objective.pairs]).any(0)
        log_odds = self._log_odds(logits[is_gate], targets[is_gate])
        reference, rewards, is_held = self._known(sample_ids, log_odds)
        is_trained = ~is_held
        is_retrieval = targets[is_gate] == self._objective.pairs[0][0]
        gate_weights, word_weights = target_weights[is_gate], target_weights[~is_gate]
        trained = gate_losses(
            log_odds[is_trained],
            reference[is_trained],
            rewards,
            beta=self._objective.beta,
            kind=self._objective.policy_loss,
        )
        gates = divergence(log_odds[is_held], reference[is_held])
        words = F.cross_entropy(logits[~is_gate], targets[~is_gate], reduction="none")
        held = (gates * gate_weights[is_held]).sum() + (words * word_weights).sum()
        self._count(
            log_odds[is_trained].detach(),
            reference[is_trained],
            rewards,
            is_retrieval[is_trained],
            gate_weights[is_trained],
        )
        self._sums[5:] += torch.stack([held.detach(), gate_weights[is_held].sum() + word_weights.sum()]).cpu()
        return (trained * gate_weights[is_trained]).sum() + held

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log means since the last row: E_π[R], divergence, probability of retrieving, loss of preserved outputs."""
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
        """Compute z of each gate from logits (gates, vocabulary) and its positive token: shape (gates,)."""
        negative = positive.clone()
        for yes, no in self._objective.pairs:
            negative[positive == yes] = no
        return (logits.gather(1, positive[:, None]) - logits.gather(1, negative[:, None]))[:, 0]

    def _known(self, sample_ids: Sequence[str], log_odds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return reference log-odds (gates,), rewards of trained gates (trained, 2), a mask of held gates (gates,)."""
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
            probabilities[:, 0] * retrieval * weights,  # a retrieval gate has weight 1, in a filler 0
            retrieval * weights,
        ]
        self._sums[:5] += torch.stack([values.sum() for values in counted]).cpu()

    def _by_question(self, outcomes: Sequence[GateOutcome]) -> dict[str, Rewards]:
        return {outcome.question_id: rewards_of(outcome, self._objective.costs) for outcome in outcomes}


class _Refresh(TrainerCallback):
    """Measures the rewards again every `steps` steps. The round of a step is a function of its number alone."""

    def __init__(self, trainer: GateTrainer, steps: int) -> None:
        super().__init__()
        self._trainer, self._steps = trainer, steps

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._steps and state.global_step >= self._steps:  # a resumed run
            self._trainer.take_round(state.global_step // self._steps, kept=state.global_step % self._steps > 0)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        is_due = self._steps and state.global_step % self._steps == 0 and state.global_step < state.max_steps
        if is_due and not control.should_training_stop:  # a run that stops here measures after it is resumed
            self._trainer.take_round(state.global_step // self._steps)
