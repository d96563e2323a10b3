"""lmms-eval's own runner scores the miniature task through our adapter, if `examples/lmms_eval/run.sh` installed it."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from reflectune.core.config import find_problems
from reflectune.examples.lmms_eval.config import MODES, BenchmarkConfig
from reflectune.examples.lmms_eval.table import read_runs

ROOT = Path(__file__).parents[3]
TASK = ROOT / "examples/lmms_eval/task"
OWN = ROOT / ".venv-lmms/bin/python"
CONFIGS = sorted((ROOT / "configs/examples/lmms_eval").glob("*.yaml"))
DOCUMENTS = 6


@pytest.fixture(scope="module")
def python() -> str:
    """An interpreter that has lmms-eval."""
    if importlib.util.find_spec("lmms_eval"):
        return sys.executable
    path = os.environ.get("LMMS_EVAL_PYTHON") or str(OWN)
    if not Path(path).is_file():
        pytest.skip("lmms-eval has an environment of its own, which `bash examples/lmms_eval/run.sh true` makes")
    return path


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, make) -> Path:
    """Two entries, found for the picture of every question of the task."""
    folder = tmp_path_factory.mktemp("world")
    make.data_set(folder, [make.entry(0), make.entry(1)], [], metric="exact_match")
    rankings = []
    for number, row in enumerate(pq.read_table(TASK / "questions.parquet").to_pylist()):
        (folder / f"{number}.jpg").write_bytes(row["image"]["bytes"])
        rankings.append({"image": f"{number}.jpg", "entities": ["e1", "e0"]})
    (folder / "ranked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rankings))
    return folder


def run(python: str, config: Path, runs: list[dict[str, Any]], folder: Path) -> str:
    """Return the output of `lmms-eval --config` with these runs."""
    (folder / "runs.yaml").write_text(yaml.safe_dump(runs))
    settings = {"HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [python, "-m", "lmms_eval", "--config", str(folder / "runs.yaml")]
    ended = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **settings}, capture_output=True, text=True, check=True
    )
    return ended.stdout


@pytest.mark.slow
def test_its_runner_scores_the_miniature_in_all_modes(python, world, checkpoints, tmp_path) -> None:
    config = tmp_path / "config.yaml"
    keys = {"model": checkpoints.tuned, "base_model": checkpoints.base, "dataset": str(world), "device": "cpu"}
    config.write_text(yaml.safe_dump({**keys, "ranked_entities": str(world / "ranked.jsonl"), "gamma": 0.0}))
    common = {"model": "reflectune", "include_path": str(TASK), "tasks": "visual_miniature", "log_samples": True}
    runs = [
        {
            **common,
            "limit": DOCUMENTS,
            "model_args": f"config={config},mode={mode}",
            "output_path": str(tmp_path / "runs" / mode),
        }
        for mode in MODES
    ]
    printed = run(python, config, runs, tmp_path)
    assert printed.count("|visual_miniature|") == len(MODES), printed
    outcomes = {outcome.mode: outcome for outcome in read_runs(tmp_path / "runs")}
    assert outcomes.keys() == set(MODES)
    assert all(outcome.scores.keys() == {"accuracy"} for outcome in outcomes.values())
    assert all(len(outcome.documents) == DOCUMENTS for outcome in outcomes.values())
    assert outcomes["base"].opened == ()
    assert all(outcomes[mode].opened == (True,) * DOCUMENTS for mode in MODES[1:])
    assert outcomes["gate"].unanswered == DOCUMENTS
    samples = next((tmp_path / "runs/pipeline").glob("*_samples_*.jsonl")).read_text().splitlines()
    assert all(json.loads(line)["token_counts"][0]["entries"] == ["e1", "e0"] for line in samples)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_is_right_in_every_mode(path: Path, mode: str) -> None:
    problems = find_problems(BenchmarkConfig, {**yaml.safe_load(path.read_text()), "mode": mode})
    missing = re.compile(r"has no [\w.]+\.json|is not a folder")  # folders of a run
    assert [problem for problem in problems if not missing.search(problem)] == []
