"""Kills every writing command at random moments, goes on each time, and compares with a run that wasn't disturbed.

    bash scripts/soak.sh kill --kills 10 --packages

The commands are the chain of `chain.py`, each reading what the ones before it wrote undisturbed. Each runs twice
straight: what clocks measured is left out of JSON, and files that still differ between these two are named and not
compared. Then it is started and killed with SIGKILL at moments drawn over its duration, and started again until it
ends, and then once more, for a kill may come when all is written; every other file must have the bytes of the
undisturbed run, and nothing else may lie there. Of one launch in two processes the launcher alone is killed: what it
leaves behind must end by itself, and keep a second start from writing beside it until then.
"""

from __future__ import annotations

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from chain import ACCEPTED, BEFORE_INPUTS, JOBS, Job, straight, write_inputs

GRACE = 60.0
"""Seconds that processes have to end in after their launcher was killed."""
CLOCKS = (
    *("seconds", "minutes", "peak_gib", "tokens_per_second", "train_runtime"),
    *("train_samples_per_second", "train_steps_per_second"),
    "train_loss",  # the stock Trainer's last row: the mean over the steps since it was started
    "trainer_state.json",  # in a checkpoint's record: how long that file is, which the digits of these decide
)
"""Keys of JSON that differ from run to run: what a clock measured, and what follows from it."""


@dataclass
class Result:
    """What became of one command.

    Attributes:
        kills: How often it was killed.
        starts: How often it was started and ended by itself.
        seconds: Of an undisturbed run.
        compared: Files that were.
        volatile: Files that differ between two undisturbed runs.
        wrong: What differs, is missing or left over; a status or traceback that should not be.
    """

    kills: int = 0
    starts: int = 0
    seconds: float = 0.0
    compared: int = 0
    volatile: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def without_clocks(value: Any) -> Any:
    """A JSON value but for what a clock measured."""
    if isinstance(value, dict):
        return {key: without_clocks(each) for key, each in value.items() if key not in CLOCKS}
    return [without_clocks(each) for each in value] if isinstance(value, list) else value


def content_of(path: Path) -> bytes:
    """A file's bytes; of JSON without what a clock measured."""
    content = path.read_bytes()
    if path.suffix not in (".json", ".jsonl") or not any(name.encode() in content for name in CLOCKS):
        return content
    try:
        rows = [json.loads(row) for row in (content.splitlines() if path.suffix == ".jsonl" else [content])]
    except ValueError:
        return content
    return json.dumps(without_clocks(rows)).encode()


def files_of(path: Path) -> dict[str, str]:
    """A hash of each file of an output, by its path in it. Locks are files that stay, and hold nothing."""
    files = [path] if path.is_file() else [each for each in sorted(path.rglob("*")) if each.is_file()]
    return {
        str(each.relative_to(path)): hashlib.sha256(content_of(each)).hexdigest()
        for each in files
        if each.suffix != ".lock"
    }


def partials_beside(path: Path) -> list[str]:
    """Unfinished files that lie beside an output."""
    return [each.name for each in path.parent.iterdir() if each.name.endswith(".partial") and path.name in each.name]


def kill_with_children(process: subprocess.Popen) -> None:
    """Kill a process and all that it started, whatever session that is in."""
    for each in [*psutil.Process(process.pid).children(recursive=True), process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait()


def disturbed(job: Job, out: Path, log: Path, kills: int, seconds: float, rng: random.Random) -> Result:
    """Run a command under kills until it ends; what a launcher killed alone leaves behind must end by itself."""
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
        if process.returncode not in ACCEPTED and left and "is being written by PID" in text:
            _, alive = psutil.wait_procs(left, timeout=GRACE)
            if not alive:
                left = []
                continue
            for each in alive:
                each.kill()
            result.wrong.append(f"{len(alive)} processes still ran {GRACE:.0f} s after their launcher's end")
            return result
        result.starts += 1
        if process.returncode not in ACCEPTED or "Traceback" in text:
            result.wrong.append(f"status {process.returncode}: {text.strip().splitlines()[-1][:200] if text else ''}")
            return result
        if result.kills < kills and result.starts < kills:  # it ended before its moment came: begin anew, and earlier
            shutil.rmtree(out)
            seconds *= 0.8
        elif ended:
            return result
        else:
            ended = True


def compare(result: Result, first: Path, second: Path, killed: Path, tells: Sequence[str]) -> None:
    """Hold the killed run's files against the undisturbed ones', but for those that tell of the run itself."""
    wanted, again, found = files_of(first), files_of(second), files_of(killed)
    differing = {name for name in wanted.keys() | again.keys() if wanted.get(name) != again.get(name)}
    result.volatile = sorted(differing | set(tells))
    stable = wanted.keys() - set(result.volatile)
    result.compared = len(stable)
    result.wrong += [f"differs: {name}" for name in sorted(stable) if name in found and found[name] != wanted[name]]
    result.wrong += [f"missing: {name}" for name in sorted(stable) if name not in found]
    unknown = [re.sub(r"\d+", "N", name) for name in found if name not in wanted and name not in again]
    result.wrong += [f"left over: {name}" for name in unknown]
    result.wrong += [f"left beside it: {name}" for name in partials_beside(killed)]


def rows(results: dict[str, Result]) -> Iterator[str]:
    """The table."""
    yield "| command | undisturbed, s | kills | files compared | not compared: differ anyway | wrong |"
    yield "|---|---|---|---|---|---|"
    for name, result in results.items():
        volatile = ", ".join(f"`{each}`" for each in result.volatile) or "–"
        wrong = "; ".join(result.wrong) or "nothing"
        yield f"| {name} | {result.seconds:.0f} | {result.kills} | {result.compared} | {volatile} | {wrong} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10, help="of each command")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--only", nargs="*", default=[], help="names of the chain to kill; the others run straight")
    parser.add_argument("--packages", action="store_true", help="also the commands that fetch packages")
    parser.add_argument("--work", type=Path, default=Path("runs/soak_kill"), help="folder, emptied first")
    parser.add_argument("--output", type=lambda name: Path(name).resolve(), help="Markdown file of the table")
    arguments = parser.parse_args()
    work = arguments.work.resolve()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    os.chdir(work)  # the settings' folders are relative
    rng, results = random.Random(arguments.seed), dict[str, Result]()
    for name, job in JOBS.items():
        first, second, killed, log = (work / each for each in (name, f"{name}.again", f"{name}.killed", f"{name}.log"))
        if job.fetches and not arguments.packages:
            continue
        seconds = straight(job, first, log)
        if name == BEFORE_INPUTS:
            write_inputs(work)
        if arguments.only and name not in arguments.only:
            continue
        straight(job, second, log)
        alone = ", its launcher alone" if job.launcher_alone else ""
        results[f"`{job.module}`, {name}{alone}"] = result = disturbed(job, killed, log, arguments.kills, seconds, rng)
        if not result.wrong:
            compare(result, first, second, killed, job.tells)
        print(name, result, flush=True)
    kills, wrong = (sum(values) for values in zip(*((r.kills, len(r.wrong)) for r in results.values()), strict=True))
    text = "\n".join(
        [
            "# Killed at random",
            "",
            f"{kills} kills, {wrong} times something was wrong.",
            "",
            *rows(results),
            "",
        ]
    )
    print(text)
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
