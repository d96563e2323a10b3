"""Kill every writing command at random moments, start it again each time, and compare with an undisturbed run.

    bash scripts/soak.sh kill --kills 10 --packages

The commands are the chain of `chain.py`, each on the undisturbed outputs of those before it. Each runs twice
undisturbed: durations are left out of JSON, and files that still differ between the two runs are listed and not
compared. Then it is started and killed with SIGKILL at moments drawn over its duration until it ends, and started once
more, since a kill may come after the last write. Every other file must have the bytes of the undisturbed run, and no
further file may remain. In one launch of two processes the launcher alone is killed: its processes must end by
themselves, and a second start must not write until then.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from chain import ACCEPTED, BEFORE_INPUTS, JOBS, Job, undisturbed, write_inputs

GRACE = 60.0
"""Seconds in which processes must end after their launcher was killed."""
CLOCKS = (
    *("seconds", "minutes", "peak_gib", "tokens_per_second", "train_runtime"),
    *("train_samples_per_second", "train_steps_per_second"),
    "train_loss",  # the stock Trainer's last row: the mean over the steps since its start
    "trainer_state.json",  # in a checkpoint's record: the length of that file, which depends on the digits of these
)
"""Keys of JSON that differ from run to run: durations, and values that depend on them."""


@dataclass
class Result:
    """The result of one command.

    Attributes:
        kills: Number of kills.
        starts: Number of starts that ended by themselves.
        seconds: Duration of an undisturbed run.
        compared: Number of compared files.
        volatile: Files that differ between two undisturbed runs.
        problems: Differing, missing and further files; unexpected statuses and tracebacks.
    """

    kills: int = 0
    starts: int = 0
    seconds: float = 0.0
    compared: int = 0
    volatile: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def without_clocks(value: Any) -> Any:
    """Return a JSON value without durations."""
    if isinstance(value, dict):
        return {key: without_clocks(inner) for key, inner in value.items() if key not in CLOCKS}
    return [without_clocks(inner) for inner in value] if isinstance(value, list) else value


def content_of(path: Path) -> bytes:
    """Return a file's bytes; of JSON without durations."""
    content = path.read_bytes()
    if path.suffix not in (".json", ".jsonl") or not any(name.encode() in content for name in CLOCKS):
        return content
    try:
        rows = [json.loads(row) for row in (content.splitlines() if path.suffix == ".jsonl" else [content])]
    except ValueError:
        return content
    return json.dumps(without_clocks(rows)).encode()


def files_of(path: Path) -> dict[str, str]:
    """Hash each file of an output, by its path in it. Locks are files that remain, and are left out."""
    files = [path] if path.is_file() else [file for file in sorted(path.rglob("*")) if file.is_file()]
    return {
        str(file.relative_to(path)): hashlib.sha256(content_of(file)).hexdigest()
        for file in files
        if file.suffix != ".lock"
    }


def partials_of(path: Path) -> list[str]:
    """Return the unfinished files next to an output."""
    return [file.name for file in path.parent.iterdir() if file.name.endswith(".partial") and path.name in file.name]


def kill_with_children(process: subprocess.Popen) -> None:
    """Kill a process and all its descendants, in any session."""
    for member in [*psutil.Process(process.pid).children(recursive=True), process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()


def disturbed(job: Job, out: Path, log: Path, kills: int, seconds: float, rng: random.Random) -> Result:
    """Run a command under kills until it ends; the processes of a killed launcher must end by themselves."""
    result = Result(seconds=seconds)
    left: list[psutil.Process] = []
    ended = False
    while True:
        with log.open("wb") as file:
            command, environment = job.command(out), job.environment(out)
            process = subprocess.Popen(command, stdout=file, stderr=file, env=environment, start_new_session=True)
            try:
                process.wait(rng.uniform(0.2, 1.0) * seconds if result.kills < kills else None)
            except subprocess.TimeoutExpired:
                if job.launcher_alone:
                    left = psutil.Process(process.pid).children(recursive=True)
                    process.kill()
                    process.wait()
                else:
                    kill_with_children(process)
                result.kills += 1
                continue
        text = log.read_text(encoding="utf-8", errors="replace")
        if process.returncode not in ACCEPTED and left and "is being written by" in text:
            _, alive = psutil.wait_procs(left, timeout=GRACE)
            if not alive:
                left = []
                continue
            for member in alive:
                member.kill()
            result.problems.append(f"{len(alive)} processes still ran {GRACE:.0f} s after their launcher's end")
            return result
        result.starts += 1
        if process.returncode not in ACCEPTED or "Traceback" in text:
            last = text.strip().splitlines()[-1][:200] if text else ""
            result.problems.append(f"status {process.returncode}: {last}")
            return result
        if result.kills < kills and result.starts < kills:  # it ended before its moment came: start over, kill earlier
            shutil.rmtree(out)
            seconds *= 0.8
        elif ended:
            return result
        else:
            ended = True


def compare(result: Result, first: Path, second: Path, killed: Path) -> None:
    """Compare the killed run's files with those of the undisturbed runs."""
    expected, again, found = files_of(first), files_of(second), files_of(killed)
    result.volatile = sorted(name for name in expected.keys() | again.keys() if expected.get(name) != again.get(name))
    stable = sorted(expected.keys() - set(result.volatile))
    result.compared = len(stable)
    result.problems += [f"differs: {name}" for name in stable if name in found and found[name] != expected[name]]
    result.problems += [f"missing: {name}" for name in stable if name not in found]
    unknown = [re.sub(r"\d+", "N", name) for name in found if name not in expected and name not in again]
    result.problems += [f"left over: {name}" for name in unknown]
    result.problems += [f"left next to it: {name}" for name in partials_of(killed)]


def rows(results: dict[str, Result]) -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| command | undisturbed, s | kills | files compared | not compared: differ anyway | problems |"
    yield "|---|---|---|---|---|---|"
    for name, result in results.items():
        volatile = ", ".join(f"`{file}`" for file in result.volatile) or "–"
        problems = "; ".join(result.problems) or "none"
        yield f"| {name} | {result.seconds:.0f} | {result.kills} | {result.compared} | {volatile} | {problems} |"


def main() -> None:
    """Kill the chosen commands, and exit with status 1 if there was a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10, help="kills of each command")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments")
    parser.add_argument("--only", nargs="*", default=[], help="names of the chain to kill; the others run undisturbed")
    parser.add_argument("--packages", action="store_true", help="include the commands that fetch packages")
    parser.add_argument("--work", type=Path, default=Path("runs/soak_kill"), help="folder, emptied first")
    arguments = parser.parse_args()
    work = arguments.work.resolve()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    os.chdir(work)  # the settings' folders are relative
    rng, results = random.Random(arguments.seed), dict[str, Result]()
    for name, job in JOBS.items():
        first, second, killed, log = (work / file for file in (name, f"{name}.again", f"{name}.killed", f"{name}.log"))
        if job.fetches and not arguments.packages:
            continue
        seconds = undisturbed(job, first, log)
        if name == BEFORE_INPUTS:
            write_inputs(work)
        if arguments.only and name not in arguments.only:
            continue
        undisturbed(job, second, log)
        alone = ", its launcher alone" if job.launcher_alone else ""
        results[f"`{job.module}`, {name}{alone}"] = result = disturbed(job, killed, log, arguments.kills, seconds, rng)
        if not result.problems:
            compare(result, first, second, killed)
        print(name, result, flush=True)
    problems = sum(len(result.problems) for result in results.values())
    print("\n".join(rows(results)))
    print(f"{sum(result.kills for result in results.values())} kills, {problems} problems")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
