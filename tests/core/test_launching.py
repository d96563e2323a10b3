import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reflectune.core.config import find_problems
from reflectune.core.launch_variables import launch_size, rank, without_launcher
from reflectune.models.names import PlacementKeys


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, (1, 2)),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, (3, 4)),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, (0, 2)),
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2"}, (1, 2)),
    ],
)
def test_a_process_knows_its_number_and_the_launchs_size(environment, expected, monkeypatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert (rank(), launch_size()) == expected


def test_only_a_single_process_spreads_a_model_over_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_problems(PlacementKeys, {"device_map": "auto"}) == []
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert find_problems(PlacementKeys, {}) == []
    assert "this launch has 2" in find_problems(PlacementKeys, {"device_map": "auto"})[0]


def test_a_command_outside_the_launch_gets_none_of_its_variables() -> None:
    kept = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "1"}
    launch = {"RANK": "0", "MASTER_PORT": "29500", "ACCELERATE_USE_CPU": "true", "TORCHELASTIC_RUN_ID": "none"}
    assert without_launcher({**kept, **launch}) == kept


START = """
import time
from datetime import timedelta

from accelerate import PartialState
from reflectune.core.entry_point import entry_point
from reflectune.core import launching
from reflectune.core.errors import UserError
from reflectune.core.launching import any_process, ending_together, launch_processes

rank = PartialState(cpu=True, timeout=timedelta(seconds=1)).process_index


@entry_point
def main():
"""


def start(script: str, start_processes: Callable[..., list[Any]], folder: Path) -> list[Any]:
    """Start a script's `main` in two processes without a launcher, as on two machines."""
    (folder / "script.py").write_text(f"{START}{script}\n\nmain()\n")
    return start_processes(*[[str(folder / "script.py")]] * 2)


def test_processes_wait_for_each_other_longer_than_the_group_that_they_joined(
    start_processes: Callable[..., list[Any]], tmp_path: Path
) -> None:
    """PyTorch ends a wait after 30 minutes, on NVIDIA's GPUs after 10: others may be at work for longer."""
    script = """
    time.sleep(3 * rank)
    launch_processes().wait()
    print(any_process(rank == 1, rank == 2), launch_processes().from_first(lambda: rank))
"""
    for program in start(script, start_processes, tmp_path):
        assert (program.wait(timeout=60), program.stdout) == (0, "[True, False] 0\n"), program.stderr


def test_processes_that_write_a_folder_together_must_share_it(
    start_processes: Callable[..., list[Any]], tmp_path: Path
) -> None:
    """Else each machine's rows stay on its own disk, and the first process merges a part of them."""
    script = f"""
    launch_processes("{tmp_path}/new/shared")
    launch_processes(f"{tmp_path}/new/disk{{rank}}")
"""
    for program in start(script, start_processes, tmp_path):
        assert program.wait(timeout=60) == 2
        assert re.search(r"^error: \S+/disk\d is not the same folder for all processes; it must lie", program.stderr)
    assert sorted(path.name for path in (tmp_path / "new").rglob("*")) == ["disk0", "disk1", "shared"]


@pytest.mark.parametrize("failing", [0, 1])
def test_a_command_that_fails_in_one_process_ends_on_other_machines(
    failing: int, start_processes: Callable[..., list[Any]], tmp_path: Path
) -> None:
    script = f"""
    from reflectune.core.command import command
    from reflectune.core.config import Settings

    @command(Settings)
    def work(config):
        launch_processes()
        if rank == {failing}:
            raise UserError("image unreadable: a.png")
        time.sleep(200)

    work.main([])
"""
    programs = start(script, start_processes, tmp_path)
    failed, other = programs[failing], programs[1 - failing]

    assert failed.wait(timeout=60) == 2
    assert other.wait(timeout=60) == 1
    assert re.search(f"error: (process {failing} failed: image|the first process of the launch has gone)", other.stderr)
    assert "Traceback" not in other.stderr


@pytest.mark.parametrize(("waiting", "seconds", "look"), [("time.sleep(200)", 200, 0.1), ("any_process(True)", 0, 99)])
def test_an_error_in_one_process_ends_those_of_other_machines(
    waiting: str, seconds: int, look: float, start_processes: Callable[..., list[Any]], tmp_path: Path
) -> None:
    """The failed process may end at once, which closes its connections, or take its time."""
    script = f"""
    launching.POLL_SECONDS = {look}
    launch_processes()
    try:
        with ending_together():
            if rank == 1:
                raise UserError("image unreadable: a.png")
            {waiting}
    finally:
        time.sleep({seconds})
"""
    began = time.monotonic()
    first, failing = start(script, start_processes, tmp_path)

    assert first.wait(timeout=60) == (1 if seconds else 2)
    assert "error: process 1 failed: image unreadable: a.png" in first.stderr
    assert "Traceback" not in first.stderr
    assert time.monotonic() - began < 60
    failing.kill()
