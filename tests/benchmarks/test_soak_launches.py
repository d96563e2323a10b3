"""Launches as forks: how each process ended is seen, and told."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
DRIVER = """
import sys
from pathlib import Path
from forked_launch import Launcher

folder = Path(sys.argv[1])
options = ["--config_file", sys.argv[2], "--main_process_port", "0", "--log_dir", f"{folder}/processes", "--tee", "3"]
statuses, hung = Launcher(folder, {}, 60).run([*options, f"{folder}/script.py"], folder, lambda: print("first"))
print(sorted(statuses), hung)
"""
SCRIPT = """
import os, sys

print("ran", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
sys.stdout.flush()
if os.environ["RANK"] == os.environ.get("ABORTING"):
    print("terminate called", file=sys.stderr, flush=True)
    os.abort()
"""


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`benchmarks/soak_launches.py`, imported as a script is."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("soak_launches")


@pytest.mark.slow
@pytest.mark.parametrize("aborting", ["", "1"])
def test_a_process_that_aborts_is_seen_and_its_stderr_is_kept(tmp_path: Path, aborting: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    settings = str(ROOT / "configs/accelerate/cpu_2_processes.yaml")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "benchmarks"), "ABORTING": aborting, "OMP_NUM_THREADS": "1"}

    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path), settings],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )

    logs = {
        (path.parent.name, path.name): path.read_text()
        for path in (tmp_path / "processes").rglob("*")
        if path.is_file()
    }
    assert logs["1", "stdout.log"] == "first\nran 1 of 2\n"
    statuses, hung = re.fullmatch(r"\[(.*)\] (.*)", done.stdout.splitlines()[-1]).groups()  # type: ignore[union-attr]
    assert ("-6" in statuses.split(", ")) == bool(aborting)
    assert (statuses == "0, 0, 0") == (not aborting)
    assert hung == "False"
    assert ("terminate called" in logs["1", "stderr.log"]) == bool(aborting)


def test_launches_are_counted_by_how_they_ended(soak: ModuleType, tmp_path: Path) -> None:
    """One ended well, one of whose processes aborted, one that failed, one that hung."""
    ways = (([0, 0, 0], False), ([-6, 0, 1], False), ([1, -15, 1], False), ([-6, -6, -6], True))
    launches = [soak.Launch("as it is", i, 2.0 + i, 8.0, *way) for i, way in enumerate(ways)]
    written = soak.folder_of(tmp_path, "as it is", 1) / "processes/1"
    written.mkdir(parents=True)
    (written / "stderr.log").write_text(f"{ROOT}/core/errors.py: terminate called without an active exception")

    text = soak.page(launches, tmp_path, 2)

    assert [launch.manner for launch in launches] == list(soak.MANNERS)
    assert "| as it is | 4 | 1 | 1 | 1 | 1 | 3.5 (5.0) | 8.0 (8.0 to 8.0) |" in text
    assert "\n```\ncore/errors.py: terminate called without an active exception\n```\n" in text
    assert "## as it is 0" not in text
    assert soak.bound("x", launches) == ""
    assert "no abort in 1 launches leaves a rate of up to 95 %" in soak.bound("x", launches[:1])
    assert "up to 5 %" in soak.bound("x", launches[:1] * 58)
