"""Bars on a terminal are tqdm's own; in a log they are lines, and few."""

import io
import itertools
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tqdm import tqdm

from reflectune.core import progress
from reflectune.core.progress import progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that bars see; the test sets it."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_log_has_a_line_at_most_every_30_seconds_whatever_asks_for_one(clock: list[float]) -> None:
    log, times, length = io.StringIO(), [], 0
    with progress_bar(total=1500, desc="training", file=log, mininterval=0) as bar:
        for _ in range(1500):  # a step a second
            clock[0] += 1.0
            bar.update()
            bar.set_postfix_str(f"{clock[0]:.0f} tokens/s")
            bar.refresh()
            bar.write("a row", file=io.StringIO())
            if len(log.getvalue()) > length:
                length = len(log.getvalue())
                times.append(clock[0])

    lines = log.getvalue().splitlines()
    assert times == list(range(30, 1501, 30))
    assert len(lines) == len(times) + 1  # and the last
    assert all(later - earlier >= 30 for earlier, later in itertools.pairwise(times))
    assert "\r" not in log.getvalue()
    assert lines[0].startswith("training:")
    assert "30/1500" in lines[0]
    assert "1500/1500" in lines[-1]
    assert lines[-1].endswith("1500 tokens/s]")


def test_short_work_writes_nothing_in_a_log(clock: list[float]) -> None:
    log = io.StringIO()
    for step in progress_bar(range(20), desc="loading", file=log):
        clock[0] = float(step)

    assert log.getvalue() == ""


def test_a_bar_that_leaves_nothing_has_no_last_line(clock: list[float]) -> None:
    log = io.StringIO()
    with progress_bar(total=2, file=log, leave=False, mininterval=0) as bar:
        clock[0] = 31.0
        bar.update(1)
        clock[0] = 62.0

    assert len(log.getvalue().splitlines()) == 1


def test_a_terminal_has_tqdm_s_own_bar(clock: list[float]) -> None:
    terminal = Terminal()
    bar = progress_bar(total=2, desc="probing", file=terminal, mininterval=0)
    bar.update(2)
    bar.close()

    assert type(bar) is tqdm
    assert terminal.getvalue().startswith("\rprobing:   0%")
    assert terminal.getvalue().count("\r") >= 3


def test_a_hidden_bar_writes_nothing(clock: list[float]) -> None:
    log = io.StringIO()
    with progress_bar(total=2, file=log, disable=True) as bar:
        clock[0] = 100.0
        bar.update(2)

    assert log.getvalue() == ""


def test_no_part_of_the_tree_draws_a_bar_of_its_own() -> None:
    root = Path(progress.__file__).resolve().parents[1]
    folders = ("core", "models", "metrics", "retrieval", "data_builders", "inference", "train")
    files = [path for folder in folders for path in (root / folder).rglob("*.py")]

    assert len(files) > 100
    importing = {str(path.relative_to(root)) for path in files if "from tqdm" in path.read_text(encoding="utf-8")}
    assert importing == {"core/progress.py", "data_builders/conversion/sources.py"}  # the latter for a type


@pytest.mark.slow
def test_transformers_bars_do_not_reach_a_log(tmp_path: Path) -> None:
    script = """
from reflectune.core.entry_point import entry_point
from transformers.utils import logging

@entry_point
def main():
    for _ in logging.tqdm(range(3), desc="Loading weights"):
        pass

main()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path, env={**os.environ}
    )

    assert done.stderr == ""


@pytest.mark.parametrize(
    ("logger", "notice"),
    [
        ("DeepSpeed", "Setting accelerator to CPU. If you have GPU"),
        ("bitsandbytes.backends.cpu.ops", "Failed to load CPU gemm_4bit_forward"),
    ],
)
def test_what_a_library_says_of_a_cpu_is_hidden_and_its_errors_are_not(
    logger: str, notice: str, caplog: pytest.LogCaptureFixture
) -> None:
    progress.quiet_libraries()
    logging.getLogger(logger).warning(notice)
    logging.getLogger(logger).error("no space left")
    assert caplog.messages == ["no space left"]
