"""Whole trainings of `benchmarks/train.py` on a CPU at a tiny size: all sides read the same questions."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from reflectune.models.attention.tree import independent_rows

SCRIPT = Path(__file__).parents[2] / "benchmarks/train.py"
TINY = "--device cpu --size tiny --rank 4 --branches 2 --tokens 20 --step 2 --questions 10 --tokens_per_device 700"
SIDES = ("SFTTrainer as it comes", "SFTTrainer, Liger", "trees, budget of tokens")


@pytest.mark.slow
def test_all_sides_have_one_loss(forked_python: str, tmp_path: Path) -> None:
    command = [forked_python, str(SCRIPT), "--whole", "--results", str(tmp_path), *TINY.split(), "--sides", *SIDES]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout
    record = json.loads((tmp_path / "train_whole.json").read_text(encoding="utf-8"))
    sides = record["figures"]["sides"]

    assert list(sides) == [*SIDES]
    assert sides.pop("SFTTrainer, Liger") == {"error": "liger-kernel is not installed"}
    losses = [found["first loss"] for found in sides.values()]
    assert losses == pytest.approx([losses[0]] * 2, rel=1e-4)
    assert all(found["questions/s"] > 0 for found in sides.values())
    assert [row["claim"] for row in record["claims"]] == ["llava: a whole LoRA training, questions/s"]
    assert "| trees, budget of tokens |" in printed


@pytest.mark.parametrize("family", ["llava", "qwen2_vl", "qwen3_5"])
def test_stock_rows_are_those_that_a_tree_stands_for(script: Callable[[str], ModuleType], family: str) -> None:
    whole, workload = script("whole_training"), script("workload")
    model = workload.build(family, "tiny")
    tree = workload.tree_of(model, 2, 20)
    found, expected = whole.padded_rows(model, independent_rows(tree)), workload.flat_rows(model, tree)

    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
