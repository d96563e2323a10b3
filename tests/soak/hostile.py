"""Run commands on inputs that are damaged at random, and classify the results.

    bash scripts/soak.sh hostile 2000 --parts 2
    bash scripts/soak.sh hostile --every_key --parts 2

A case is a command of the chain in `chain.py` on a copy of its inputs with one damage: a byte of a file, its end, a
value of a manifest, a cell or column of a Parquet file, an image, or a value of the config. With `--every_key` each
key of each JSON input of each command is left out, and set to null. A case runs in a separate process, forked after
the libraries are loaded. Its result is one of

- `refused`: exit status above 0, a message that begins with "error:", no traceback, inputs unchanged;
- `left out`: it ended, and reports that it left rows out;
- `same`: it ended with the bytes of the undisturbed run: the damaged value isn't read;
- `used`: it ended with other bytes: the damaged value is a valid one, as far as a program can decide. All are listed
  for a person to check;
- `traceback`, `timeout`, `inputs changed`: always failures.
"""

import argparse
import importlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import yaml
from chain import ACCEPTED, BEFORE_INPUTS, JOBS, QUIET, Job, write_inputs
from damage import damage_bytes, damage_input, damage_key, keys_of, replaced
from kill import files_of

LIMIT = 180
"""Seconds after which a case has timed out: ten times the longest command of the chain."""
OUT = "out"
"""Output of a case, in its folder."""
FAILURES = ("traceback", "timeout", "inputs changed")
READS: dict[str, Sequence[str]] = {
    "index": ("world/knowledge",),
    "faiss_index": ("world/knowledge",),
    "recall": ("world", "faiss_index"),
    "text_index": ("world/knowledge",),
    "text_rag": ("world", "text_index"),
    "reflection": ("world", "index"),
    "plain": ("world", "index", "reflection"),
    "export": ("reflection", "world"),
    "adapter": ("reflection", "world"),
    "merged": ("adapter",),
    "served": ("adapter",),
    "refined": ("world", "index", "tuned"),
    "probes": ("world", "index"),
    "labels": ("probes", "world"),
    "evaluation": ("world", "index", "tuned"),
    "trajectories": ("world", "index", "text_index"),
    "comparison": ("trajectories", "text_rag"),
    "sweep": ("world", "index", "tuned"),
    "scores": ("evaluation/traces", "world/questions"),
    "converted": ("inputs/user",),
    "title_map": ("inputs/user", "inputs/tower", "world/knowledge"),
    "assembled": ("inputs/language", "inputs/vision"),
    "packed": ("tuned",),
}
"""Inputs of each command of the chain: folders of earlier ones."""

_UNREAD = ("launched", "probes_of_two", "tables", "pretrained")
"""Commands without cases: they are launched, or have no inputs."""
LESS = {
    "adapter": "--max_steps 4 --save_steps 2",
    "refined": "--limit 4 --visual_limit 2 --max_steps 4",
    "probes": "--limit 8",
    "evaluation": "--limit 3",
    "sweep": "--limit 2",
}
"""Settings that shorten a case."""


@dataclass(frozen=True)
class Outcome:
    """The result of a case."""

    command: str
    damage: str
    kind: str
    message: str


def arguments_of(name: str, out: str) -> list[str]:
    """Return the arguments of a command of the chain that writes into `out` below its folder."""
    return [*JOBS[name].arguments(Path(out)), *LESS.get(name, "").split()]


def damage_config(folder: Path, arguments: list[str], rng: random.Random) -> tuple[list[str], str]:
    """Move a command's settings into a file and damage a value or a byte; return the arguments and the damage."""
    settings: dict[str, Any] = {}
    while arguments:
        key = arguments.pop(0).removeprefix("--")
        values = []
        while arguments and not arguments[0].startswith("--"):
            values.append(yaml.safe_load(arguments.pop(0)))
        if key == "config":
            settings |= yaml.safe_load((folder / values[0]).read_text(encoding="utf-8"))
        else:
            settings[key] = values if len(values) > 1 else values[0]
    path = folder / "config.yaml"
    if rng.random() < 0.8:
        changed, damage = replaced(settings, rng)
        path.write_text(yaml.safe_dump(changed, allow_unicode=True), encoding="utf-8")
    else:
        path.write_text(yaml.safe_dump(settings), encoding="utf-8")
        damage = damage_bytes(path, rng)
    return ["--config", str(path)], f"config: {damage}"


