"""What traces take at InfoSeek's size: disk, memory and minutes to write, score, report and open them, generated.

    python benchmarks/traces.py --questions 73620 --passages 150 --work runs/traces --output benchmarks/traces.md

Each step is a process of its own, whose highest resident memory is told. Traces go through the code that keeps an
evaluation's; what is generated is what a pipeline would have said. JSONL is measured with `--lines` questions.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
from generated_traces import PIPELINE, SPLITS, Size, answer, entry_passages, question, trace
from page import command_line
from PIL import Image

from reflectune.core.durable import read_json, write_atomically, write_json
from reflectune.core.resumable import ALONE
from reflectune.core.types import Entry
from reflectune.formats.dataset import Dataset, write_questions
from reflectune.formats.knowledge_base import write_knowledge_base
from reflectune.inference.report.page import write_report
from reflectune.inference.running.experiment import select
from reflectune.inference.scoring.evaluation import evaluate
from reflectune.inference.scoring.scores import Measure
from reflectune.inference.trace_files.keeping import TraceForm, TraceStore
from reflectune.inference.trace_files.opening import find_trace

FINGERPRINT = "generated"
OPENED = 20

TEXT = """# Traces at InfoSeek's size

{command}: {questions:,} questions with {passages} passages
each, out of a knowledge base of {base:,} passages of 100 words, its entries drawn by Zipf's law. All is generated; a
pipeline's own work is not in these figures. Other programs ran beside it (load average {load:.1f} at the end).

| step | minutes | GiB resident |
|---|--:|--:|
{steps}

*Resident*: the most that the step's process held, libraries and all (the first line: a process that only imports them).
`write` is given one row at a time, as a pipeline that is one process gives them. `score` is `metrics.json`, with all
intervals; `report` the page, with {listed:,} of the questions drawn by its seed.

| traces | GB on the disk | GiB resident |
|---|--:|--:|
| Parquet: questions | {table:.3f} | |
| Parquet: {distinct:,} passages, each once | {texts:.3f} | |
| Parquet: both | {both:.3f} | {score:.2f} to score |
| … and at most while it was written | {most:.3f} | {write:.2f} to write |
| JSONL, by the rate of {lines:,} questions | {jsonl:.1f} | {read:.1f} to read |

