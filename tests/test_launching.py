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
FOLDERS = ("data_builders", "inference", "retrieval", "train")
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


def test_every_launched_file_is_a_program() -> None:
    """A module without its last two lines would end with success, and have done nothing."""
    launch = re.compile(r"(?:accelerate launch --config_file \S+|\$launch)\s+(?:\\\s+)?(?:-m reflectune\.)?([\w./]+)")
    texts = [path.read_text(encoding="utf-8") for path in LAUNCHING]
    names = {name for text in texts for name in launch.findall(text)}
    files = {name.removesuffix(".py").replace(".", "/") + ".py" for name in names if name.startswith(FOLDERS)}
    assert files >= {"inference/sweep.py", "data_builders/build_plain.py"}
    assert [file for file in sorted(files) if '__name__ == "__main__"' not in (ROOT / file).read_text()] == []


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