def run(job: Job, arguments: Sequence[str], folder: Path, log: Path) -> int | None:
    """Run a command in a forked process in a folder; return its exit status, None if it hung."""
    child = os.fork()
    if child == 0:
        os.setsid()
        with log.open("wb", buffering=0) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        status = 70
        try:
            os.chdir(folder)
            start(job.module, list(arguments))
            status = 0
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 1 if error.code else 0
        except BaseException:
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]  # there is one
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def start(module: str, arguments: list[str]) -> None:
    """Run a command of the library or of the examples in this process."""
    loaded = importlib.import_module(f"reflectune.{module}")
    command = getattr(loaded, module.rpartition(".")[2], loaded)
    sys.argv = [module, *arguments]
    (command if hasattr(command, "main") else loaded).main()


def judge(status: int | None, text: str, expected: dict[str, str], out: Path) -> str:
    """Classify a case whose inputs are unchanged; `expected` are the files of an undisturbed run."""
    if status is None:
        return "timeout"
    if "Traceback (most recent call last)" in text or (status not in (0, 3) and "error: " not in text):
        return "traceback"
    if status == 3 or (status == 0 and "left out" in text):
        return "left out"
    if status:
        return "refused"
    found = files_of(out)
    return "same" if expected.items() <= found.items() else "used"


def case_folder(name: str, work: Path) -> Path:
    """Prepare the folder of a case with undamaged inputs: always the same path, which some outputs contain."""
    folder = work / "case"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for needed in dict.fromkeys(path.split("/")[0] for path in READS[name]):
        shutil.copytree(work / "clean" / needed, folder / needed, symlinks=True)
    return folder


@dataclass(frozen=True)
class Case:
    """A command of the chain, and a damage of its inputs or arguments.

    Attributes:
        name: Name of the command.
        damage: Function that damages them, and returns the arguments and a description.
    """

    name: str
    damage: Callable[[Path, list[str]], tuple[list[str], str]]


def drawn_case(seed: int, number: int, names: Sequence[str]) -> Case:
    """Draw a case, the same for the same seed and number."""
    rng = random.Random(f"{seed}/{number}")
    name = rng.choice(names)

    def damage(folder: Path, arguments: list[str]) -> tuple[list[str], str]:
        if rng.random() < 0.75:
            return arguments, damage_input(folder, READS[name], rng)
        return damage_config(folder, arguments, rng)

    return Case(name, damage)


def key_cases(clean: Path, names: Sequence[str]) -> Iterator[Case]:
    """Yield a case for each key of the JSON inputs of commands, left out and null."""

    def damage(change: Callable[[Path], str], path: Path, folder: Path, arguments: list[str]) -> tuple[list[str], str]:
        return arguments, f"{path}: {change(folder / path)}"

    for name in names:
        for path, keys in keys_of(clean, READS[name]):
            yield Case(name, partial(damage, partial(damage_key, keys=keys), path))
            yield Case(name, partial(damage, partial(damage_key, keys=keys, new=None), path))


def attempt(case: Case, work: Path, expected: dict[str, str]) -> Outcome:
    """Run a case."""
    name = case.name
    job, folder, reads = JOBS[name], case_folder(name, work), READS[name]
    arguments, damage = case.damage(folder, arguments_of(name, OUT))
    before = {needed: files_of(folder / needed) for needed in reads}
    log = work / "case.log"
    status = run(job, arguments, folder, log)
    text = log.read_text(encoding="utf-8", errors="replace")
    if {needed: files_of(folder / needed) for needed in reads} != before:
        kind = "inputs changed"
    else:
        kind = judge(status, text, expected, folder / OUT)
    lines = [line for line in text.splitlines() if line.strip()]
    message = next((line for line in lines if line.startswith("error: ")), lines[-1] if lines else "")
    return Outcome(job.module, damage, kind, message.replace(str(work), "…")[:300])


def undisturbed(job: Job, arguments: Sequence[str], folder: Path, log: Path) -> None:
    """Run a command on undamaged inputs."""
    if run(job, arguments, folder, log) not in ACCEPTED:
        sys.exit(f"{job.module} ended badly undisturbed:\n{log.read_text(encoding='utf-8')}")


