"""Runs commands on inputs that are damaged at random, and sorts what became of each.

    bash scripts/soak.sh hostile 2000 --parts 2
    bash scripts/soak.sh hostile --every_key --parts 2

A case is a command of the chain of `chain.py` on a copy of its inputs in which one thing is wrong: a byte of a
file, its end, a value of a manifest, a cell or column of a Parquet file, a picture, or a value of the config. With
`--every_key` nothing is drawn: each key of each JSON file that each command reads is left out, and made null. It runs
in a process of its own, forked when the libraries are loaded, and ends as one of

- `refused`: exit status above 0, a message that begins with "error:", no traceback, inputs as they were;
- `left out`: it ended, and says that it left rows out;
- `same`: it ended, with the bytes of the undisturbed run: what was damaged isn't read;
- `used`: it ended, with other bytes: the damaged value is one that it may have, as far as can be told. Each is listed,
  for a person to look at;
- `traceback`, `hang`, `inputs changed`: never wanted.
"""

from __future__ import annotations

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
"""Seconds after which a case hangs: the longest command of the chain takes a tenth of it."""
OUT = "out"
"""What a case writes, in its folder."""
UNWANTED = ("traceback", "hang", "inputs changed")
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
    "bem": ("inputs/bem",),
}
"""What each command of the chain reads: folders of earlier ones."""

_UNREAD = ("launched", "probes_of_two", "tables", "pretrained")
"""Of the chain, what is run in a way of its own or reads nothing, so that no case is about it."""
LESS = {
    "adapter": "--max_steps 4 --save_steps 2",
    "refined": "--limit 4 --visual_limit 2 --max_steps 4",
    "probes": "--limit 8",
    "evaluation": "--limit 3",
    "sweep": "--limit 2",
}
"""What is done in a case where the chain does more: damage shows as well."""


@dataclass(frozen=True)
class Outcome:
    """What became of a case."""

    command: str
    damage: str
    kind: str
    said: str


def arguments_of(name: str, out: str) -> list[str]:
    """The arguments of a command of the chain that writes into `out` below its folder."""
    return [*JOBS[name].command(Path(out))[3:], *LESS.get(name, "").split()]


def damage_config(folder: Path, arguments: list[str], rng: random.Random) -> tuple[list[str], str]:
    """A command's arguments with its settings in a file of which a value or a byte is wrong; what was done."""
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
        changed, what = replaced(settings, rng)
        path.write_text(yaml.safe_dump(changed, allow_unicode=True), encoding="utf-8")
    else:
        path.write_text(yaml.safe_dump(settings), encoding="utf-8")
        what = damage_bytes(path, rng)
    return ["--config", str(path)], f"config: {what}"


def run(job: Job, arguments: Sequence[str], folder: Path, log: Path) -> int | None:
    """Run a command in a forked process, in a folder; its exit status, None if it hung."""
    child = os.fork()
    if child == 0:
        os.setsid()
        with log.open("wb", buffering=0) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        status = 70
        try:
            os.chdir(folder)
            sys.argv = [job.module, *arguments]
            getattr(importlib.import_module(f"reflectune.{job.module}"), job.module.rpartition(".")[2]).main()
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


def judge(status: int | None, text: str, wanted: dict[str, str], out: Path) -> str:
    """What became of a case whose inputs are as they were; `wanted` are the files of an undisturbed run."""
    if status is None:
        return "hang"
    if "Traceback (most recent call last)" in text or (status not in (0, 3) and "error: " not in text):
        return "traceback"
    if status == 3 or (status == 0 and "left out" in text):
        return "left out"
    if status:
        return "refused"
    found = files_of(out)
    return "same" if wanted.items() <= found.items() else "used"


def case_folder(name: str, work: Path) -> Path:
    """The folder of a case of a command, with whole inputs: always the same, since some outputs say where they lie."""
    folder = work / "case"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for needed in dict.fromkeys(each.split("/")[0] for each in READS[name]):
        shutil.copytree(work / "clean" / needed, folder / needed, symlinks=True)
    return folder


@dataclass(frozen=True)
class Case:
    """A command of the chain, and what is done to its inputs in a folder, or to its arguments.

    Attributes:
        name: The command's.
        damage: Does it; returns the arguments, and what it did in words.
    """

    name: str
    damage: Callable[[Path, list[str]], tuple[list[str], str]]


def drawn_case(seed: int, number: int, names: Sequence[str]) -> Case:
    """A case at random, the same for the same seed and number."""
    rng = random.Random(f"{seed}/{number}")
    name = rng.choice(names)

    def damage(folder: Path, arguments: list[str]) -> tuple[list[str], str]:
        if rng.random() < 0.75:
            return arguments, damage_input(folder, READS[name], rng)
        return damage_config(folder, arguments, rng)

    return Case(name, damage)


