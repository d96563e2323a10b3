"""Both papers' lists are walked on files under the public names: quick steps, and all of them among the slow tests."""

from __future__ import annotations

import importlib
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from reflectune.core.config import read_config
from reflectune.inference.reproduction.config import ReproduceConfig
from reflectune.inference.reproduction.running import run
from reflectune.inference.reproduction.status import statuses

ROOT = Path(__file__).parents[2]
LISTS = {paper: ROOT / f"configs/reproduce/{paper}/steps.yaml" for paper in ("mr2ag", "mmkb_rag")}
QUICK = {"mr2ag": ("infoseek", "evqa", "nq", "llava_instruct", "lens"), "mmkb_rag": ("infoseek",)}
"""Steps that load no model."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with generated files where the downloads would lie."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        files = importlib.import_module("public_files")
    folder = tmp_path_factory.mktemp("lab")
    files.write_public_files(folder, files.Rows().scaled(0))
    return folder


@pytest.mark.parametrize("paper", LISTS)
def test_the_files_under_the_public_names_are_what_the_lists_convert(paper: str, lab: Path, tmp_path: Path) -> None:
    settings = {
        "data_builders.convert": {"workers": 1},
        **({"infoseek": {"sample_knowledge": 30}} if paper == "mr2ag" else {}),
    }
    changes = tmp_path / "changes.yaml"
    changes.write_text(
        yaml.safe_dump({"settings": settings, "room": 0, "without": ["evqa_pictures"][paper == "mr2ag" :]})
    )
    config = read_config(ReproduceConfig, LISTS[paper], data=str(lab), changes=str(changes))
    every = config.all_steps()
    chosen = [step for step in every if step.name in QUICK[paper]]
    assert {status.state for status in statuses(chosen, lab, every)} <= {"next", "blocked"}

    run(chosen, every, lab, tmp_path)

    assert {status.state for status in statuses(chosen, lab, every)} == {"done"}
    after = {status.step.name: status.state for status in statuses(every, lab)}
    assert after["infoseek_index"] == "next"
    assert after["train"] == "blocked"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("paper", LISTS)
def test_every_step_of_a_paper_ends_with_narrow_models(paper: str, forked_python: str, tmp_path: Path) -> None:
    command = [forked_python, "benchmarks/rehearsal.py", "--rows", "200", "--narrow", "--dtype", "float32"]
    command += [
        "--limit",
        "1",
        "--papers",
        paper,
        "--work",
        str(tmp_path / "work"),
        "--output",
        str(tmp_path / "page.md"),
    ]

    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=ROOT, check=True, env=environment, stdout=subprocess.DEVNULL)

    tables = (tmp_path / f"work/lab/runs/reproduce/{paper}/tables.md").read_text(encoding="utf-8")
    assert tables.startswith("**A rehearsal**")
    measured = [line for line in tables.splitlines() if line.startswith("| ") and line[2:5] not in ("---", " | ")]
    without = [line for line in measured if set(line.split("|")[2:-1]) == {" – "}]
    assert without == []
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert page.count(f"| {paper}: ") == len(read_config(ReproduceConfig, LISTS[paper]).all_steps()) - (
        1 if paper == "mr2ag" else 2
    )
