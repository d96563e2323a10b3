import io
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reflectune.core import progress
from reflectune.core.progress import progress_bar


@pytest.fixture
def interval(monkeypatch: pytest.MonkeyPatch) -> float:
    """Seconds between two updates in a log, instead of 30."""
    monkeypatch.setattr(progress, "SECONDS", 0.2)
    return 0.2


def test_a_bar_in_a_log_is_updated_at_intervals(interval: float) -> None:
    log = io.StringIO()
    with progress_bar(total=100, desc="training", file=log) as bar:
        for _ in range(100):
            time.sleep(0.01)
            bar.update()
            bar.set_postfix_str("5 tokens/s")
            bar.write("a row", file=io.StringIO())
    updates = log.getvalue().split("\r")[1:]
    assert 3 <= len(updates) < 50
    assert updates[0].startswith("training:")
    assert not updates[0].startswith("training:   0%")
    assert "100/100" in updates[-1]
    assert updates[-1].endswith("5 tokens/s]\n")


def test_short_work_writes_nothing_in_a_log() -> None:
    log = io.StringIO()
    assert list(progress_bar(range(20), desc="loading", file=log)) == list(range(20))
    assert log.getvalue() == ""


def test_a_disabled_bar_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """`TQDM_DISABLE=1` leaves a bar without the attributes that updates read."""
    log = io.StringIO()
    with progress_bar(total=10, file=log, disable=True) as bar:
        bar.update()
        bar.set_postfix_str("5 tokens/s")
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
def test_notices_about_a_cpu_are_hidden_and_errors_are_not(logger, notice, caplog) -> None:
    progress.quiet_libraries()
    logging.getLogger(logger).warning(notice)
    logging.getLogger(logger).error("no space left")
    assert caplog.messages == ["no space left"]
