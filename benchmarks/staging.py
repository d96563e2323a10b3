"""Stages of a benchmark, each a command that a user would type: run in order or side by side, none of them twice."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import psutil

from reflectune.core.durable import write_atomically

ROOT: Final = Path(__file__).resolve().parents[1]
CONFIGS: Final = ROOT / "configs"
RECORD: Final = "stages.json"
"""Of a run's folder: which of its stages are finished, and how long those have run that were cut off."""
WAIT: Final = 0.2
"""Seconds between two looks at what runs."""
NOTED: Final = 30.0
"""Seconds between two notes of how long what runs has run: so much of a stage's minutes a crash can lose."""


def module(name: str, config: str, folder: str = "examples/miniature") -> list[str]:
    """The command that runs a module with a configuration of the miniature, or of another folder of `configs`."""
    return [sys.executable, "-m", f"reflectune.{name}", "--config", str(CONFIGS / folder / config)]


def launch(script: str, config: str, processes: int = 1, *, device: str = "cpu") -> list[str]:
    """The command that launches a script with a configuration of the miniature; several processes need a CPU."""
    settings = [str(CONFIGS / f"accelerate/{'cpu' if device == 'cpu' else 'gpu'}.yaml")]
    if processes > 1:
        settings = [str(CONFIGS / "accelerate/cpu_2_processes.yaml"), "--num_processes", str(processes)]
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", *settings]
    return [*command, str(ROOT / script), "--config", str(CONFIGS / "examples/miniature" / config)]


def run_stages(run: Path, commands: Mapping[str, list[str]], processes: int = 1) -> dict[str, float]:
    """Run what isn't finished, one after the other; the minutes of each stage, also of those finished by earlier calls.

    Args:
        run: The folder of it all.
        commands: By stage.
        processes: In how many a command is launched: the cores are shared out among them.
    """
    minutes = finished(run, commands)
    for name, command in commands.items():
        if name in minutes:
            print(f"{name}: finished earlier")
            continue
        print(f"\n== {name}\n$ {' '.join(command)}", flush=True)
        start, status = _begun(run, name, command), None
        try:
            status = subprocess.run(command, env=_environment(processes), check=False).returncode
        finally:
            minutes[name] = _note(run, name, command, start, finished=status == 0)
        if status:
            sys.exit(status)
    return minutes


