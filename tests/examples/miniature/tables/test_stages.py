"""A stage is a command that a user would type, and not a process of the launch that starts it."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from reflectune.examples.miniature.tables.stages import BuildStage, build


@dataclass(frozen=True)
class Script(BuildStage):
    """A stage whose command is a line of Python."""

    code: str = ""

    def command(self) -> list[str]:
        return [sys.executable, "-c", self.code]


def script(folder: Path, code: str) -> Script:
    return Script("make", "", "", {}, folder, code=code)


def test_a_setting_of_a_later_stage_may_depend_on_an_earlier_one(tmp_path: Path) -> None:
    settings = {"seed": 3, "epochs": None, "visual": True, "srt_limit": lambda: int((tmp_path / "count").read_text())}
    later = BuildStage("s", "train.sft", "sft.yaml", settings, tmp_path)
    (tmp_path / "count").write_text("7")
    command = later.command()
    assert command[1:5] == ["-m", "reflectune", "sft", "--config"]
    assert Path(command[5]).is_file()
    assert command[6:] == ["--seed", "3", "--visual", "true", "--srt_limit", "7"]


LAUNCHED = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
LAUNCHED |= {"TORCHELASTIC_RUN_ID": "none", "ACCELERATE_USE_CPU": "true"}


def test_a_stage_is_not_a_process_of_the_launch_that_starts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that believed to be one of two would wait for the other forever."""
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("KEPT", "yes")
    code = f"import json, os; json.dump(dict(os.environ), open({str(tmp_path / 'seen')!r}, 'w'))"
    build([script(tmp_path / "made", code)], tmp_path)
    seen = json.loads((tmp_path / "seen").read_text())
    assert not set(seen) & set(LAUNCHED)
    assert seen["KEPT"] == "yes"
