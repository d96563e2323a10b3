"""Kills every writing command at random moments, goes on each time, and compares with a run that wasn't disturbed.

    python benchmarks/soak_kill.py --kills 10 --output benchmarks/soak_kill.md

The commands are a chain on a tiny drawn world, each reading what the ones before it wrote undisturbed. Each runs twice
straight: what clocks measured is left out of JSON, and files that still differ between these two are named and not
compared. Then it is started and killed with SIGKILL at moments drawn over its duration, and started again until it
ends; every other file must have the bytes of the undisturbed run, and nothing else may lie there. Last, of a launch in
two processes the launcher alone is killed: what it leaves behind must end by itself, or keep a second start from
writing beside it.
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
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from page import command_line
from quickstart import CONFIGS, ROOT, launch

GRACE = 60.0
"""Seconds that processes have to end in after their launcher was killed."""
WORLD, INDEX, DATA = "world", "index", "reflection"
CLOCKS = (
    *("seconds", "minutes", "peak_gib", "tokens_per_second", "train_runtime"),
    *("train_samples_per_second", "train_steps_per_second"),
    "train_loss",  # the stock Trainer's last row: the mean over the steps since it was started
    "trainer_state.json",  # in a checkpoint's record: how long that file is, which the digits of these decide
)
"""Keys of JSON that differ from run to run: what a clock measured, and what follows from it."""
ACCEPTED = (0, 3)
"""Exit status of a command that ended; 3 says that rows were left out."""


@dataclass(frozen=True)
class Job:
    """A command and what it writes.

    Attributes:
        module: Below `reflectune`.
        settings: Its arguments; `{out}` is where it writes.
        launched: The miniature's recipe with which it is launched in two processes; "" if it runs in one.
    """

    module: str
    settings: str
    launched: str = ""

    def command(self, out: Path) -> list[str]:
        """The command line."""
        settings = self.settings.format(out=out, configs=CONFIGS / "miniature").split()
        if self.launched:
            return [*launch(f"{self.module.replace('.', '/')}.py", self.launched, 2), *settings]
        return [sys.executable, "-m", f"reflectune.{self.module}", *settings]


_PROBE = (
    f"--dataset {WORLD} --index {INDEX} --model miniature/llava --device cpu --summary sentences --samples 1 "
    "--documents 5 --max_new_tokens 8 --window 8 --batch_questions 4 --limit 48 --output {out}"
)
_TUNE = "--device cpu --max_steps 12 --save_steps 3 --logging_steps 1 --output_dir {out}"
JOBS: dict[str, Job] = {
    WORLD: Job("data_builders.build_world", "--size tiny --output {out}"),
    INDEX: Job("retrieval.build_index", f"--knowledge {WORLD}/knowledge --encoder miniature/clip --output {{out}}"),
    DATA: Job(
        "data_builders.build_mr2ag",
        f"--config {{configs}}/mr2ag_data.yaml --dataset {WORLD} --index {INDEX} --output {{out}}",
    ),
    "plain": Job(
        "data_builders.build_plain",
        f"--config {{configs}}/plain_data.yaml --dataset {WORLD} --reflection {DATA} --index {INDEX} --output {{out}}",
    ),
    "agreement": Job(
        "data_builders.compare_annotators",
        f"--dataset {WORLD} --annotators string gold --limit 40 --output {{out}}",
    ),
    "export": Job("data_builders.export", f"--data {DATA} --to trl --output {{out}}"),
    "tuned": Job(
        "train.sft", f"--config {{configs}}/mr2ag_full.yaml --model miniature/llava --train_data {DATA} {_TUNE}"
    ),
    "adapter": Job(
        "train.sft", f"--config {{configs}}/mr2ag_lora.yaml --model miniature/llava --train_data {DATA} {_TUNE}"
    ),
    "merged": Job("train.merge", "--checkpoint adapter --output {out}"),
    "probes": Job("data_builders.probe", _PROBE),
    "probes_of_two": Job("data_builders.probe", _PROBE, launched="probe.yaml"),
    "labels": Job("data_builders.derive_labels", f"--probes probes --dataset {WORLD} --output {{out}}"),
    "evaluation": Job(
        "inference.evaluate",
        f"--dataset {WORLD} --index {INDEX} --encoder miniature/clip --model tuned --base_model miniature/llava "
        "--device cpu --limit 12 --pipelines closed_book naive_rag mr2ag --output {out}",
    ),
}
"""The chain, by the name of what is written; undisturbed, each stands under that name."""


@dataclass
class Result:
    """What became of one command.

    Attributes:
        kills: How often it was killed.
        starts: How often it was started after the first kill until it ended.
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


def straight(job: Job, out: Path, log: Path) -> float:
    """Run a command undisturbed; its seconds."""
    began = time.monotonic()
    with log.open("wb") as file:
        status = subprocess.run(job.command(out), stdout=file, stderr=file, check=False).returncode
    if status not in ACCEPTED:
        sys.exit(f"{job.module} ended with {status} undisturbed; see {log}")
    return time.monotonic() - began


