"""A process of a launch ends with its launcher; any other outlives whoever started it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

WORKER = """
import sys, time
from pathlib import Path
from reflectune.core.errors import entry_point

@entry_point
def main():
    Path(sys.argv[1]).touch()
    time.sleep(60)

main()
"""
LAUNCHER = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]], stderr=open(sys.argv[3], "w"))
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("launched", [True, False])
def test_a_process_whose_launcher_is_killed_ends_too(tmp_path: Path, launched: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TORCHELASTIC_RUN_ID"}
    environment |= {"TORCHELASTIC_RUN_ID": "none"} if launched else {}
    began, told = tmp_path / "began", tmp_path / "told.txt"
    command = [sys.executable, "-c", LAUNCHER, WORKER, str(began), str(told)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as launcher:
        assert launcher.stdout is not None
        worker = psutil.Process(int(launcher.stdout.readline()))
        while not began.exists():
            time.sleep(0.05)
        launcher.kill()
    _, alive = psutil.wait_procs([worker], timeout=10 if launched else 2)
    for process in alive:
        process.kill()
    assert bool(alive) is not launched
    assert ("is gone; run the same command again" in told.read_text()) is launched
