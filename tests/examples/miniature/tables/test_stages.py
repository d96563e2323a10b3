from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from reflectune.core.errors import UserError
from reflectune.core.launching import alone
from reflectune.examples.miniature.tables.stages import Stage, run_stage


@dataclass(frozen=True)
class Script(Stage):
    """A stage whose command is a line of Python."""

    code: str = ""

    def command(self) -> list[str]:
        return [sys.executable, "-c", self.code]


def script(folder: Path, code: str) -> Script:
    return Script("make", "", "", {}, folder, 1.0, code=code)


def test_a_finished_stage_is_not_run_again(tmp_path) -> None:
    target = tmp_path / "made"
    stage = script(target, f"open({str(tmp_path / 'log')!r}, 'a').write('x')")
    first, second = run_stage(stage), run_stage(stage)
    assert (tmp_path / "log").read_text() == "x"
    assert (first.reused, second.reused) == (False, True)
    assert second.real == first.real


def test_a_folder_of_another_command_is_refused(tmp_path) -> None:
    run_stage(script(tmp_path / "made", "print('one')"))
    with pytest.raises(UserError, match=r"another command .*two"):
        run_stage(script(tmp_path / "made", "print('two')"))


def test_a_stage_that_fails_is_told_and_runs_again(tmp_path) -> None:
    stage = script(
        tmp_path / "made", f"import pathlib, sys; sys.exit(not pathlib.Path({str(tmp_path / 'ok')!r}).exists())"
    )
    with pytest.raises(UserError, match="ended with status 1"):
        run_stage(stage)
    (tmp_path / "ok").touch()
    assert not run_stage(stage).reused


def test_a_command_is_what_a_user_would_type(tmp_path) -> None:
    settings = {"seed": 3, "epochs": None, "visual": True, "srt_limit": lambda: 7, "output": tmp_path}
    command = Stage("s", "train.sft", "examples/miniature/mmkb_full.yaml", settings, tmp_path, 1.0).command()
    assert command[1:5] == ["-m", "reflectune", "sft", "--config"]
    assert Path(command[5]).is_file()
    assert command[6:] == ["--seed", "3", "--visual", "true", "--srt_limit", "7", "--output", str(tmp_path)]
    json.dumps(command)


LAUNCHED = {
    "RANK": "0",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "ACCELERATE_USE_CPU": "true",
}


def test_a_stage_is_no_process_of_the_launch_that_starts_it(tmp_path, monkeypatch) -> None:
    """A training that believed to be one of two would wait for the other for ever."""
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("KEPT", "yes")
    code = f"import json, os; json.dump(dict(os.environ), open({str(tmp_path / 'seen')!r}, 'w'))"
    run_stage(script(tmp_path / "made", code))
    seen = json.loads((tmp_path / "seen").read_text())
    assert not set(seen) & set(LAUNCHED)
    assert seen["KEPT"] == "yes"
    assert alone({"PATH": "/bin", **LAUNCHED}) == {"PATH": "/bin"}
