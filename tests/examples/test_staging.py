"""Stages side by side: order, restarts, failures."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from reflectune.examples import staging

NEEDS = {"b": ("a",), "d": ("b", "c")}


def command(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def noting(run: Path, name: str) -> list[str]:
    """A stage that adds its name to a list when it begins and when it ends."""
    note = f"open({str(run / 'order')!r}, 'a').write"
    return command(f"import time; {note}('{name}+ '); time.sleep(0.3); {note}('{name}- '); print('{name} says')")


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_stage_starts_when_its_needs_have_ended(tmp_path: Path, lanes: int) -> None:
    minutes = staging.run_in_lanes(tmp_path, {name: noting(tmp_path, name) for name in "dcba"}, NEEDS, lanes)

    order = (tmp_path / "order").read_text().split()
    assert order.index("a-") < order.index("b+")
    assert max(order.index("b-"), order.index("c-")) < order.index("d+")
    assert order[:2] == (["c+", "c-"] if lanes == 1 else order[:2])
    assert set(minutes) == set("abcd")
    assert (tmp_path / "b.log").read_text() == "b says\n"


def test_a_stage_that_is_left_out_passes_its_needs_on(tmp_path: Path) -> None:
    staging.run_in_lanes(tmp_path, {name: noting(tmp_path, name) for name in "dca"}, NEEDS, 2)

    order = (tmp_path / "order").read_text().split()
    assert max(order.index("a-"), order.index("c-")) < order.index("d+")


def test_two_lanes_run_two_stages_at_a_time(tmp_path: Path) -> None:
    """Each waits for the other's file: in sequence they would wait forever."""

    def meeting(mine: str, other: str) -> list[str]:
        wait = "while not other.exists(): time.sleep(0.01)"
        files = f"mine, other = Path({str(tmp_path / mine)!r}), Path({str(tmp_path / other)!r})"
        return command("\n".join(["import time", "from pathlib import Path", files, "mine.touch()", wait]))

    assert set(staging.run_in_lanes(tmp_path, {"a": meeting("a", "b"), "b": meeting("b", "a")}, {}, 2)) == {"a", "b"}


def test_a_finished_stage_is_not_run_again(tmp_path: Path) -> None:
    commands = {name: noting(tmp_path, name) for name in "abcd"}
    first = staging.run_in_lanes(tmp_path, {name: commands[name] for name in "ac"}, NEEDS, 2)
    minutes = staging.run_in_lanes(tmp_path, commands, NEEDS, 2)

    assert (tmp_path / "order").read_text().split()[4::2] == ["b+", "d+"]
    assert minutes["a"] == first["a"]


@pytest.mark.parametrize("run", ["run_stages", "run_in_lanes"])
def test_a_stage_of_a_different_command_is_refused(tmp_path: Path, run: str) -> None:
    """A run with a different model in the same folder would mix the two."""

    def run_all(commands: dict[str, list[str]]) -> None:
        getattr(staging, run)(tmp_path, commands, *([{}, 1] if run == "run_in_lanes" else []))

    run_all({"a": noting(tmp_path, "a"), "b": command("pass")})
    wanted = "b is finished, but by a different command; .*then: python -c pass.*now:  python -c 'print\\(\\)'"
    with pytest.raises(SystemExit, match=re.compile(wanted, re.DOTALL)):
        run_all({"a": noting(tmp_path, "a"), "b": command("print()"), "c": noting(tmp_path, "c")})
    assert (tmp_path / "order").read_text().split() == ["a+", "a-"]


def test_a_stage_that_fails_ends_the_others_and_is_not_finished(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    pid = tmp_path / "pid"
    file = f"from pathlib import Path; import os, sys, time; pid = Path({str(pid)!r})"
    forever = f"{file}; pid.with_name('partial').write_text(str(os.getpid())); pid.with_name('partial').rename(pid)"
    fails = f"{file}\nwhile not pid.exists(): time.sleep(0.01)\nsys.exit('this went wrong')"
    with pytest.raises(SystemExit) as ended:
        staging.run_in_lanes(tmp_path, {"a": command(f"{forever}; time.sleep(600)"), "b": command(fails)}, {}, 2)

    assert ended.value.code == 1
    assert not psutil.pid_exists(int(pid.read_text()))
    assert staging.finished(tmp_path, {}) == {}
    assert "this went wrong" in capsys.readouterr().out


def test_a_runner_that_is_terminated_ends_its_stages(tmp_path: Path) -> None:
    """Each stage has a session of its own, so that a closed terminal reaches the runner alone."""
    pid = tmp_path / "pid"
    stage = f"import os, time, pathlib; pathlib.Path({str(pid)!r}).write_text(str(os.getpid())); time.sleep(600)"
    runs = f"staging.run_in_lanes(pathlib.Path({str(tmp_path)!r}), {{'a': {command(stage)!r}}}, {{}}, 1)"
    runner = subprocess.Popen(
        command(f"import pathlib; from reflectune.examples import staging; {runs}"), stdout=subprocess.DEVNULL
    )
    while not (pid.exists() and pid.read_text()):
        assert runner.poll() is None
        time.sleep(0.05)
    runner.send_signal(signal.SIGHUP)
    assert runner.wait(60) == 128 + signal.SIGHUP
    assert not psutil.pid_exists(int(pid.read_text()))


def test_a_stage_that_succeeds_while_a_different_one_fails_is_finished(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(staging, "POLL_SECONDS", 3)  # both have ended at the first look
    with pytest.raises(SystemExit) as ended:
        staging.run_in_lanes(tmp_path, {"a": command("import sys; sys.exit('no')"), "b": command("pass")}, {}, 2)

    assert ended.value.code == 1
    assert set(staging.finished(tmp_path, {})) == {"b"}
    assert "a: ended with status 1" in capsys.readouterr().out


@pytest.mark.parametrize("run", ["run_stages", "run_in_lanes"])
def test_the_minutes_of_a_stage_that_was_cut_off_count(tmp_path, run: str, monkeypatch) -> None:
    """Else the last go of a training that was resumed is given as all of it."""
    clock = [0.0]
    monkeypatch.setattr(staging.time, "monotonic", lambda: clock.append(clock[-1] + 60) or clock[-1])
    first_fails = f"import sys; from pathlib import Path; path = Path({str(tmp_path / 'tried')!r})\n"
    first_fails += "tried = path.exists(); path.touch(); sys.exit(not tried)"

    def run_it(code: str) -> dict[str, float]:
        return getattr(staging, run)(tmp_path, {"a": command(code)}, *([{}, 1] if run == "run_in_lanes" else []))

    with pytest.raises(SystemExit):
        run_it(first_fails)
    spent = json.loads((tmp_path / "stages.json").read_text())["a"]["spent"]
    assert spent >= 1
    assert run_it(first_fails)["a"] >= spent + 1
    assert json.loads((tmp_path / "stages.json").read_text())["a"].keys() == {"minutes", "command"}


def test_a_crash_loses_only_the_minutes_since_the_last_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that goes off leaves the minutes that were noted before."""
    seen, record = tmp_path / "seen", tmp_path / "stages.json"
    waits = f"import shutil, time\nfrom pathlib import Path\nrecord = Path({str(record)!r})\n"
    waits += f"while not record.exists(): time.sleep(0.01)\nshutil.copy(record, {str(seen)!r})"
    monkeypatch.setattr(staging, "SAVE_SECONDS", 0.0)
    staging.run_in_lanes(tmp_path, {"a": command(waits)}, {}, 1)

    assert json.loads(seen.read_text())["a"].keys() == {"spent", "command"}
