"""Run an example's unfinished stages, in order or side by side. Each is a command that a user would type."""

from __future__ import annotations

import importlib.resources
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
from typing import Any, Final

import psutil

from reflectune.core.durable import read_json, write_json
from reflectune.core.launch_variables import without_launcher

CONFIGS: Final = Path(str(importlib.resources.files("reflectune.configs")))
"""Folder of the recipes, wherever the package is installed."""
METHODS: Final[Mapping[str, Mapping[str, Any]]] = {
    "full": {},
    "lora": {"method": "lora", "learning_rate": 2e-3},
    "qlora": {"method": "qlora", "learning_rate": 2e-3},
}
"""Keys that differ from the miniature's `sft.yaml`, by method."""
PLAIN: Final = {"scheme": "plain", "epochs": 1}
MMKB: Final = {"scheme": "mmkb_rag", "epochs": 4}
"""Keys that differ from `sft.yaml` in the baselines' training and in MMKB-RAG's."""
RECORD: Final = "stages.json"
"""File of a run's folder with the command and the minutes of each stage."""
POLL_SECONDS: Final = 0.2
"""Seconds between two polls of the running stages."""
SAVE_SECONDS: Final = 30.0
"""Seconds after which the minutes of running stages are saved again."""


def module(name: str, recipe: str) -> list[str]:
    """Return the command line that runs a command with a recipe of `reflectune.configs`.

    Args:
        name: Module below `reflectune`, e.g. `retrieval.build_index`, or of the examples.
        recipe: Path below `configs`, e.g. `examples/miniature/sft.yaml`.
    """
    return [*program(name), "--config", str(CONFIGS / recipe)]


def program(name: str) -> list[str]:
    """Return the beginning of a command line: `python -m reflectune build_index`, or that of an example's module."""
    if name.startswith("examples."):
        return [sys.executable, "-m", f"reflectune.{name}"]
    return [sys.executable, "-m", "reflectune", name.rpartition(".")[2]]


def launch(name: str, recipe: str, processes: int = 1, *, device: str = "cpu") -> list[str]:
    """Return the command that launches a module with accelerate; only a CPU can have several processes."""
    settings = [str(CONFIGS / f"accelerate/{'cpu' if device == 'cpu' else 'gpu'}.yaml")]
    if processes > 1:
        settings = [str(CONFIGS / "accelerate/cpu_2_processes.yaml"), "--num_processes", str(processes)]
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", *settings]
    return [*command, "--module", f"reflectune.{name}", "--config", str(CONFIGS / recipe)]


def flags(settings: Mapping[str, Any]) -> list[str]:
    """Return keys and values as flags. A key with the value None is left out; a function is called for its value."""
    values = {name: value() if callable(value) else value for name, value in settings.items()}
    return [
        word
        for name, value in values.items()
        if value is not None
        for word in (f"--{name}", str(value).lower() if isinstance(value, bool) else str(value))
    ]


