"""Launches a training on two processes again and again, and counts how its processes end.

    python benchmarks/soak_launches.py --output benchmarks/soak_launches.md

Each launch is accelerate's own, of `train/grpo.py` with one optimiser step on four questions of the soaks' tiny world,
as forks (`forked_launch.py`). Each process writes its stderr into a file of its own; those of launches that did not end
well are kept whole in `--work`. In the control's launches something refers to the process group until the interpreter
ends, as before `core.errors.entry_point` let go of it. Launches that are done are not done again.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import resource
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from forked_launch import Launcher
from page import command_line
from soak_chain import INDEX, JOBS, QUIET, WORLD, straight
from staging import CONFIGS, ROOT

PREPARED = (WORLD, INDEX, "reflection", "tuned")
IMPORTED = ("trl", "PIL.PngImagePlugin", "reflectune.train.rewards.gate_run", "reflectune.inference.running.rollout")
"""DeepSpeed is not: accelerate imports it while the process group is open, which has consequences at the end."""
SETTINGS = (
    f"--config {CONFIGS}/miniature/grpo.yaml --model tuned --dataset {WORLD} --index {INDEX} --device cpu --limit 4 "
    "--max_steps 1 --per_device_train_batch_size 2 --max_new_tokens 2 --top_n 1"
)
LIMIT = 1800.0
"""Seconds after which a launch hangs; one on a loaded machine may starve for minutes."""
CONTROL = "control"
MANNERS = ("ended well", "aborted", "ended with an error", "hung")


@dataclass(frozen=True)
class Launch:
    """How a launch ended.

    Attributes:
        kind: "as it is" or the control.
        number: Which of its kind.
        seconds: By the clock.
        load: The machine's average over a minute, at the end.
        statuses: Exit statuses of launcher and processes, in the order in which they ended; negative: a signal's.
        hung: Whether it took longer than it may.
    """

    kind: str
    number: int
    seconds: float
    load: float
    statuses: Sequence[int]
    hung: bool

    @property
    def manner(self) -> str:
        """One of `MANNERS`."""
        if self.hung:
            return "hung"
        if -signal.SIGABRT in self.statuses:
            return "aborted"
        return "ended well" if list(self.statuses) == [0, 0, 0] else "ended with an error"


def prepare(work: Path) -> None:
    """Write what every launch reads, unless it is there."""
    for name in PREPARED:
        if not (work / f"{name}.log").exists():
            straight(JOBS[name], work / name, work / "log")
            (work / "log").rename(work / f"{name}.log")


def share_out(wanted: Sequence[tuple[int, str]], jobs: int, work: Path, results: Path) -> None:
    """Launch what is wanted, some at a time."""
    prepare(work)
    for module in IMPORTED:
        importlib.import_module(module)
    gc.freeze()  # else each fork's collections would copy what was imported
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for job in range(jobs):
        if os.fork() == 0:
            work_through(wanted[job::jobs], work, work / f"job-{job}", results)
            os._exit(0)
    for _ in range(jobs):
        os.wait()


def work_through(wanted: Sequence[tuple[int, str]], work: Path, folder: Path, results: Path) -> None:
    """Launch what is wanted, one after the other, and write down how each ended."""
    folder.mkdir(exist_ok=True)
    launcher = Launcher(folder, {**QUIET, "HF_HUB_OFFLINE": "1"}, LIMIT)
    for number, kind in wanted:
        done = launch_once(launcher, work, kind, number)
        print(f"{kind} {number}: {done.manner}, {done.seconds:.1f} s", flush=True)
        with results.open("a") as file:
            file.write(f"{json.dumps(vars(done))}\n")


def read(results: Path) -> list[Launch]:
    """What was written down so far."""
    lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    return [Launch(**json.loads(line)) for line in lines]


def launch_once(launcher: Launcher, work: Path, kind: str, number: int) -> Launch:
    """Launch, and delete what was written if it ends well."""
    folder, began = folder_of(work, kind, number), time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    options = ["--config_file", str(CONFIGS / "accelerate/cpu_2_processes.yaml"), "--main_process_port", "0"]
    options += ["--log_dir", str(folder / "processes"), "--tee", "3", str(ROOT / "train/grpo.py"), *SETTINGS.split()]
    options += ["--output_dir", str(folder / "checkpoint")]
    statuses, hung = launcher.run(options, folder, keep_group if kind == CONTROL else lambda: None)
    done = Launch(kind, number, time.monotonic() - began, os.getloadavg()[0], statuses, hung)
    if done.manner == "ended well":
        shutil.rmtree(folder)
    return done


def folder_of(work: Path, kind: str, number: int) -> Path:
    """Where a launch writes."""
    return work / "launches" / f"{kind}-{number}"


def keep_group() -> None:
    """Refer to the process group that will be destroyed until the interpreter ends."""
    from torch import distributed

    kept, destroy = [], distributed.destroy_process_group

    def destroy_kept(group: distributed.ProcessGroup | None = None) -> None:
        kept.append(distributed.group.WORLD)
        destroy(group)

    distributed.destroy_process_group = destroy_kept


def row(kind: str, launches: Sequence[Launch]) -> str:
    """Of the table."""
    counts = [str(sum(launch.manner == manner for launch in launches)) for manner in MANNERS]
    seconds, loads = [launch.seconds for launch in launches], [launch.load for launch in launches]
    clock = f"{statistics.median(seconds):.1f} ({max(seconds):.1f})"
    load = f"{statistics.median(loads):.1f} ({min(loads):.1f} to {max(loads):.1f})"
    return f"| {kind} | {len(launches)} | {' | '.join(counts)} | {clock} | {load} |"


def bound(kind: str, launches: Sequence[Launch]) -> str:
    """What no abort in so many launches says of the rate: with 95 % confidence it is below `1 - 0.05 ** (1 / n)`."""
    if any(launch.manner == "aborted" for launch in launches):
        return ""
    high = 100 * (1 - 0.05 ** (1 / len(launches)))
    return f"- {kind}: no abort in {len(launches)} launches leaves a rate of up to {high:.0f} % possible (95 %)."


def failures(launches: Sequence[Launch], work: Path) -> Iterator[str]:
    """What each process of a launch that did not end well had written to stderr; of the control, of the first alone."""
    failed = [launch for launch in launches if launch.manner != "ended well"]
    first = next((launch for launch in failed if launch.kind == CONTROL), None)
    for launch in failed:
        if launch.kind != CONTROL or launch is first:
            yield f"\n## {launch.kind} {launch.number}: {launch.manner}, {launch.statuses}"
            for path in sorted(folder_of(work, launch.kind, launch.number).rglob("stderr.log")):
                written = path.read_text(encoding="utf-8", errors="replace").strip()
                yield f"\nProcess {path.parent.name}:\n\n```\n{shortened(written)}\n```"


def shortened(text: str) -> str:
    """A text with paths from the repository's or the environment's root on."""
    for root in (str(ROOT), sys.prefix, os.path.realpath(os.__file__).rsplit("/", 1)[0]):
        text = text.replace(f"{root}/", "")
    return text


def page(launches: Sequence[Launch], work: Path, jobs: int) -> str:
    """The Markdown file."""
    kinds = {launch.kind: [each for each in launches if each.kind == launch.kind] for launch in launches}
    return "\n".join(
        [
            "# Launches on two processes",
            "",
            f"{command_line('soak_launches.py')}: `accelerate launch --config_file "
            f"configs/accelerate/cpu_2_processes.yaml train/grpo.py`, one optimiser step, up to {jobs} at a "
            "time; seconds by the clock, median (longest); the machine's load average over a minute, median (range), "
            "whatever else ran on it. In the control something refers to the process group until the interpreter ends.",
            "",
            f"| | launches | {' | '.join(MANNERS)} | seconds | load |",
            "|---|---|" + "---|" * (len(MANNERS) + 2),
            *(row(kind, of_kind) for kind, of_kind in kinds.items()),
            "",
            *(bound(kind, of_kind) for kind, of_kind in kinds.items()),
            *failures(launches, work),
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=200)
    parser.add_argument("--control", type=int, default=20, help="launches in which the process group is kept")
    parser.add_argument("--jobs", type=int, default=2, help="how many launches at a time")
    parser.add_argument("--work", type=Path, default=Path("runs/soak_launches"))
    parser.add_argument("--output", type=Path, help="Markdown file of the table")
    arguments = parser.parse_args()
    work, output = arguments.work.resolve(), arguments.output and arguments.output.resolve()
    work.mkdir(parents=True, exist_ok=True)
    os.chdir(work)  # the settings' folders are relative
    results = work / "results.jsonl"
    finished = {(launch.kind, launch.number) for launch in read(results)}
    wanted = {"as it is": arguments.launches, CONTROL: arguments.control}
    left = sorted((number, kind) for kind, count in wanted.items() for number in range(count))
    left = [(number, kind) for number, kind in left if (kind, number) not in finished]
    if left:
        share_out(left, arguments.jobs, work, results)
    launches = read(results)
    text = page(launches, work, arguments.jobs)
    print(text)
    if output:
        output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