def prepare(work: Path) -> dict[str, dict[str, str]]:
    """Run the chain undisturbed, and each command twice as a case; return each output's files that don't differ."""
    clean = work / "clean"
    clean.mkdir(parents=True)
    for name, job in JOBS.items():
        if job.fetches or name in _UNREAD:
            continue
        undisturbed(job, arguments_of(name, name), clean, work / "chain.log")
        if name == BEFORE_INPUTS:
            write_inputs(clean)
    expected = {}
    for name in READS:
        outputs = []
        for _ in range(2):
            folder = case_folder(name, work)
            undisturbed(JOBS[name], arguments_of(name, OUT), folder, work / "chain.log")
            outputs.append(files_of(folder / OUT).items())
        expected[name] = dict(outputs[0] & outputs[1])
    return expected


def report(outcomes: Sequence[Outcome], minutes: float) -> str:
    """Return the table, and the cases for a person to check."""
    kinds = ("refused", "left out", "same", "used", *FAILURES)
    counts = Counter((outcome.command, outcome.kind) for outcome in outcomes)
    commands = list(dict.fromkeys(outcome.command for outcome in outcomes))
    lines = [
        f"{len(outcomes):,} cases, {minutes:.0f} minutes.",
        "",
        f"| command | {' | '.join(kinds)} |",
        f"|---|{'---|' * len(kinds)}",
        *(
            f"| `{command}` | {' | '.join(str(counts[command, kind] or '–') for kind in kinds)} |"
            for command in sorted(commands)
        ),
    ]
    for kind in (*FAILURES, "used"):
        listed = sorted({f"- `{outcome.command}`, {outcome.damage}" for outcome in outcomes if outcome.kind == kind})
        if listed:
            lines += ["", f"## {kind.capitalize()}", "", *listed]
    return "\n".join([*lines, ""]).replace("\x00", "␀")


def run_part(work: Path, part: int, arguments: argparse.Namespace) -> None:
    """Run every `parts`-th case in a folder, and write each outcome as a line of its `outcomes.jsonl`."""
    importlib.import_module("reflectune.train.runs.supervised")  # torch, transformers and peft, once for all cases
    for job in JOBS.values():
        importlib.import_module(f"reflectune.{job.module}")
    expected = prepare(work)
    with (work / "outcomes.jsonl").open("w", encoding="utf-8") as file:
        cases: Iterable[Case] = (
            key_cases(work / "clean", arguments.only)
            if arguments.every_key
            else (drawn_case(arguments.seed, number, arguments.only) for number in range(arguments.cases))
        )
        for number, case in islice(enumerate(cases), part, None, arguments.parts):
            outcome = attempt(case, work, expected[case.name])
            file.write(json.dumps([number, *astuple(outcome)]) + "\n")
            file.flush()
            print(f"{number} {outcome.kind}: {outcome.command}, {outcome.damage!r}: {outcome.message}", flush=True)


def main() -> None:
    """Run the cases, and exit with status 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=int, nargs="?", default=0, help="number of random cases")
    parser.add_argument("--every_key", action="store_true", help="instead: each key of each JSON file, one by one")
    parser.add_argument("--seed", type=int, default=0, help="seed of the damages")
    parser.add_argument("--only", nargs="*", default=sorted(READS), choices=sorted(READS), help="names of the chain")
    parser.add_argument("--parts", type=int, default=1, help="processes that share the cases, each on a core")
    parser.add_argument("--work", type=Path, default=Path("runs/soak_hostile"), help="folder, emptied first")
    arguments = parser.parse_args()
    work = arguments.work.resolve()
    shutil.rmtree(work, ignore_errors=True)
    os.environ |= QUIET | {"HF_HUB_OFFLINE": "1"}
    began = time.monotonic()
    children = []
    for part in range(arguments.parts):
        if (child := os.fork()) == 0:
            run_part(work / f"part-{part}", part, arguments)
            os._exit(0)
        children.append(child)
    failed = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(failed):
        sys.exit("a part failed before its last case; its output is above")
    files = sorted(work.glob("part-*/outcomes.jsonl"))
    rows = sorted(json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines())
    outcomes = [Outcome(*row[1:]) for row in rows]
    text = report(outcomes, (time.monotonic() - began) / 60)
    print(text)
    sys.exit(1 if any(outcome.kind in FAILURES for outcome in outcomes) else 0)


if __name__ == "__main__":
    main()
