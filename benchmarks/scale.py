"""From files of Wikipedia's shape to evaluated answers, on generated files of any number of rows.

    python benchmarks/scale.py --rows 200000 2000000 --work runs/scale --output benchmarks/scale.md
    python benchmarks/scale.py --table

A wiki18 and a Wiki6M are generated, so many rows each, with the articles of a drawn world among them; they are
converted, indexed (store `faiss`, the miniature's encoders), searched together in two stages, and questions about the
world are answered from both. Each step is a process of its own. What is finished stays in the work folder: the same
command goes on where it was cut off. `--table` prints what indexes of well-known sizes take, by arithmetic.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from page import command_line
from wikipedia_files import SPLIT, generate

from reflectune.core.durable import read_json, write_atomically, write_json
from reflectune.core.images import load_image
from reflectune.formats.dataset import Dataset
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.formats.passages import split_passages
from reflectune.inference.running.experiment import select
from reflectune.retrieval.indexes.entry_index import load_index, open_encoder
from reflectune.retrieval.indexes.planning import Plan
from reflectune.retrieval.retrievers.entry_retriever import EntryRetriever
from reflectune.retrieval.retrievers.joint import JointSearch, Texts, split_budget
from reflectune.retrieval.retrievers.queries import Query, equation_7
from reflectune.retrieval.retrievers.text_retriever import open_text_retriever
from reflectune.retrieval.retrievers.two_stage import PassagesInside
from reflectune.retrieval.stores.opening import choose

ENCODERS = {"entries": "miniature/clip", "texts": "miniature/text"}
PIPELINES = ("naive_rag", "text_rag", "pmsr")
QUERIES = 20
"""Of the joint search, each timed by itself."""
RESULTS = "steps"
"""The folder of what each step took."""

TEXT = """# From Wikipedia's files to evaluated answers

{command}, {cores} CPU thread(s), the miniature's models: {sizes} rows of each of
two files, generated. Nothing was downloaded. Other programs ran beside it (load average {load:.1f} at the end).

- `wiki18_100w.jsonl`: passages of 100 words. `Wiki6M_ver_1_0.jsonl`: articles of some 3,300 characters.
- {own} articles of the tiny drawn world stand among the rows of both, spread evenly. **Only they have pictures**, and
  questions ask about them alone. All other text is drawn from a list of words, and its entries have no picture. So
  few pictures lie in as many cells as their titles do: a search for pictures looks into nearly all cells of the index
  of entries, is slower than in one where every entry has a picture, and finds less of what an exact search finds.
- Encoders: {text_encoder} (64 dimensions, the first {max_length} tokens of a passage) and {encoder} (64 + 64). A
  real encoder takes most of a build's time; what is tried here is everything around it.
- *Of its own*: the most anonymous memory of a step's processes together. *Resident*: the most of one of them, pages of
  mapped files included, which the system takes back when it needs them.

| step | rows | minutes | rows/s | GiB of its own | GiB resident | GB on the disk |
|---|--:|--:|--:|--:|--:|--:|
{table}

{notes}What the steps printed at {rows:,} rows:

```
{printed}
```
"""


@dataclass(frozen=True)
class Step:
    """A step, as a command.

    Attributes:
        name: Of the row, and of the file that its result is kept in.
        words: Behind `python`.
        rows: What it goes through.
        output: The folder or file that it writes, if its size is told.
        shows: Whether what it prints stands on the page.
    """

    name: str
    words: tuple[str, ...]
    rows: int
    output: Path | None = None
    shows: bool = True


@dataclass(frozen=True)
class Took:
    """What a step took.

    Attributes:
        rows: What it went through.
        seconds: By the clock.
        own: Bytes, the most anonymous memory of its processes together.
        resident: Bytes, the most of one of its processes with mapped files.
        disk: Bytes that it wrote; 0 if nothing stays.
        printed: Its output, without progress bars.
        continued: Whether an earlier process of it was cut off; `seconds` are the last one's.
    """

    rows: int
    seconds: float
    own: int
    resident: int
    disk: int
    printed: str
    continued: bool

    def row(self, name: str) -> str:
        """A row of the table."""
        minutes = f"{self.seconds / 60:.1f}{' (went on)' if self.continued else ''}"
        disk = f"{self.disk / 1e9:.2f}" if self.disk else ""
        rate = f"{self.rows / self.seconds:,.0f}" if self.disk and self.rows >= 1000 else ""
        memory = f"{self.own / 2**30:.2f} | {self.resident / 2**30:.2f}"
        return f"| {name} | {self.rows:,} | {minutes} | {rate} | {memory} | {disk} |"


def steps(work: Path, rows: int, max_length: int, questions: int) -> list[Step]:
    """Every step, in order."""
    script = str(Path(__file__))
    texts, dataset = work / "texts", work / "dataset"
    again = ("--work", str(work), "--rows", str(rows))
    places = {name: str(work / name) for name in ("index", "text_index", "evaluation")}
    cpu = ("--device", "cpu")
    passages = f"--knowledge {texts}/knowledge --encoder {ENCODERS['texts']} --store faiss --max_length {max_length}"
    entries = f"--knowledge {dataset}/knowledge --encoder {ENCODERS['entries']} --store faiss --workers 1"
    both = f"--dataset {dataset} --splits {SPLIT} --index {places['index']} --text_index {places['text_index']}"
    both += f" --text_knowledge {texts}/knowledge"
    answers = f"--base_model miniature/llava --pipelines {' '.join(PIPELINES)} --limit {questions} --iterations 1"
    answers += " --max_record_tokens 16 --max_new_tokens 16"
    return [
        Step("generate both files", (script, "--step", "generate", *again), 2 * rows, work / "source"),
        Step("convert wiki18", _convert(work, "texts"), rows, texts, shows=False),
        Step("convert Wiki6M and the questions", _convert(work, "dataset"), rows, dataset, shows=False),
        Step(
            "index passages by their text",
            (*_module("retrieval.build_text_index", passages), *cpu, "--output", places["text_index"]),
            rows,
            work / "text_index",
        ),
        Step(
            "index entries",
            (*_module("retrieval.build_index", entries), *cpu, "--output", places["index"]),
            rows,
            work / "index",
        ),
        Step("recall", (*_module("inference.recall", f"{both} --title_weights 0 0.5 --overlap"), *cpu), rows),
        Step("search both, in two stages", (script, "--step", "search", *again), QUERIES),
        Step(
            "evaluate",
            (*_module("inference.evaluate", f"{both} {answers}"), *cpu, "--output", places["evaluation"]),
            questions,
            work / "evaluation",
        ),
    ]


def _module(name: str, options: str) -> tuple[str, ...]:
    """A command of ours with its options, which have no blank within them."""
    return ("-m", f"reflectune.{name}", *options.split())


def _convert(work: Path, name: str) -> tuple[str, ...]:
    return ("-m", "reflectune.data_builders.convert", "--config", str(work / "source" / f"{name}.yaml"))


def run(step: Step, number: int, work: Path) -> Took:
    """Run a step that isn't finished, or read what it took."""
    stem = work / RESULTS / f"{number}_{step.name.replace(' ', '_')}"
    kept, begun = stem.with_suffix(".json"), stem.with_suffix(".begun")
    if kept.is_file():
        return Took(**read_json(kept, "what a step took"))
    continued = begun.is_file()
    begun.parent.mkdir(parents=True, exist_ok=True)
    begun.touch()
    with stem.with_suffix(".log").open("w", encoding="utf-8") as log:
        start = time.perf_counter()
        process = subprocess.Popen([sys.executable, *step.words], stdout=subprocess.PIPE, stderr=log, text=True)
        watched = Memory(process.pid)
        printed = process.stdout.read() if process.stdout else ""
        status = process.wait()
        seconds = time.perf_counter() - start
    if status:
        sys.exit(f"`{step.name}` ended with {status}; see {stem.with_suffix('.log')}")
    took = Took(
        step.rows, seconds, watched.own, watched.resident, size(step.output), printed if step.shows else "", continued
    )
    write_json(kept, asdict(took))
    return took


