import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from reflectune.train.runs.supervised import fine_tune
from reflectune.train.runs.trainer import ReflectionTrainer
from reflectune.train.runs.utilization import needed_operations, product_rate


def test_operations_are_two_a_weight_in_each_of_its_products() -> None:
    layers = nn.ModuleList([nn.Linear(3, 5), nn.Linear(5, 2).requires_grad_(False)])
    assert needed_operations(layers) == 6 * 15 + 4 * 10
    packed = nn.Parameter(torch.zeros(8, 1, dtype=torch.uint8), requires_grad=False)
    packed.quant_state = SimpleNamespace(shape=(4, 4))
    assert needed_operations(nn.ParameterList([packed])) == 4 * 16
    divided = nn.Parameter(torch.zeros(0))  # as ZeRO-3 leaves it
    divided.ds_shape, divided.ds_numel = torch.Size((3, 5)), 15
    assert needed_operations(nn.ParameterList([divided])) == 6 * 15


def test_a_rate_is_operations_per_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr("reflectune.train.runs.utilization.PRODUCT", (2, 3, 4))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr("torch.accelerator.synchronize", lambda device: None)
    assert product_rate(torch.device("cpu"), torch.float32) == 48


def test_mfu_is_logged_where_the_device_has_a_rate(config, monkeypatch: pytest.MonkeyPatch) -> None:
    run = config(max_steps=1)
    monkeypatch.setattr(ReflectionTrainer, "operations_per_second", lambda self: 1e6 * self._operations)
    fine_tune(run)
    row = json.loads(Path(run.output_dir, "log.jsonl").read_text().splitlines()[0])
    assert row["mfu"] == pytest.approx(row["tokens_per_second"] / 1e6, abs=6e-4)