@dataclass
class _Lanes:
    """Stages that run at the same time, each with its output in a file."""

    run: Path
    commands: Mapping[str, list[str]]
    count: int
    running: dict[str, tuple[subprocess.Popen[bytes], float]] = field(default_factory=dict)
    noted: float = field(default_factory=time.monotonic)

    def start(self, name: str) -> None:
        command = self.commands[name]
        print(f"== {name}: begins; {self.log(name)}\n$ {' '.join(command)}", flush=True)
        with self.log(name).open("ab") as output:
            process = subprocess.Popen(
                command, env=_environment(self.count), stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        self.running[name] = process, _begun(self.run, name, command)

    def note(self) -> None:
        """Keep how long what runs has run."""
        for name, (_, start) in self.running.items():
            _note(self.run, name, self.commands[name], start, finished=False)
        self.noted = time.monotonic()

    def ended(self) -> list[str]:
        """What has ended since the last look, noted as finished; one that failed ends everything."""
        names = [name for name, (process, _) in self.running.items() if process.poll() is not None]
        failed: dict[str, int] = {}
        for name in names:
            process, start = self.running.pop(name)
            minutes = _note(self.run, name, self.commands[name], start, finished=process.returncode == 0)
            if process.returncode:
                failed[name] = process.returncode
            else:
                print(f"== {name}: finished after {minutes} minutes", flush=True)
        for name, status in failed.items():
            self.stop()
            print(self.log(name).read_text(encoding="utf-8", errors="replace")[-2000:])
            print(f"== {name}: ended with status {status}; all of it: {self.log(name)}")
            sys.exit(status)
        return names

    def stop(self) -> None:
        """End what still runs; each stage is a process group with its children."""
        self.note()
        for process, _ in self.running.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()
        self.running.clear()

    def log(self, name: str) -> Path:
        return self.run / f"{name}.log"


def run_in_lanes(
    run: Path,
    commands: Mapping[str, list[str]],
    needs: Mapping[str, Collection[str]],
    lanes: int,
    estimates: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, float]:
    """Run what isn't finished, so many stages at a time as there are lanes; the minutes of each.

    Two processes of one thread each get more done than one process of two. Of the stages whose needs are met that one
    begins first from which the longest way leads to the end. What a stage prints stands in a file of its name.

    Args:
        run: The folder of it all.
        commands: By stage.
        needs: Of each stage: those that must be finished before it begins; none if it is left out. In the place of one
            that isn't in `commands` stand those that it needs itself.
        lanes: Most stages at a time; the cores are shared out among them.
        estimates: About how many minutes a stage takes; 1 if it is left out.
    """
    done = finished(run, commands)
    within = {name: _within(commands, needs, name) for name in commands}
    ways = _ways(within, estimates)
    sorter = TopologicalSorter(within)
    sorter.prepare()
    ready: list[str] = []
    work = _Lanes(run, commands, lanes)
    try:
        while sorter.is_active():
            ready += sorter.get_ready()
            if earlier := [name for name in ready if name in done]:
                print(*(f"{name}: finished earlier" for name in earlier), sep="\n", flush=True)
            else:
                ready.sort(key=lambda name: -ways[name])
                while ready and len(work.running) < lanes:
                    work.start(ready.pop(0))
                time.sleep(WAIT)
                earlier = work.ended()
                if time.monotonic() - work.noted > NOTED:
                    work.note()
            ready = [name for name in ready if name not in earlier]
            sorter.done(*earlier)
    finally:
        work.stop()
    return finished(run, commands)


def forecast(
    commands: Collection[str], needs: Mapping[str, Collection[str]], estimates: Mapping[str, float], lanes: int
) -> float:
    """At least so many minutes stages take: as the lanes share them out, or as the longest chain of them takes."""
    chains = _ways({name: _within(commands, needs, name) for name in commands}, estimates).values()
    return max(sum(estimates.get(name, 1) for name in commands) / lanes, *chains, 0)


def _within(commands: Collection[str], needs: Mapping[str, Collection[str]], name: str) -> set[str]:
    """What a stage needs of those that are run, through others too."""
    direct = [{need} if need in commands else _within(commands, needs, need) for need in needs.get(name, ())]
    return set().union(*direct)


def _ways(needs: Mapping[str, Collection[str]], estimates: Mapping[str, float]) -> dict[str, float]:
    """Of each stage: its minutes and those of the longest chain of stages that need it."""
    ways: dict[str, float] = {}
    for name in reversed([*TopologicalSorter(needs).static_order()]):
        ways[name] = estimates.get(name, 1) + max((ways[one] for one in ways if name in needs[one]), default=0)
    return ways


def finished(run: Path, commands: Mapping[str, list[str]]) -> dict[str, float]:
    """The minutes of the stages that are finished in a folder.

    Ends the program if one of these stages was another command there: what it wrote is not what is wanted now.
    """
    stages = _record(run)
    for name, command in commands.items():
        stage = stages.get(name, {})
        was, wanted = stage.get("command") if "minutes" in stage else None, _said(command)
        if was not in (None, wanted):
            sys.exit(
                f"{run / RECORD}: {name} is finished, but it was another command; choose another folder, or remove "
                f"{name} from that file to run it again\n  then: {was}\n  now:  {wanted}"
            )
    return {name: stage["minutes"] for name, stage in stages.items() if "minutes" in stage}


def cores() -> int:
    """Of this machine: what accelerate would take as threads, and say so."""
    return psutil.cpu_count(logical=False) or 1


def _begun(run: Path, name: str, command: list[str]) -> float:
    """When a stage that begins now would have begun had it run in one go: what was cut off of it counts."""
    earlier = _record(run).get(name, {})
    spent = earlier.get("spent", 0.0) if earlier.get("command") == _said(command) else 0.0
    return time.monotonic() - 60 * spent


def _note(run: Path, name: str, command: list[str], start: float, *, finished: bool) -> float:
    """Keep a stage as finished, or as one that has run so long; the minutes since its start."""
    minutes = round((time.monotonic() - start) / 60, 2)
    stage = {"minutes" if finished else "spent": minutes, "command": _said(command)}
    write_atomically(run / RECORD, json.dumps({**_record(run), name: stage}, indent=1))
    return minutes


def _record(run: Path) -> dict[str, dict[str, Any]]:
    """Of each stage that was begun in a folder: its command, and its `minutes` if it is finished, else those `spent`.

    The command is left out where minutes alone were noted.
    """
    path = run / RECORD
    stages: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {name: stage if isinstance(stage, dict) else {"minutes": stage} for name, stage in stages.items()}


def _said(command: list[str]) -> str:
    """A command as it is typed in the repository, wherever that lies."""
    return shlex.join(command).replace(sys.executable, "python").replace(f"{ROOT}/", "")


def _environment(processes: int) -> dict[str, str]:
    threads = str(max(1, cores() // processes))
    return {"OMP_NUM_THREADS": threads, **os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