class Memory:
    """The most memory of a process and its children, sampled ten times a second until it ends."""

    def __init__(self, process: int) -> None:
        self.own, self.resident = 0, 0
        threading.Thread(target=self._watch, args=(process,), daemon=True).start()

    def _watch(self, process: int) -> None:
        while statuses := list(_statuses(process)):
            self.own = max(self.own, sum(_bytes(status, "RssAnon") for status in statuses))
            self.resident = max(self.resident, *(_bytes(status, "VmRSS") for status in statuses))
            time.sleep(0.1)


def _statuses(process: int) -> Iterator[str]:
    """What the system says of a process and its children's children; nothing of one that ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return
    if "RssAnon:" in status:
        yield status
    for child in children:
        yield from _statuses(int(child))


def _bytes(status: str, name: str) -> int:
    return 1024 * int(status.split(f"{name}:")[1].split()[0])


def size(path: Path | None) -> int:
    """Bytes of all files below a folder."""
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file()) if path else 0


def search(work: Path) -> None:
    """Search both knowledge bases for some questions, and print how long a query takes and what it finds."""
    dataset = Dataset(work / "dataset")
    questions = select(dataset, [SPLIT], QUERIES, 0)
    knowledge, passages = dataset.knowledge, KnowledgeBase(work / "texts" / "knowledge")
    start = time.perf_counter()
    encoder = open_encoder(ENCODERS["entries"], work / "index", device="cpu")
    entries = EntryRetriever(load_index(work / "index", knowledge, encoder), encoder)
    texts = open_text_retriever(work / "text_index", passages, device="cpu")
    inside = PassagesInside(
        "Wiki6M", entries, lambda name: split_passages(knowledge.get(name)), weights=equation_7(0.5)
    )
    joint = JointSearch([Texts("wiki18", texts), inside])
    budget = {"wiki18": split_budget(10, 1), "Wiki6M": split_budget(5, 1)}
    opened, seconds, gold, answered = time.perf_counter() - start, [], 0, 0
    for question in questions:
        query = Query(load_image(dataset.image_roots[-1] / question.image), question.text)
        start = time.perf_counter()
        found = joint.search([query], budget)
        seconds.append(time.perf_counter() - start)
        hits = joint.pool(found)
        gold += any(hit.passage.entry_id in question.entity_ids for hit in hits)
        answered += any(answer in hit.passage.text for hit in hits for answer in question.answers)
    seconds.sort()
    print(f"both indexes opened in {opened:.1f} s; {len(questions)} queries of a picture and a text, one at a time:")
    print(f"  median {1000 * seconds[len(seconds) // 2]:.0f} ms, slowest {1000 * seconds[-1]:.0f} ms (the first reads")
    print(f"  the directories of entries); the gold entry's passages among the 15 hits: {gold} of {len(questions)};")
    print(f"  an accepted answer in one of them: {answered} of {len(questions)}")


WIKIPEDIAS: Mapping[str, tuple[int, dict[str, int]]] = {
    "Encyclopedic-VQA, 2 M articles, EVA-CLIP-8B": (2_000_000, {"image": 1280, "title": 1280}),
    "Wiki6M, 6 M entities, CLIP ViT-L": (6_000_000, {"image": 768, "title": 768}),
    "Wiki6M, 6 M entities, EVA-CLIP-8B": (6_000_000, {"image": 1280, "title": 1280}),
    "wiki18, 21 M passages, e5-base-v2": (21_000_000, {"text": 768}),
    "100 k entities, CLIP ViT-L": (100_000, {"image": 768, "title": 768}),
}
"""Rows and dimensions of well-known knowledge bases, an image an entry."""


def needs() -> Iterator[str]:
    """What indexes of well-known sizes take: the arithmetic of `--dry_run`."""
    yield "| | entries × dimensions | `exact`: memory = disk | `faiss`: memory | `faiss`: disk | while it is built |"
    yield "|---|--:|--:|--:|--:|--:|"
    for name, (rows, fields) in WIKIPEDIAS.items():
        exact, faiss = (Plan(rows, fields, choose(store, rows, fields)) for store in ("exact", "faiss"))
        cells = [f"{rows / 1e6:g} M × {sum(fields.values()):,}"]
        cells += [f"{count / 1e9:.1f} GB" for count in (exact.disk, faiss.memory, faiss.disk, faiss.building)]
        yield f"| {name} | {' | '.join(cells)} |"


GPU_FLOPS = 0.4 * 312e12
"""An assumption: an A100's bfloat16, 40 % of it used."""
GPUS = 8

