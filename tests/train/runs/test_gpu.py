"""Training on a simulated GPU computes the CPU's losses and gradients, and seldom waits for the GPU."""

from pathlib import Path
from typing import Any

import pytest

from reflectune.train.runs.supervised import fine_tune

pytestmark = pytest.mark.slow
STEPS = 3


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"method": "lora", "tokens_per_device": 2000, "eval_steps": 3, "eval_answers": 3}, 14),
        ({"family": "qwen2_vl", "method": "full", "gradient_checkpointing": True}, 23),
        ({"method": "lora", "compile": "off"}, 48),
    ],
    ids=["adapters", "all weights", "dense masks"],
)
def test_a_gpu_trains_as_the_cpu_does(
    settings: dict[str, Any], most: int, config, data_folder: Path, train_on_gpu, typed, history
) -> None:
    data = data_folder / "train.parquet"
    settings = {**settings, "max_steps": STEPS, "eval_data": str(data) if "eval_steps" in settings else ""}
    here, there = config("here", **settings), config("there", **settings, device="cuda", dtype="float32")
    fine_tune(here)
    waits = train_on_gpu("train/sft.py", typed(there))
    for expected, found in zip(history(here.output_dir), history(there.output_dir), strict=True):
        assert expected.keys() <= found.keys()
        for name in expected.keys() & {"loss", "grad_norm", "eval_loss"}:
            assert found[name] == pytest.approx(expected[name], rel=5e-3)
    assert len(waits[-1]) <= most, waits[-1]
