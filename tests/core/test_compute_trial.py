"""The fastest precision and number of threads is chosen, and what the user sets is left alone."""

from __future__ import annotations

import pytest
import torch

from reflectune.core import compute_trial
from reflectune.core.compute_trial import choose, in_words, try_cpu


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ({("float32", 2): 100, ("bfloat16", 2): 200, ("float32", 1): 60, ("bfloat16", 1): 120}, ("bfloat16", 2)),
        ({("float32", 2): 14, ("bfloat16", 2): 28, ("float32", 1): 60, ("bfloat16", 1): 120}, ("bfloat16", 1)),
        ({("float32", 2): 100, ("bfloat16", 2): 10, ("float32", 1): 60, ("bfloat16", 1): 5}, ("float32", 2)),
        ({("float32", 1): 100, ("bfloat16", 1): 119}, ("float32", 1)),  # not worth its casts
    ],
)
def test_the_fastest_combination_is_chosen(rates: compute_trial.Rates, expected: tuple[str, int]) -> None:
    choice = choose(rates)

    assert (choice.dtype, choice.threads) == expected
    assert in_words(choice).startswith(f"compute: {expected[0]} with {expected[1]} thread")
    assert all(f"{rate:.0f} GFLOP/s" in choice.why for rate in rates.values())


def test_threads_that_the_user_sets_are_the_only_ones_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    monkeypatch.setattr(compute_trial, "measured_rate", lambda dtype, threads: tried.append(threads) or 1.0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)

    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert try_cpu().threads == 4
    assert set(tried) == {4}
    tried.clear()
    monkeypatch.delenv("OMP_NUM_THREADS")
    try_cpu()
    assert set(tried) == {1, 4}


def test_the_trial_leaves_the_threads_as_they_were() -> None:
    before = torch.get_num_threads()

    choice = try_cpu()

    assert torch.get_num_threads() == before
    assert choice.dtype in ("float32", "bfloat16")
