"""The launch lines that users are told: nothing that they did not ask for is said to them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TOLD = [*PAGES, *sorted((ROOT / "configs").rglob("*.yaml"))]


def launch_lines() -> list[tuple[str, str]]:
    """Where a launch is told, and the line with what stands before the command in it."""
    return [
        (f"{path.relative_to(ROOT)}:{number}", line)
        for path in TOLD
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if "accelerate launch" in line and "` was asked" not in line
    ]


def test_every_launch_that_is_told_names_its_settings() -> None:
    """Else accelerate prints what it takes for granted; without a GPU, the number of threads as well."""
    lines = launch_lines()

    assert len(lines) > 30
    for place, line in lines:
        command = line[line.index("accelerate launch") :]
        assert re.match(r"accelerate launch(` or `)? --config_file configs/accelerate/", command), place
        if "accelerate/cpu" in line:
            assert "OMP_NUM_THREADS=" in line or not place.startswith("configs/"), place
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert text.count("OMP_NUM_THREADS=") == text.count("configs/accelerate/cpu.yaml"), page


@pytest.mark.slow
@pytest.mark.parametrize("settings", ["cpu", "cpu_2_processes", "gpu"])
def test_a_launch_says_nothing_in_a_log(tmp_path: Path, settings: str) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('ran')\n")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = ["-m", "accelerate.commands.launch", "--config_file", f"{ROOT}/configs/accelerate/{settings}.yaml"]
    command += ["--main_process_port", "0"]  # a free one: another program may have 29500

    done = subprocess.run(
        [sys.executable, *command, str(script)], capture_output=True, text=True, check=True, env=environment
    )

    assert done.stdout.count("ran") == (2 if settings == "cpu_2_processes" else 1)
    assert done.stderr == ""
