"""Launch lines of docs and configs: they print no warnings."""

import os
import re
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LAUNCHING = [*PAGES, *sorted((ROOT / "configs").rglob("*.yaml"))]


def launch_lines() -> list[tuple[str, str]]:
    """Return the file and line number of each launch, and the line."""
    return [
        (f"{path.relative_to(ROOT)}:{number}", line)
        for path in LAUNCHING
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if "accelerate launch" in line and "` was asked" not in line
    ]


def test_every_launch_line_names_its_settings() -> None:
    """Else accelerate prints its defaults; without a GPU, the number of threads too."""
    lines = launch_lines()
    assert len(lines) > 30
    for position, line in lines:
        command = line[line.index("accelerate launch") :]
        assert re.match(r"accelerate launch(` or `)? --config_file configs/accelerate/", command), position
        if "accelerate/cpu" in line:
            assert "OMP_NUM_THREADS=" in line or not position.startswith("configs/"), position
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert text.count("OMP_NUM_THREADS=") == text.count("configs/accelerate/cpu.yaml"), page


@pytest.mark.slow
@pytest.mark.parametrize("settings", ["cpu_2_processes", "gpu"])
def test_a_launch_prints_nothing_in_a_log(tmp_path: Path, settings: str) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('ran')\n")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = ["-m", "accelerate.commands.launch", "--config_file", f"{ROOT}/configs/accelerate/{settings}.yaml"]
    with socket.socket() as other:
        with suppress(OSError):
            other.bind(("127.0.0.1", 29500))  # accelerate's default port
            other.listen()
        done = subprocess.run(
            [sys.executable, *command, str(script)], capture_output=True, text=True, check=True, env=environment
        )
    assert done.stdout.count("ran") == (2 if settings == "cpu_2_processes" else 1)
    assert done.stderr == ""
