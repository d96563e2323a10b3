"""One cell of `scripts/gpu_check.sh` on the CPU, at a narrow width: the script, its commands and its table."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_cell_trains_and_loads_and_a_failing_one_ends_with_status_1(forked_python: str, tmp_path: Path) -> None:
    command = ["bash", str(ROOT / "scripts/gpu_check.sh"), "--device", "cpu", "--size", "tiny"]
    command += ["--families", "llava", "--methods", "lora"]
    command += ["--run", str(tmp_path), "--output", str(tmp_path / "table.md")]
    environment = {**os.environ, "PYTHON": forked_python, "OMP_NUM_THREADS": "1"}

    done = subprocess.run([*command, "--steps", "2"], capture_output=True, text=True, env=environment)

    assert done.returncode == 0, done.stderr[-2000:]
    row = r"\| llava \| lora \| \d\.\d\d → \d\.\d\d \| \d+\.\d\d \| [\d,]+ \| – \| 0\.\d\d \| peft \|"
    assert re.search(row, done.stdout)
    assert re.search(row, (tmp_path / "table.md").read_text())

    broken = subprocess.run([*command, "--steps", "0"], capture_output=True, text=True, env=environment)
    assert broken.returncode == 1
    assert "| llava | lora | failed |" in broken.stdout
    assert "`max_steps` must be at least 1" in broken.stderr
