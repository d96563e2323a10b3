"""`benchmarks/gpu.py` on a CPU at a tiny size: its sections, its limits, and the record that it writes."""

import argparse
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

GATES = ("engine", "repeated cache", "batched rows", "one row at a time")
SECTIONS = ("llava", "training")
SCRIPT = Path(__file__).parents[2] / "benchmarks/gpu.py"


@pytest.mark.slow
def test_both_sides_of_a_comparison_compute_the_same(forked_python: str, tmp_path: Path) -> None:
    def run(*options: str) -> dict[str, Any]:
        command = [forked_python, str(SCRIPT), "--results", str(tmp_path), "--device", "cpu", "--dtype", "float32"]
        command += ["--size", "tiny", "--limit", "300", *options]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
        return json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))

    exact = run("--sections", "exact", "--packed")["figures"]["exact"]
    for found in (exact[family] for family in ("llava", "qwen2_vl", "qwen3_5")):
        assert found["largest difference of a gate"] < 1e-4 * found["largest gate"]
        assert found["equal answers"] == found["answers"] == 4
    record = run("--sections", *SECTIONS)
    figures = record["figures"]
    assert set(figures) >= {*SECTIONS}
    assert figures["llava"]["answers equal to the repeated cache's"]["engine"] == 4
    assert set(figures["llava"]["gates"]) == {*GATES, "engine, question's gate first"}
    assert figures["llava"]["difference of log-odds, 99 %"]["engine"] < 1e-4
    assert figures["llava"]["questions with another best passage"]["engine"] == 0
    assert figures["training"]["loss"]["trees"] == pytest.approx(figures["training"]["loss"]["flat rows"], rel=1e-4)
    assert not [section for section in figures.values() if isinstance(section, dict) and "errors" in section]
    claims = {row["claim"]: row for row in record["claims"]}
    assert "flat rows" in claims["LLaVA-1.5-7B: a LoRA step on trees"]["reference"]


@pytest.mark.slow
def test_packed_trees_have_the_gradients_of_separate_rows_on_a_gpu(
    forked_python: str, simulated_gpu: str, tmp_path: Path
) -> None:
    options = ["--section", "gradients", "--size", "tiny", "--dtype", "float32", "--device", "cuda"]
    command = [forked_python, simulated_gpu, str(tmp_path / "waits.json"), str(SCRIPT), "--results", str(tmp_path)]
    subprocess.run([*command, *options], check=True, capture_output=True, text=True, timeout=600)
    figures = json.loads((tmp_path / "gpu_gradients.part").read_text(encoding="utf-8"))
    differences = figures["relative difference of a gradient"]
    assert len(differences) == 8  # four families, each with and without recomputed layers
    assert max(differences.values()) < 1e-4


@pytest.mark.parametrize(
    ("family", "parameters"),
    [
        ("llava", 7_063_427_072),
        ("qwen2_vl", 8_291_375_616),
        ("qwen2_5_vl", 8_292_166_656),
        ("qwen3_5", 9_409_813_744),
    ],
)
def test_a_model_of_7b_has_the_published_shapes(
    script: Callable[[str], ModuleType], family: str, parameters: int
) -> None:
    assert script("workload").build(family, "7b", device="meta").num_parameters() == parameters


def test_a_section_that_fails_is_recorded_with_its_error(script: Callable[[str], ModuleType], tmp_path: Path) -> None:
    options = {"device": "cpu", "size": "tiny", "dtype": "float32", "packed": False}
    figures = script("gpu").run_section("training", 0.1, argparse.Namespace(results=tmp_path, **options))
    assert figures["errors"] == {"training": "cut off after 0.1 s"}


def test_a_list_ends_before_the_next_table(script: Callable[[str], ModuleType]) -> None:
    case = script("gpu_training").CASES[0].name
    figures = {
        "training": {"step": {"trees": 1.0}, "loss": {"trees": 2.0}},
        "weights": {"pass": {f"{case}, trees": 1.0}, "profile, ms": {case: {"gemm": 3.0}}},
        "gradients": {"relative difference of a gradient": {"llava": 1e-6}},
    }
    lines = ["", *script("gpu_tables").tables(figures)]
    heads = [number for number, line in enumerate(lines) if line.startswith("| --- ")]
    assert len(heads) == 4
    assert {lines[number - 2] for number in heads} == {""}