A passage's 100 words are {words:,.0f} bytes, and {shrunk:,.0f} in Parquet. A trace opened by its question's id, whole:
{median:.2f} s in the median of {opened}, {slowest:.2f} s at most; {command_s:.1f} s by `show_trace`, with its start.
"""


def store(work: Path, form: TraceForm = "parquet") -> TraceStore:
    """Where traces lie below the work folder."""
    return TraceStore(work / "traces", PIPELINE, FINGERPRINT, form)


def generate_dataset(work: Path, size: Size) -> dict[str, float]:
    """Questions, one picture, and a knowledge base whose entries have titles alone, which is what a report reads."""
    world = work / "world"
    (world / "images").mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (64, 64), "teal").save(world / "images/q.png")
    for place, split in enumerate(SPLITS):
        write_questions(world, split, [question(number) for number in range(place, size.questions, len(SPLITS))])
    entries = (Entry(f"Q{number}", f"Title {number}") for number in range(size.entries))
    write_knowledge_base(world / "knowledge", entries, name="generated")
    write_json(world / "dataset.json", {"name": "generated", "metric": "infoseek", "seed": 0, "fingerprint": "0" * 16})
    return {}


def nothing(work: Path, size: Size) -> dict[str, float]:
    """What libraries take."""
    return {}


def write(work: Path, size: Size) -> dict[str, float]:
    """Make all traces, one after the other."""
    with Watched(work / "traces") as watched:
        questions = (question(number) for number in range(size.questions))
        store(work).fill(list(questions), answer(size), 8, ALONE)
    return {"most_bytes": watched.most}


def write_jsonl(work: Path, size: Size) -> dict[str, float]:
    """The same as JSONL."""
    store(work, "jsonl").fill([question(number) for number in range(size.questions)], answer(size), 8, ALONE)
    return {}


def read_jsonl(work: Path, size: Size) -> dict[str, float]:
    """Have all traces in memory, as scores have those in JSONL."""
    before = resident()
    kept = store(work, "jsonl").read([question(number).id for number in range(size.questions)])
    return {"grown": resident() - before, "questions": len(kept)}


def score(work: Path, size: Size) -> dict[str, float]:
    """Write metrics.json."""
    questions = select(Dataset(work / "world"), SPLITS, None, 0)
    traces = {PIPELINE: store(work).read(sorted(each.id for each in questions))}
    metrics = evaluate(questions, traces, measure=Measure("infoseek"), gamma=0.5, seed=0)
    write_json(work / "metrics.json", metrics)
    return {}


def report(work: Path, size: Size) -> dict[str, float]:
    """Write report.html from metrics.json and the traces."""
    dataset = Dataset(work / "world")
    questions = select(dataset, SPLITS, None, 0)
    traces = {PIPELINE: store(work).read(sorted(each.id for each in questions))}
    write_report(
        work / "report.html",
        dataset=dataset,
        questions=questions,
        traces=traces,
        metrics=read_json(work / "metrics.json", "the metrics"),
        title="generated",
        facts={},
        notices=[],
        measure=Measure("infoseek"),
        gamma=0.5,
        most=1000,
        seed=0,
    )
    page = (work / "report.html").read_text(encoding="utf-8")
    return {"listed": page.count('"lookup"')}


def open_some(work: Path, size: Size) -> dict[str, float]:
    """Open traces by id, each as if it were the only one."""
    seconds = []
    for number in random.Random(0).sample(range(size.questions), OPENED):
        start = time.perf_counter()
        found = find_trace(work / f"traces/{PIPELINE}.parquet", question(number).id)
        seconds.append(time.perf_counter() - start)
        assert found == trace(question(number), size)
    return {"median": statistics.median(seconds), "slowest": max(seconds)}


STEPS: dict[str, Callable[[Path, Size], dict[str, float]]] = {
    "dataset": generate_dataset,
    "nothing": nothing,
    "write": write,
    "score": score,
    "report": report,
    "open": open_some,
    "write_jsonl": write_jsonl,
    "read_jsonl": read_jsonl,
}


class Watched:
    """A folder's size, looked at again and again; `most` is the greatest."""

    def __init__(self, folder: Path) -> None:
        self.most, self._folder, self._done = 0, folder, threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._done.wait(1.0):
            self.most = max(self.most, folder_bytes(self._folder))

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder; those that are deleted meanwhile are left out."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def resident(field: str = "VmRSS") -> int:
    """Bytes that this process holds; `VmHWM`: the most it has held."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def run_step(name: str, work: Path, size: Size) -> dict[str, float]:
    """Run a step in a process of its own, once; what it told is kept in the work folder."""
    told = work / f"{name}.json"
    if not told.is_file():
        numbers = [f"--questions={size.questions}", f"--passages={size.passages}", f"--base={size.base}"]
        subprocess.run([sys.executable, __file__, f"--work={work}", f"--step={name}", *numbers], check=True)
        print(f"{name}: {read_json(told, name)}", flush=True)
    return read_json(told, name)


def be_step(name: str, work: Path, size: Size) -> None:
    """Carry out a step, and write down what it took."""
    start = time.perf_counter()
    told = STEPS[name](work, size)
    took = {"minutes": (time.perf_counter() - start) / 60, "resident": resident("VmHWM")}
    write_json(work / f"{name}.json", {**took, **told})


def page(work: Path, size: Size, lines: int) -> str:
    """Run all steps, and fill in the page."""
    took = {name: run_step(name, work, size) for name in ("dataset", "nothing", "write", "score", "report", "open")}
    few = Size(lines, size.passages, size.base)
    for name in ("write_jsonl", "read_jsonl"):
        run_step(name, work / "lines", few)
    read = run_step("read_jsonl", work / "lines", few)
    ratio, path = size.questions / lines, work / f"traces/{PIPELINE}.parquet"
    texts = path.with_suffix(".passages.parquet")
    command = [
        sys.executable,
        "-m",
        "reflectune.inference.show_trace",
        "--evaluation",
        str(work),
        "--question",
        question(7).id,
    ]
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    command_s = time.perf_counter() - start

    distinct = pq.read_metadata(texts).num_rows
    names = {"nothing": "(imports alone)"}
    return TEXT.format(
        command=command_line("traces.py"),
        load=os.getloadavg()[0],
        questions=size.questions,
        passages=size.passages,
        base=size.base,
        steps="\n".join(
            f"| {names.get(name, name)} | {step['minutes']:.1f} | {step['resident'] / 2**30:.2f} |"
            for name, step in took.items()
            if name != "dataset"
        ),
        listed=int(took["report"]["listed"]),
        table=path.stat().st_size / 1e9,
        texts=texts.stat().st_size / 1e9,
        both=(path.stat().st_size + texts.stat().st_size) / 1e9,
        distinct=distinct,
        most=took["write"]["most_bytes"] / 1e9,
        score=took["score"]["resident"] / 2**30,
        write=took["write"]["resident"] / 2**30,
        lines=lines,
        jsonl=ratio * (work / f"lines/traces/{PIPELINE}.jsonl").stat().st_size / 1e9,
        read=ratio * read["grown"] / 2**30,
        words=statistics.mean(len(each.text.encode()) for each in entry_passages(0, size)),
        shrunk=texts.stat().st_size / distinct,
        median=took["open"]["median"],
        slowest=took["open"]["slowest"],
        opened=OPENED,
        command_s=command_s,
    )


def main() -> None:
    """Read the arguments, run the steps, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=int, default=73_620)
    parser.add_argument("--passages", type=int, default=150)
    parser.add_argument("--base", type=int, default=1_000_000, help="passages of the knowledge base")
    parser.add_argument("--lines", type=int, default=1000, help="questions that JSONL is measured with")
    parser.add_argument("--work", type=Path, default=Path("runs/traces"))
    parser.add_argument("--output", type=Path)
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    size = Size(arguments.questions, arguments.passages, arguments.base)
    arguments.work.mkdir(parents=True, exist_ok=True)
    if arguments.step:
        be_step(arguments.step, arguments.work, size)
        return
    text = page(arguments.work, size, arguments.lines)
    print(text)
    if arguments.output:
        write_atomically(arguments.output, text)


if __name__ == "__main__":
    main()