def run_stages(run: Path, commands: Mapping[str, list[str]], processes: int = 1) -> dict[str, float]:
    """Run the unfinished stages in order, and return the minutes of every stage.

    Args:
        run: Folder of the run.
        commands: Command of each stage.
        processes: Number of processes that a command launches; they share the cores.
    """
    minutes = finished(run, commands)
    for name, command in commands.items():
        if name in minutes:
            print(f"{name}: finished earlier")
            continue
        print(f"\n== {name}\n$ {' '.join(command)}", flush=True)
        start, status = _start_time(run, name, command), None
        try:
            status = subprocess.run(command, env=_environment(processes), check=False).returncode
        finally:
            minutes[name] = _save_minutes(run, name, command, start, finished=status == 0)
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
    saved: float = field(default_factory=time.monotonic)

    def start(self, name: str) -> None:
        command = self.commands[name]
        print(f"== {name}: begins; {self.log(name)}\n$ {' '.join(command)}", flush=True)
        with self.log(name).open("ab") as output:
            process = subprocess.Popen(
                command, env=_environment(self.count), stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        self.running[name] = process, _start_time(self.run, name, command)

    def save_minutes(self) -> None:
        """Save the minutes of the running stages."""
        for name, (_, start) in self.running.items():
            _save_minutes(self.run, name, self.commands[name], start, finished=False)
        self.saved = time.monotonic()

    def ended(self) -> list[str]:
        """Return the stages that ended since the last call. Exit if one of them failed."""
        names = [name for name, (process, _) in self.running.items() if process.poll() is not None]
        failed: list[tuple[str, int]] = []
        for name in names:
            process, start = self.running.pop(name)
            minutes = _save_minutes(self.run, name, self.commands[name], start, finished=process.returncode == 0)
            if process.returncode:
                failed.append((name, process.returncode))
            else:
                print(f"== {name}: finished after {minutes} minutes", flush=True)
        if failed:
            name, status = failed[0]
            self.stop()
            print(self.log(name).read_text(encoding="utf-8", errors="replace")[-2000:])
            print(f"== {name}: ended with status {status}; the whole log: {self.log(name)}")
            sys.exit(status)
        return names

    def stop(self) -> None:
        """Terminate the running stages, each a process group with its children."""
        self.save_minutes()
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
) -> dict[str, float]:
    """Run the unfinished stages, `lanes` at a time, and return the minutes of each.

    Two processes with one thread each are faster than one process with two. A stage is ready when its needs are
    finished. Ready stages start in the order of `commands`. Each stage writes its output to `NAME.log`.

    Args:
        run: Folder of the run.
        commands: Command of each stage.
        needs: Stages that must be finished before a stage starts. The needs of a stage that is not in `commands` are
            passed on to its dependents.
        lanes: Maximum stages at a time; they share the cores.
    """
    done = finished(run, commands)
    direct_needs = {name: _needs_within(commands, needs, name) for name in commands}
    positions = {name: position for position, name in enumerate(commands)}
    sorter = TopologicalSorter(direct_needs)
    sorter.prepare()
    ready: list[str] = []
    work = _Lanes(run, commands, lanes)
    # Unhandled, these signals would leave the stages running, each in its own session.
    signals = (signal.SIGTERM, signal.SIGHUP)
    handlers = [signal.signal(number, lambda number, _: sys.exit(128 + number)) for number in signals]
    try:
        while sorter.is_active():
            ready += sorter.get_ready()
            if ended := [name for name in ready if name in done]:
                print(*(f"{name}: finished earlier" for name in ended), sep="\n", flush=True)
            else:
                ready.sort(key=positions.__getitem__)
                while ready and len(work.running) < lanes:
                    work.start(ready.pop(0))
                time.sleep(POLL_SECONDS)
                ended = work.ended()
                if time.monotonic() - work.saved > SAVE_SECONDS:
                    work.save_minutes()
            ready = [name for name in ready if name not in ended]
            sorter.done(*ended)
    finally:
        work.stop()
        for number, handler in zip(signals, handlers, strict=True):
            signal.signal(number, handler)
    return finished(run, commands)


def finished(run: Path, commands: Mapping[str, list[str]]) -> dict[str, float]:
    """Return the minutes of the finished stages of a folder. Exit if one of them ran a different command there."""
    stages = _record(run)
    for name, command in commands.items():
        stage = stages.get(name, {})
        earlier, current = stage.get("command") if "minutes" in stage else None, _as_typed(command)
        if earlier not in (None, current):
            sys.exit(
                f"{run / RECORD}: {name} is finished, but by a different command; choose a different folder, or remove "
                f"{name} from that file to run it again\n  then: {earlier}\n  now:  {current}"
            )
    return {name: stage["minutes"] for name, stage in stages.items() if "minutes" in stage}


def cores() -> int:
    """Return the number of physical cores."""
    return psutil.cpu_count(logical=False) or 1


def _needs_within(commands: Collection[str], needs: Mapping[str, Collection[str]], name: str) -> set[str]:
    """Return the needs of a stage among `commands`, directly or through stages that are left out."""
    direct = [{need} if need in commands else _needs_within(commands, needs, need) for need in needs.get(name, ())]
    return set().union(*direct)


def _start_time(run: Path, name: str, command: list[str]) -> float:
    """Return the current monotonic time, less the minutes that an interrupted run of the stage took."""
    earlier = _record(run).get(name, {})
    spent = earlier.get("spent", 0.0) if earlier.get("command") == _as_typed(command) else 0.0
    return time.monotonic() - 60 * spent


def _save_minutes(run: Path, name: str, command: list[str], start: float, *, finished: bool) -> float:
    """Save a stage's minutes, under `minutes` if it is finished and under `spent` if not, and return them."""
    minutes = round((time.monotonic() - start) / 60, 2)
    stage = {"minutes" if finished else "spent": minutes, "command": _as_typed(command)}
    write_json(run / RECORD, {**_record(run), name: stage})
    return minutes


def _record(run: Path) -> dict[str, dict[str, Any]]:
    """Read each stage's `command`, and its `minutes` if it is finished, else `spent`."""
    path = run / RECORD
    return read_json(path, "the record of stages") if path.exists() else {}


def _as_typed(command: list[str]) -> str:
    """Return a command without the paths where Python and the recipes are installed."""
    return shlex.join(command).replace(sys.executable, "python").replace(f"{CONFIGS}/", "configs/")


def _environment(processes: int) -> dict[str, str]:
    threads = str(max(1, cores() // processes))
    offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {"OMP_NUM_THREADS": threads, **without_launcher(os.environ), **offline}
