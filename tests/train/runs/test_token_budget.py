"""Micro-batches by a budget of tokens train what batches of a fixed number of questions train."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from reflectune.core.errors import UserError
from reflectune.formats.reflection_data import write_examples
from reflectune.train.runs.supervised import fine_tune
from reflectune.train.runs.trainer import ReflectionTrainer
from reflectune.train.weights.checkpoints import RECORD


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of every forward pass of training."""
    seen: list[int] = []
    original = ReflectionTrainer.summed_loss

    def summed_loss(self: Any, model: Any, inputs: Any, sample_ids: Any) -> Any:
        seen.append(inputs["input_ids"].numel())
        return original(self, model, inputs, sample_ids)

    monkeypatch.setattr(ReflectionTrainer, "summed_loss", summed_loss)
    return seen


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llava", {"gate_brier": 1.0}),
        ("qwen2_vl", {"tree": False}),
        pytest.param("llava", {"method": "lora", "lora_dropout": 0.0, "dataloader_workers": 2}, marks=pytest.mark.slow),
    ],
)
def test_a_budget_trains_the_same_weights(family: str, changes: dict[str, Any], config, losses, weights, sizes) -> None:
    plain, budgeted = (
        config(name, family=family, max_steps=2, **{"gradient_accumulation_steps": 2, **changes}, **more)
        for name, more in (("plain", {}), ("budgeted", {"tokens_per_device": 800}))
    )
    fine_tune(plain)
    passes = len(sizes)
    fine_tune(budgeted)

    assert passes == 2 * 2
    assert max(sizes[passes:]) <= 800 < max(sizes[:passes])
    assert sum(sizes[passes:]) == sum(sizes[:passes])
    assert losses(budgeted.output_dir) == pytest.approx(losses(plain.output_dir), rel=1e-4)
    torch.testing.assert_close(weights(budgeted.output_dir), weights(plain.output_dir), rtol=1e-3, atol=1e-4)
    assert json.loads(Path(budgeted.output_dir, RECORD).read_text())["settings"]["global_batch"] == 8


def test_an_example_longer_than_the_budget_is_read_alone_and_named(config, sizes, capsys) -> None:
    fine_tune(config(max_steps=2, tokens_per_device=60))

    printed = capsys.readouterr().out
    found = re.findall(r"example [kv]\d+ has (\d+) tokens, and `tokens_per_device` is 60: such", printed)
    assert len(found) == 1
    assert int(found[0]) in sizes


def test_a_run_with_a_budget_resumes_bit_by_bit(
    config, examples, data_folder, interrupted, assert_equal_weights, losses
) -> None:
    """Adapters with dropout. Two epochs of 12 questions, whose last steps are short."""
    write_examples(data_folder / "train.parquet", examples[:9] + examples[18:21])
    straight, resumed = (
        config(name, method="lora", tokens_per_device=500, per_device_train_batch_size=5, max_steps=5)
        for name in ("a", "b")
    )
    fine_tune(straight)
    interrupted(resumed, 4)
    fine_tune(resumed)

    assert_equal_weights(straight.output_dir, resumed.output_dir)
    assert losses(straight.output_dir) == losses(resumed.output_dir)


def test_out_of_memory_halves_the_budget_once(config, weights, sizes, monkeypatch, capsys) -> None:
    plain, halved, failing = (
        config(name, max_steps=2, tokens_per_device=budget) for name, budget in (("a", 800), ("b", 1600), ("c", 5000))
    )
    original = ReflectionTrainer.summed_loss

    def summed_loss(self: Any, model: Any, inputs: Any, sample_ids: Any) -> Any:
        loss = original(self, model, inputs, sample_ids)
        if inputs["input_ids"].numel() > 800:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return loss

    fine_tune(plain)
    monkeypatch.setattr(ReflectionTrainer, "summed_loss", summed_loss)
    fine_tune(halved)
    assert "out of memory at step 1: from here on micro-batches have at most 800 tokens" in capsys.readouterr().out
    torch.testing.assert_close(weights(halved.output_dir), weights(plain.output_dir), rtol=0, atol=0)
    with pytest.raises(
        UserError, match=r"out of memory at step 1(.|\n)*`tokens_per_device` \d+, which trains the same"
    ):
        fine_tune(failing)


@pytest.mark.slow
def test_two_processes_with_a_budget_train_what_one_does_and_go_on(config, finish, killed, losses, weights) -> None:
    """Real processes over gloo, killed with `kill -9`; shares are equal by tokens, and the epoch ends in fillers."""
    changes: dict[str, Any] = {"max_steps": 12, "learning_rate": 2e-3, "tokens_per_device": 700}
    straight = config("straight", per_device_train_batch_size=10, **changes)
    changed, alone = (config("changed", per_device_train_batch_size=size, **changes) for size in (5, 10))
    fine_tune(straight)
    killed(changed, f"checkpoint-3/{RECORD}", processes=2)
    killed(alone, f"checkpoint-6/{RECORD}")
    finish(changed, processes=2)

    assert losses(straight.output_dir) == pytest.approx(losses(changed.output_dir), rel=1e-4)
    torch.testing.assert_close(weights(changed.output_dir), weights(straight.output_dir), rtol=1e-3, atol=1e-4)
