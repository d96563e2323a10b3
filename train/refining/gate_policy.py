"""The objective of gates: their expected reward, exact over both outcomes, and the divergence from where they began.

GRPO (DeepSeekMath, arXiv 2402.03300) draws a group of completions for each question, and takes each one's reward, less
the group's mean and over its standard deviation, as its advantage. A gate is one token with two outcomes. So the group
is replaced by both outcomes, weighted by their probabilities: that is the limit of a group that grows without end, it
costs two rewards a question, and its gradient has no variance. The divergence from the reference is exact as well.

A gate is given by its log-odds z, the logit of its positive token less that of its negative one: its probability in
the softmax over both is the logistic function of z (equation 1 of mR²AG and what follows it; equation 4 of MMKB-RAG).
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Advantage = Literal["raw", "group"]

EPSILON = 1e-4
"""Added to the standard deviation of a group's rewards, as in TRL's GRPO."""


def gate_losses(
    log_odds: Tensor, reference: Tensor, rewards: Tensor, *, beta: float, advantage: Advantage = "raw"
) -> Tensor:
    """-E_π[A] + β KL(π‖π_ref) of each gate. Advantages are constants, so that a value is β KL alone: watch E_π[R].

    Args:
        log_odds: z of each gate, shape (gates,), with a gradient.
        reference: z of the reference, shape (gates,).
        rewards: Of the positive and of the negative outcome, shape (gates, 2).
        beta: Weight of the divergence.
        advantage: See `advantages`.

    Returns:
        Shape (gates,).
    """
    probabilities = outcome_probabilities(log_odds)  # (gates, 2)
    gained = (probabilities * advantages(probabilities.detach(), rewards, advantage)).sum(-1)
    return beta * divergence(log_odds, reference) - gained


def advantages(probabilities: Tensor, rewards: Tensor, kind: Advantage) -> Tensor:
    """How much better each outcome is than the policy's expectation.

    `raw` is R - E_π[R]: the loss has the gradient of -E_π[R], and a gate that is sure hardly moves, since it is
    proportional to π(1 - π). `group` divides by the standard deviation of R under π, as GRPO does: the gradient is
    proportional to √(π(1 - π)), and to the sign of the difference, not to its size.

    Args:
        probabilities: Of both outcomes, shape (gates, 2).
        rewards: Of both outcomes, shape (gates, 2).
        kind: See above.

    Returns:
        Shape (gates, 2).
    """
    centred = rewards - expected_rewards(probabilities, rewards)[:, None]
    if kind == "raw":
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
