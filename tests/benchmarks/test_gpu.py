"""`benchmarks/gpu.py` on a CPU at a tiny size: its sections, its limits, and the record that it writes."""

import functools
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

GATES = ("engine", "repeated cache", "batched rows", "one row at a time")
SECTIONS = ("llava", "training", "gradients", "weights")
SCRIPT = Path(__file__).parents[2] / "benchmarks/gpu.py"


@pytest.fixture
def run(forked_python: str) -> Callable[..., dict[str, Any]]:
    return functools.partial(run_script, forked_python)


def run_script(python: str, folder: Path, *options: str) -> dict[str, Any]:
    """Run the script on a CPU, and return the record that it wrote."""
    command = [python, str(SCRIPT), "--results", str(folder), "--device", "cpu", "--dtype", "float32"]
    subprocess.run([*command, *options], check=True, capture_output=True, text=True, timeout=600)
    return json.loads((folder / "gpu.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_both_sides_of_a_comparison_compute_the_same(run, tmp_path: Path) -> None:
    exact = run(tmp_path, "--size", "tiny", "--limit", "300", "--sections", "exact", "--packed")["figures"]["exact"]
    for found in (exact[family] for family in ("llava", "qwen2_vl", "qwen3_5")):
        assert found["largest difference of a gate"] < 1e-4 * found["largest gate"]
        assert found["equal answers"] == found["answers"] == 4
    record = run(tmp_path, "--size", "tiny", "--limit", "300", "--sections", *SECTIONS)
    figures = record["figures"]
    assert set(figures) >= {*SECTIONS}
    assert max(figures["gradients"]["relative difference of a gradient"].values()) < 1e-4
    assert len(figures["weights"]["pass"]) == 7
    losses = [loss for name, loss in figures["weights"]["loss"].items() if ", 1 x 20 x " in name]
    assert losses == pytest.approx([losses[0], losses[0], losses[2], losses[2]], rel=1e-4)
    assert figures["llava"]["answers equal to the repeated cache's"]["engine"] == 4
    assert set(figures["llava"]["gates"]) == {*GATES, "engine, question's gate first"}
    assert figures["llava"]["difference of log-odds, 99 %"]["engine"] < 1e-4
    assert figures["llava"]["questions with another best passage"]["engine"] == 0
    assert figures["training"]["loss"]["trees"] == pytest.approx(figures["training"]["loss"]["flat rows"], rel=1e-4)
    assert not [section for section in figures.values() if isinstance(section, dict) and "errors" in section]
    claims = {row["claim"]: row for row in record["claims"]}
    assert "flat rows" in claims["LLaVA-1.5-7B: a LoRA step on trees"]["reference"]


@pytest.mark.slow
def test_a_section_that_fails_is_recorded_with_its_error(run, tmp_path: Path) -> None:
    record = run(tmp_path, "--size", "tiny", "--sections", "training", "--limit", "0.1")

    assert record["figures"]["training"]["errors"] == {"training": "cut off after 0.1 s"}
