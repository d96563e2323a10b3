"""The objective of gates: their expected reward, exact over both outcomes, and the divergence from where they began.

GRPO (DeepSeekMath, arXiv 2402.03300) draws a group of completions for each question, and takes each one's reward, less
the group's mean and over its standard deviation, as its advantage. A gate is one token with two outcomes. So the group
is replaced by both outcomes, weighted by their probabilities: that is the limit of a group that grows without end, it
costs two rewards a question, and its gradient has no variance. The divergence from the reference is exact as well.

A gate is given by its log-odds z, the logit of its positive token less that of its negative one: its probability in
the softmax over both is the logistic function of z (equation 1 of mR²AG and what follows it; equation 4 of MMKB-RAG).

The gradient of the expected reward vanishes where a gate is sure, be it right or wrong. That of Σ R log π, with rewards
shifted so that the worse outcome's is 0, does not: reward-weighted regression (Peters & Schaal, ICML 2007), exact over
both outcomes as well. Of questions that a gate can't tell apart it prefers the outcome whose expected reward is higher,
as the expected reward itself does.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

PolicyLoss = Literal["expected", "grpo", "regression"]

EPSILON = 1e-4
"""Added to the standard deviation of a group's rewards, as in TRL's GRPO."""


def gate_losses(
    log_odds: Tensor, reference: Tensor, rewards: Tensor, *, beta: float, kind: PolicyLoss = "expected"
) -> Tensor:
    """What is minimised, of each gate.

    - `expected`: -E_π[A] + β KL(π‖π_ref) with A = R - E_π[R]: the gradient of -E_π[R] + β KL. A gate that is sure
      hardly moves: it is proportional to π(1 - π).
    - `grpo`: the same with A divided by the standard deviation of R under π, as GRPO does: proportional to √(π(1 - π)),
      and to the sign of the rewards' difference, not to its size.
    - `regression`: -Σ_a (R_a - min R) log π_a + β KL(π‖π_ref): proportional to 1 - π of the better outcome.

    Advantages are constants, so that the value of the first two is β KL alone: watch E_π[R].

    Args:
        log_odds: z of each gate, shape (gates,), with a gradient.
        reference: z of the reference, shape (gates,).
        rewards: Of the positive and of the negative outcome, shape (gates, 2).
        beta: Weight of the divergence.
        kind: See above.

    Returns:
        Shape (gates,).
    """
    if kind == "regression":
        above_worse = rewards - rewards.amin(-1, keepdim=True)
        gained = (above_worse * F.logsigmoid(torch.stack([log_odds, -log_odds], -1))).sum(-1)
    else:
        probabilities = outcome_probabilities(log_odds)  # (gates, 2)
        gained = (probabilities * advantages(probabilities.detach(), rewards, scaled=kind == "grpo")).sum(-1)
    return beta * divergence(log_odds, reference) - gained


def advantages(probabilities: Tensor, rewards: Tensor, *, scaled: bool) -> Tensor:
    """How much better each outcome is than the policy's expectation; `scaled`: over the standard deviation under π.

    Args:
        probabilities: Of both outcomes, shape (gates, 2).
        rewards: Of both outcomes, shape (gates, 2).
        scaled: See above.

    Returns:
        Shape (gates, 2).
    """
    centred = rewards - expected_rewards(probabilities, rewards)[:, None]
    if not scaled:
        return centred
    deviation = (probabilities * centred.square()).sum(-1, keepdim=True).sqrt()  # (gates, 1)
    return centred / (deviation + EPSILON)


def expected_rewards(probabilities: Tensor, rewards: Tensor) -> Tensor:
    """E_π[R] of each gate, from two tensors of shape (gates, 2): shape (gates,)."""
    return (probabilities * rewards).sum(-1)


def outcome_probabilities(log_odds: Tensor) -> Tensor:
    """π of the positive and of the negative outcome, shape (gates, 2)."""
    return torch.stack([log_odds, -log_odds], -1).sigmoid()


def divergence(log_odds: Tensor, reference: Tensor) -> Tensor:
    """KL(π‖π_ref) in nats of each gate, exact over its two outcomes: shape (gates,)."""
    both = torch.stack([log_odds, -log_odds], -1)
    before = torch.stack([reference, -reference], -1)
    return (both.sigmoid() * (F.logsigmoid(both) - F.logsigmoid(before))).sum(-1)
