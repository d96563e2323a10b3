import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from reflectune.train.gate_rewards.policy import (
    EPSILON,
    advantages,
    divergence,
    expected_rewards,
    gate_losses,
    outcome_probabilities,
)

LOG_ODDS = torch.tensor([-6.0, -0.5, 0.0, 1.5, 7.0], dtype=torch.float64)
REFERENCE = torch.tensor([-5.0, 0.5, 0.3, 1.5, 9.0], dtype=torch.float64)
REWARDS = torch.tensor([[1.0, 0.0], [0.4, 1.0], [0.7, 0.7], [-0.2, 0.0], [0.8, 1.0]], dtype=torch.float64)


def test_the_loss_is_its_closed_form() -> None:
    """π = 3/4 with rewards 1 and 0 expects 3/4; the divergence from 1/2 is log 2 less the entropy."""
    log_odds, reference = torch.tensor([math.log(3.0)]), torch.zeros(1)
    rewards = torch.tensor([[1.0, 0.0]])
    probabilities = outcome_probabilities(log_odds)

    raw = advantages(probabilities, rewards, scaled=False)
    group = advantages(probabilities, rewards, scaled=True)
    loss = gate_losses(log_odds, reference, rewards, beta=2.0)

    kl = math.log(2.0) + 0.75 * math.log(0.75) + 0.25 * math.log(0.25)
    assert expected_rewards(probabilities, rewards).item() == pytest.approx(0.75)
    assert raw.tolist() == [pytest.approx([0.25, -0.75])]
    deviation = math.sqrt(3 / 16) + EPSILON
    assert group.tolist() == [pytest.approx([0.25 / deviation, -0.75 / deviation])]
    assert divergence(log_odds, reference).item() == pytest.approx(kl)
    assert loss.item() == pytest.approx(2 * kl)  # advantages have the expectation 0


def check_gradient(value: Callable[[Tensor], Tensor], rtol: float, atol: float = 1e-9, **settings: Any) -> None:
    """Compare the gradient of `gate_losses` with finite differences of a value."""
    step = 1e-6
    expected = (value(LOG_ODDS + step) - value(LOG_ODDS - step)) / (2 * step)
    log_odds = LOG_ODDS.clone().requires_grad_(True)
    gate_losses(log_odds, REFERENCE, REWARDS, **settings).sum().backward()
    torch.testing.assert_close(log_odds.grad, expected, rtol=rtol, atol=atol)


def test_the_expected_rewards_gradient_is_that_of_the_expected_reward_and_the_divergence() -> None:
    """Finite differences of -E_π[R] + β KL, where nothing is a constant."""

    def value(log_odds: Tensor) -> Tensor:
        return 0.3 * divergence(log_odds, REFERENCE) - expected_rewards(outcome_probabilities(log_odds), REWARDS)

    check_gradient(value, 1e-6, beta=0.3)


def test_the_group_gradient_is_that_of_grpos_surrogate() -> None:
    """Finite differences of -Σ π_a(z) A_a + β KL, with the advantages held still."""
    fixed = advantages(outcome_probabilities(LOG_ODDS), REWARDS, scaled=True)

    def value(log_odds: Tensor) -> Tensor:
        return 0.3 * divergence(log_odds, REFERENCE) - (outcome_probabilities(log_odds) * fixed).sum(-1)

    check_gradient(value, 1e-5, beta=0.3, kind="grpo")


def test_the_regressions_gradient_is_that_of_weighted_log_probabilities() -> None:
    """Finite differences of -Σ_a (R_a - min R) log π_a + β KL; it does not vanish where a gate is sure and wrong."""

    def value(log_odds: Tensor) -> Tensor:
        above = REWARDS - REWARDS.amin(-1, keepdim=True)
        return 0.3 * divergence(log_odds, REFERENCE) - (above * outcome_probabilities(log_odds).log()).sum(-1)

    check_gradient(value, 1e-5, 1e-8, beta=0.3, kind="regression")
    sure_and_wrong = torch.tensor([-12.0], requires_grad=True)
    gate_losses(sure_and_wrong, torch.zeros(1), REWARDS[:1].float(), beta=0.0, kind="regression").sum().backward()
    assert sure_and_wrong.grad is not None
    assert sure_and_wrong.grad.item() == pytest.approx(-1.0, rel=1e-3)


def test_the_divergence_is_not_negative_and_nothing_at_the_reference() -> None:
    assert (divergence(LOG_ODDS, REFERENCE) >= 0).all()
    torch.testing.assert_close(divergence(LOG_ODDS, LOG_ODDS), torch.zeros_like(LOG_ODDS))


@pytest.mark.parametrize("far", [30.0, 80.0])
def test_gates_that_are_sure_have_finite_losses(far: float) -> None:
    log_odds = torch.tensor([far, -far], requires_grad=True)

    loss = gate_losses(log_odds, -log_odds.detach(), torch.tensor([[1.0, 0.0], [0.0, 1.0]]), beta=0.1, kind="grpo")
    loss.sum().backward()

    assert torch.isfinite(loss).all()
    assert log_odds.grad is not None
    assert torch.isfinite(log_odds.grad).all()