ENCODINGS: Mapping[str, tuple[int, float, int]] = {
    "Encyclopedic-VQA's 2 M articles, a picture each, EVA-CLIP-8B": (2_000_000, 7.5e9, 257),
    "Wiki6M's 6 M entities, a picture each, EVA-CLIP-8B": (6_000_000, 7.5e9, 257),
    "wiki18's 21 M passages, e5-base-v2": (21_000_000, 86e6, 150),
}
"""What is encoded, the weights that each token goes through, and tokens: 16² patches and one, or a passage's."""


def hours() -> Iterator[str]:
    """How long encoding takes by arithmetic: 2 FLOP a weight and token, attention's products left out."""
    yield "| | TFLOP each | each second and GPU | hours on 8 GPUs |"
    yield "|---|--:|--:|--:|"
    for name, (count, weights, tokens) in ENCODINGS.items():
        flop = 2 * weights * tokens
        rate = GPU_FLOPS / flop
        yield f"| {name} | {flop / 1e12:.2g} | {rate:,.0f} | {count / rate / GPUS / 3600:.1f} |"


def main() -> None:
    """Run what isn't finished; print and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[5_000, 20_000], help="of each file: sizes to try")
    parser.add_argument("--max_length", type=int, default=32, help="tokens of a passage that the miniature reads")
    parser.add_argument("--questions", type=int, default=6, help="to answer")
    parser.add_argument("--work", type=Path, default=Path("runs/scale"))
    parser.add_argument("--step", choices=("generate", "search"), help="one step, in this process")
    parser.add_argument("--table", action="store_true", help="print what well-known sizes take, by arithmetic, alone")
    parser.add_argument("--output", type=Path, help="Markdown file; printed in any case")
    options = parser.parse_args()
    if len(str(options.work).split()) > 1:
        parser.error(f"--work {options.work}: a folder whose path has no blank")
    if options.table:
        print("\n".join([*needs(), "", *hours()]))
    elif options.step == "generate":
        generate(options.work, options.rows[0])
    elif options.step == "search":
        search(options.work)
    else:
        measure(options)


def measure(options: argparse.Namespace) -> None:
    """Every step in its process, and the page."""
    taken: dict[str, list[Took]] = {}
    for rows in options.rows:
        work: Path = options.work / str(rows)
        for number, step in enumerate(steps(work, rows, options.max_length, options.questions)):
            took = run(step, number, work)
            taken.setdefault(step.name, []).append(took)
            print(took.row(step.name), flush=True)
    shown = [f"{name}:\n{printed}" for name, sizes in taken.items() if (printed := sizes[-1].printed.strip())]
    went_on = any(took.continued for sizes in taken.values() for took in sizes)
    text = TEXT.format(
        command=command_line(__file__),
        cores=os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0))),
        sizes=" and ".join(f"{rows:,}" for rows in options.rows),
        rows=options.rows[-1],
        load=os.getloadavg()[0],
        own=len(KnowledgeBase(work / "world" / "knowledge")),
        max_length=options.max_length,
        encoder=f"`{ENCODERS['entries']}`",
        text_encoder=f"`{ENCODERS['texts']}`",
        table="\n".join(took.row(name) for name, sizes in taken.items() for took in sizes),
        notes="*Went on*: the step was cut off and run again; minutes are the last run's.\n\n" if went_on else "",
        printed="\n\n".join(shown).replace(f"{work}/", ""),
    )
    print(text)
    if options.output:
        write_atomically(options.output, text)


if __name__ == "__main__":
    main()