def disturbed(job: Job, out: Path, log: Path, kills: int, seconds: float, rng: random.Random) -> Result:
    """Run a command under kills until it ends, and once more to see that it finds its work done."""
    result = Result(seconds=seconds)
    while True:
        with log.open("wb") as file:
            process = subprocess.Popen(job.command(out), stdout=file, stderr=file, start_new_session=True)
            try:
                process.wait(rng.uniform(0.2, 1.0) * seconds if result.kills < kills else None)
            except subprocess.TimeoutExpired:
                kill_with_children(process)
                result.kills += 1
                continue
        result.starts += 1
        text = log.read_text(encoding="utf-8", errors="replace")
        if process.returncode not in ACCEPTED or "Traceback" in text:
            result.wrong.append(f"status {process.returncode}: {text.strip().splitlines()[-1][:200] if text else ''}")
            return result
        if result.kills < kills and result.starts < kills:  # it ended before its moment came: begin anew, and earlier
            shutil.rmtree(out) if out.is_dir() else out.unlink()
            seconds *= 0.8
            continue
        return result


def compare(result: Result, first: Path, second: Path, killed: Path) -> None:
    """Hold the killed run's files against the undisturbed ones'."""
    wanted, again, found = files_of(first), files_of(second), files_of(killed)
    result.volatile = sorted(name for name in wanted.keys() | again.keys() if wanted.get(name) != again.get(name))
    stable = wanted.keys() - set(result.volatile)
    result.compared = len(stable)
    result.wrong += [f"differs: {name}" for name in sorted(stable) if name in found and found[name] != wanted[name]]
    result.wrong += [f"missing: {name}" for name in sorted(stable) if name not in found]
    unknown = [re.sub(r"\d+", "N", name) for name in found if name not in wanted and name not in again]
    result.wrong += [f"left over: {name}" for name in unknown]
    result.wrong += [f"left beside it: {name}" for name in partials_beside(killed)]


def without_launcher(folder: Path, log: Path) -> Result:
    """Kill the launcher of a training in two processes alone, and go on; compared with one that was left alone."""
    settings = f"--model miniature/llava --train_data {DATA} {_TUNE} --per_device_train_batch_size 4"

    def command(out: Path) -> list[str]:
        return [*launch("train/sft.py", "mr2ag_full.yaml", 2), *settings.format(out=out).split()]

    result = Result()
    began = time.monotonic()
    for name in ("launched", "launched.again"):
        with log.open("wb") as file:
            if subprocess.run(command(folder / name), stdout=file, stderr=file, check=False).returncode:
                sys.exit(f"a launch ended badly undisturbed; see {log}")
    result.seconds = (time.monotonic() - began) / 2
    killed = folder / "launched.killed"
    with log.open("wb") as file:
        launcher = subprocess.Popen(command(killed), stdout=file, stderr=file, start_new_session=True)
        while not list(killed.glob("checkpoint-*/run.json")):
            if launcher.poll() is not None:
                result.wrong.append("it ended before it had a checkpoint")
                return result
            time.sleep(0.1)
        left = psutil.Process(launcher.pid).children(recursive=True)
        os.kill(launcher.pid, signal.SIGKILL)
        launcher.wait()
        result.kills = 1
    with log.open("ab") as file:  # beside what is left, if anything still is
        beside = subprocess.run(command(killed), stdout=file, stderr=subprocess.PIPE, text=True, check=False)
    if beside.returncode:
        said = re.findall(r"is being written by PID \d+", beside.stderr)
        result.wrong += [] if said else [f"beside what was left: {beside.stderr.strip().splitlines()[-1][:200]}"]
        _, alive = psutil.wait_procs(left, timeout=GRACE)
        result.wrong += [f"{len(alive)} processes still ran {GRACE:.0f} s after their launcher's end"] if alive else []
        for process in alive:
            process.kill()
        with log.open("ab") as file:
            status = subprocess.run(command(killed), stdout=file, stderr=file, check=False).returncode
        result.wrong += [f"going on: status {status}"] if status else []
    result.starts = 1
    compare(result, folder / "launched", folder / "launched.again", killed)
    return result


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
    parser.add_argument("--work", type=Path, default=Path("runs/soak_kill"), help="folder, emptied first")
    parser.add_argument("--output", type=Path, help="Markdown file of the table")
    arguments = parser.parse_args()
    work = arguments.work.resolve()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    os.chdir(work)  # the settings' folders are relative
    os.environ |= {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1"}
    rng, results = random.Random(arguments.seed), dict[str, Result]()
    for name, job in JOBS.items():
        first, second, killed, log = (work / each for each in (name, f"{name}.again", f"{name}.killed", f"{name}.log"))
        seconds = straight(job, first, log)
        if arguments.only and name not in arguments.only:
            continue
        straight(job, second, log)
        results[f"`{job.module}`, {name}"] = result = disturbed(job, killed, log, arguments.kills, seconds, rng)
        if not result.wrong:
            compare(result, first, second, killed)
        print(name, result, flush=True)
    if not arguments.only or "launcher" in arguments.only:
        results["the launcher of `train/sft.py` alone"] = result = without_launcher(work, work / "launcher.log")
        print("launcher", result, flush=True)
    kills, wrong = (sum(values) for values in zip(*((r.kills, len(r.wrong)) for r in results.values()), strict=True))
    text = "\n".join(
        [
            "# Killed at random",
            "",
            f"{command_line('soak_kill.py')}: {kills} kills, {wrong} times something was wrong.",
            "",
            *rows(results),
            "",
        ]
    )
    print(text)
    if arguments.output:
        (ROOT / arguments.output).write_text(text, encoding="utf-8")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
