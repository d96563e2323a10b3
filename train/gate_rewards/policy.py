"""The objective of gates: the expected reward, exact over both outcomes, and the KL divergence from the start.

GRPO (DeepSeekMath, arXiv 2402.03300) draws a group of completions for each question. A completion's advantage is its
reward less the group's mean, over the group's standard deviation. A gate is one token with two outcomes, so the group
is replaced by both outcomes, weighted by their probabilities. That is the limit of an infinite group: it costs two
rewards a question, and its gradient has no variance. The divergence from the reference is exact as well.

A gate is given by its log-odds z, the logit of its positive token less that of its negative one. Its probability in
the softmax over both is the logistic function of z (equation 1 of mR²AG; equation 4 of MMKB-RAG).

The gradient of the expected reward vanishes where a gate is confident, even if it is wrong. The gradient of Σ R log π,
with the worse outcome's reward shifted to 0, does not. This is reward-weighted regression (Peters & Schaal, ICML 2007),
exact over both outcomes. For questions that a gate can't distinguish, it also prefers the outcome with the higher
expected reward.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from reflectune.train.gate_rewards.config import PolicyLoss

EPSILON = 1e-4
"""Added to the standard deviation of a group's rewards, as in TRL's GRPO."""


def gate_losses(
    log_odds: Tensor, reference: Tensor, rewards: Tensor, *, beta: float, kind: PolicyLoss = "expected"
) -> Tensor:
    """Compute the loss of each gate.

    - `expected`: -E_π[A] + β KL(π‖π_ref) with A = R - E_π[R]: the gradient of -E_π[R] + β KL. It is proportional to
      π(1 - π), so a confident gate hardly moves.
    - `grpo`: the same with A divided by the standard deviation of R under π, as GRPO does: proportional to √(π(1 - π)),
      and to the sign of the rewards' difference, not to its size.
    - `regression`: -Σ_a (R_a - min R) log π_a + β KL(π‖π_ref): proportional to 1 - π of the better outcome.

    Advantages are constants, so the first two have the value β KL; watch E_π[R] for progress.

    Args:
        log_odds: z of each gate, shape (gates,), with a gradient.
        reference: z of the reference, shape (gates,).
        rewards: Rewards of the positive and the negative outcome, shape (gates, 2).
        beta: Weight of the divergence.
        kind: The objective.

    Returns:
        Shape (gates,).
    """
    if kind == "regression":
        shifted = rewards - rewards.amin(-1, keepdim=True)
        objective = (shifted * F.logsigmoid(torch.stack([log_odds, -log_odds], -1))).sum(-1)
    else:
        probabilities = outcome_probabilities(log_odds)  # (gates, 2)
        objective = (probabilities * advantages(probabilities.detach(), rewards, scaled=kind == "grpo")).sum(-1)
    return beta * divergence(log_odds, reference) - objective


def advantages(probabilities: Tensor, rewards: Tensor, *, scaled: bool) -> Tensor:
    """Compute the reward of each outcome minus its expectation under π.

    Args:
        probabilities: Of both outcomes, shape (gates, 2).
        rewards: Of both outcomes, shape (gates, 2).
        scaled: Divide by the standard deviation under π.

    Returns:
        Shape (gates, 2).
    """
    centred = rewards - expected_rewards(probabilities, rewards)[:, None]
    if not scaled:
        return centred
    deviation = (probabilities * centred.square()).sum(-1, keepdim=True).sqrt()  # (gates, 1)
    return centred / (deviation + EPSILON)


def expected_rewards(probabilities: Tensor, rewards: Tensor) -> Tensor:
    """Compute E_π[R] of each gate from two tensors of shape (gates, 2): shape (gates,)."""
    return (probabilities * rewards).sum(-1)


def outcome_probabilities(log_odds: Tensor) -> Tensor:
    """Compute π of the positive and the negative outcome, shape (gates, 2)."""
    return torch.stack([log_odds, -log_odds], -1).sigmoid()


def divergence(log_odds: Tensor, reference: Tensor) -> Tensor:
    """Compute KL(π‖π_ref) of each gate in nats, exact over its two outcomes: shape (gates,)."""
    policy_logits = torch.stack([log_odds, -log_odds], -1)
    reference_logits = torch.stack([reference, -reference], -1)
    log_ratio = F.logsigmoid(policy_logits) - F.logsigmoid(reference_logits)
    return (policy_logits.sigmoid() * log_ratio).sum(-1)