def key_cases(clean: Path, names: Sequence[str]) -> Iterator[Case]:
    """A case for each key of the JSON files that commands read, left out and null."""

    def damage(how: Callable[[Path], str], path: Path, folder: Path, arguments: list[str]) -> tuple[list[str], str]:
        return arguments, f"{path}: {how(folder / path)}"

    for name in names:
        for path, keys in keys_of(clean, READS[name]):
            yield Case(name, partial(damage, partial(damage_key, keys=keys), path))
            yield Case(name, partial(damage, partial(damage_key, keys=keys, new=None), path))


def attempt(case: Case, work: Path, wanted: dict[str, str]) -> Outcome:
    """One case of a command."""
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
        kind = judge(status, text, wanted, folder / OUT)
    lines = [line for line in text.splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith("error: ")), lines[-1] if lines else "")
    return Outcome(job.module, damage, kind, said.replace(str(work), "…")[:300])


def undisturbed(job: Job, arguments: Sequence[str], folder: Path, log: Path) -> None:
    """Run a command that nothing is wrong with."""
    if run(job, arguments, folder, log) not in ACCEPTED:
        sys.exit(f"{job.module} ended badly undisturbed:\n{log.read_text(encoding='utf-8')}")


def prepare(work: Path) -> dict[str, dict[str, str]]:
    """Run the chain undisturbed, and each command twice as a case; the files of each output that do not differ."""
    clean = work / "clean"
    clean.mkdir(parents=True)
    for name, job in JOBS.items():
        if job.fetches or name in _UNREAD:
            continue
        undisturbed(job, arguments_of(name, name), clean, work / "chain.log")
        if name == BEFORE_INPUTS:
            write_inputs(clean)
    wanted = {}
    for name in READS:
        outputs = []
        for _ in range(2):
            folder = case_folder(name, work)
            undisturbed(JOBS[name], arguments_of(name, OUT), folder, work / "chain.log")
            outputs.append(files_of(folder / OUT).items())
        wanted[name] = dict(outputs[0] & outputs[1])
    return wanted


def page(outcomes: Sequence[Outcome], minutes: float) -> str:
    """The table, and what a person should look at."""
    kinds = ("refused", "left out", "same", "used", *UNWANTED)
    counts = Counter((outcome.command, outcome.kind) for outcome in outcomes)
    commands = list(dict.fromkeys(outcome.command for outcome in outcomes))
    lines = [
        "# Damaged at random",
        "",
        f"{len(outcomes):,} cases, {minutes:.0f} minutes.",
        "",
        f"| command | {' | '.join(kinds)} |",
        f"|---|{'---|' * len(kinds)}",
        *(
            f"| `{command}` | {' | '.join(str(counts[command, kind] or '–') for kind in kinds)} |"
            for command in sorted(commands)
        ),
    ]
    for kind in (*UNWANTED, "used"):
        listed = sorted({f"- `{each.command}`, {each.damage}" for each in outcomes if each.kind == kind})
        if listed:
            lines += ["", f"## {kind.capitalize()}", "", *listed]
    return "\n".join([*lines, ""]).replace("\x00", "␀")


def run_part(work: Path, part: int, arguments: argparse.Namespace) -> None:
    """Run every `parts`-th case in a folder, each outcome a line of its `outcomes.jsonl`."""
    importlib.import_module("reflectune.train.runs.supervised")  # torch, transformers and peft, once for all cases
    for job in JOBS.values():
        importlib.import_module(f"reflectune.{job.module}")
    wanted = prepare(work)
    with (work / "outcomes.jsonl").open("w", encoding="utf-8") as file:
        cases: Iterable[Case] = (
            key_cases(work / "clean", arguments.only)
            if arguments.every_key
            else (drawn_case(arguments.seed, number, arguments.only) for number in range(arguments.cases))
        )
        for number, case in islice(enumerate(cases), part, None, arguments.parts):
            outcome = attempt(case, work, wanted[case.name])
            file.write(json.dumps([number, *astuple(outcome)]) + "\n")
            file.flush()
            print(f"{number} {outcome.kind}: {outcome.command}, {outcome.damage!r}: {outcome.said}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=int, nargs="?", default=0, help="how many at random")
    parser.add_argument("--every_key", action="store_true", help="instead: each key of each JSON file, one by one")
    parser.add_argument("--seed", type=int, default=0, help="of the damages")
    parser.add_argument("--only", nargs="*", default=sorted(READS), choices=sorted(READS), help="names of the chain")
    parser.add_argument("--parts", type=int, default=1, help="processes that share the cases, each on a core")
    parser.add_argument("--work", type=Path, default=Path("runs/soak_hostile"), help="folder, emptied first")
    parser.add_argument("--output", type=Path, help="Markdown file of the table")
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
        sys.exit("a part ended before its cases did; what it said stands above")
    files = sorted(work.glob("part-*/outcomes.jsonl"))
    rows = sorted(json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines())
    outcomes = [Outcome(*row[1:]) for row in rows]
    text = page(outcomes, (time.monotonic() - began) / 60)
    print(text)
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")
    sys.exit(1 if any(outcome.kind in UNWANTED for outcome in outcomes) else 0)


if __name__ == "__main__":
    main()
