"""Speed and memory of the data code, on generated files of the public sets' shape.

    python benchmarks/data.py --folder runs/data_benchmark --output benchmarks/data.md

Each knowledge base is converted at two sizes, four times apart, by the command line. Memory is that of the whole
process tree, sampled every 50 ms. `benchmarks/metrics_speed.py` is run too, and what it prints is part of the page.
Nothing is downloaded; what is generated stays in the folder, and is used again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import psutil

from reflectune.core.partials import writing
from reflectune.core.rejected import stop
from reflectune.data_builders.readers.images import Images
from reflectune.data_builders.readers.registry import knowledge_reader, question_reader
from reflectune.formats.passages import Cut, split_passages

WORDS = [f"w{i}" * (1 + i % 3) for i in range(4000)]
SHORT_WORDS = WORDS[::3]
ARTICLE_CHARACTERS = {"wiki6m": 3_300, "evqa": 7_500}
"""Mean length of an article: 20 GB over 6 M entities, and 15 GB over 2 M articles."""

NAMES = {"wiki6m": "Wiki6M", "evqa": "E-VQA's dict"}


ARTICLES, QUESTIONS_READ = 50_000, 1_000_000
SAMPLE = 5_000
"""Articles that are cut into passages."""


@dataclass(frozen=True)
class Measurement:
    """A row of the table.

    Attributes:
        what: What was done.
        size: Bytes that it was done to.
        amount: How many of `unit` these are.
        unit: What is counted.
        wanted: So many of them a second.
        seconds: By the clock.
        cpu_seconds: Of all processes together.
        peak: Most bytes in memory, 0 if not measured.
    """

    what: str
    size: int
    amount: float
    unit: str
    wanted: float
    seconds: float
    cpu_seconds: float
    peak: int = 0

    def row(self) -> str:
        """The measurement as Markdown; ✗ where it misses what is wanted."""
        rate = self.amount / self.seconds
        slow, large = "" if rate >= self.wanted else " ✗", "" if self.peak < MEMORY_WANTED else " ✗"
        memory = f"{self.peak / 2**20:,.0f} MiB{large}" if self.peak else ""
        cells = [self.what, f"{self.size / 2**20:,.0f} MiB", f"{self.seconds:.1f}", f"{self.cpu_seconds:.1f}"]
        cells += [f"{rate:,.0f} {self.unit}/s{slow}", f"{self.amount / self.cpu_seconds:,.0f}", f"≥ {self.wanted:,.0f}"]
        return f"| {' | '.join([*cells, memory])} |"


MEMORY_WANTED = 1.5 * 2**30
HEADER = (
    "| what | file | seconds | CPU seconds | rate | rate a CPU second | wanted | peak memory (< 1.5 GiB) |\n"
    "|---|---|---|---|---|---|---|---|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--articles", type=int, default=ARTICLES, help="of the smaller of the two sizes")
    parser.add_argument("--questions", type=int, default=QUESTIONS_READ)
    parser.add_argument("--output", type=Path, help="Markdown file; printed in any case")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    lines = [*introduction(arguments.articles, arguments.questions), HEADER]
    print("\n".join(lines), flush=True)
    for measured in measurements(arguments.folder, arguments.articles, arguments.questions):
        lines.append(measured.row())
        print(lines[-1], flush=True)
    lines += ["", *scoring()]
    if arguments.output:
        arguments.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


def introduction(articles: int, questions: int) -> list[str]:
    """What was run where, and how to read the table."""
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    whole = articles >= ARTICLES and questions >= QUESTIONS_READ
    reduced = "" if whole else f" Reduced: as a whole it is {ARTICLES:,} articles and {QUESTIONS_READ:,} questions."
    return [
        "# Speed and memory of the data code",
        "",
        f"`python benchmarks/data.py --folder DIR --articles {articles} --questions {questions}`: generated files of "
        f"the public sets' shape, each knowledge base at two sizes, on {cores} cores ({platform.machine()}). "
        f"Load average {load:.1f} when it began, niceness {os.nice(0)}: `rate` is by the clock, whatever else ran on "
        "the machine; `rate a CPU second` is what one core does on its own. ✗: missed by the clock, or in memory."
        f"{reduced}",
        "",
    ]


def measurements(folder: Path, articles: int, questions: int) -> Iterator[Measurement]:
    """Everything that is measured here, one after the other."""
    yield infoseek(folder, questions)
    for reader in ("wiki6m", "evqa"):
        for times in (1, 4):
            yield conversion(folder, reader, times * articles)
    yield from passages(folder, articles)


def scoring() -> list[str]:
    """What `metrics_speed.py` prints, with its command."""
    script = Path(__file__).with_name("metrics_speed.py")
    done = subprocess.run([sys.executable, str(script)], check=True, capture_output=True, text=True)
    return ["`python benchmarks/metrics_speed.py`:", "", "```", *done.stdout.splitlines(), "```"]


def infoseek(folder: Path, count: int) -> Measurement:
    """Rows of InfoSeek read, joined with their entities and validated in this process."""
    files = {name: folder / f"infoseek_{count}_{name}.jsonl" for name in ("annotations", "withkb")}
    generate(files["annotations"], lambda: (json.dumps(question_row(i)) for i in range(count)))
    generate(files["withkb"], lambda: (json.dumps(entity_row(i)) for i in range(count)))
    start, cpu = time.perf_counter(), time.process_time()
    rows = sum(1 for _ in question_reader("infoseek")(files, split="train", images=Images(None)))
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    if rows != count:
        raise RuntimeError(f"{rows} of {count} rows of InfoSeek were good")
    size = sum(path.stat().st_size for path in files.values())
    return Measurement(f"InfoSeek, {count:,} rows read, one core", size, rows, "rows", 40_000, seconds, cpu)


def conversion(folder: Path, reader: str, count: int) -> Measurement:
    """A knowledge base converted by the command line, on all cores."""
    source = folder / f"{reader}_{count}.{'jsonl' if reader == 'wiki6m' else 'json'}"
    generate(source, lambda: wiki6m_lines(count) if reader == "wiki6m" else evqa_lines(count))
    output = folder / f"converted_{reader}_{count}"
    shutil.rmtree(output, ignore_errors=True)
    command = [sys.executable, "-m", "reflectune.data_builders.convert", "--output", str(output)]
    command += ["--knowledge", reader, "--knowledge_source", str(source)]
    start, cpu = time.perf_counter(), children_seconds()
    peak = peak_memory(command)
    seconds, cpu = time.perf_counter() - start, children_seconds() - cpu
    shutil.rmtree(output)
    what = f"{NAMES[reader]}, {count:,} articles converted"
    return Measurement(what, source.stat().st_size, count, "articles", 2_000, seconds, cpu, peak)


def passages(folder: Path, count: int) -> Iterator[Measurement]:
    """Articles cut in each of the four ways, on one core."""
    reader = knowledge_reader("wiki6m")
    source = folder / f"wiki6m_{count}.jsonl"
    rows = islice(reader.read_source(source, stop), SAMPLE)
    entries = [reader.entry(row, Images(None)) for _, row in rows]
    size = sum(len(section.text.encode()) for entry in entries for section in entry.sections)
    cuts: tuple[Cut, ...] = ("paragraphs", "sections", "windows", "words")
    for cut in cuts:
        start, cpu = time.perf_counter(), time.process_time()
        for entry in entries:
            split_passages(entry, lead="first_sentence", cut=cut)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        yield Measurement(f"passages: {cut}, one core", size, size / 1e6, "MB", 20, seconds, cpu)


def children_seconds() -> float:
    """CPU time of the processes that were started here and have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def generate(path: Path, lines: Callable[[], Iterator[str]]) -> None:
    """Write a file, unless it is there."""
    if path.is_file():
        return
    with writing(path) as partial, partial.open("w", encoding="utf-8") as file:
        for line in lines():
            file.write(line + "\n")


QUESTIONS = (
    ("Which place is this animal endemic to?", ["People's Republic of China", "cn", "China", "Mainland China",
     "China PR", "PR China", "CHN", "CN", "PRC"]),
    ("What is the date this aircraft took the first flight?", ["1981 September 26", "26 September 1981", "1981-09-26"]),
    ("What is the closest upper taxonomy of this bird?", ["Pavonini"]),
    ("Which city or region does this building locate in?", ["Provence-Alpes-Côte d'Azur", "PACA", "Sud", "Région Sud"]),
)  # fmt: skip
"""Texts, dates and names with their other spellings; each fifth question asks for a number."""


def question_row(i: int) -> dict[str, object]:
    question, accepted = QUESTIONS[i % len(QUESTIONS)]
    numerical = i % 5 == 0
    size = float(i % 900 + 1)
    return {
        "data_id": f"infoseek_train_{i:08d}",
        "image_id": f"oven_{i // 2:08d}",
        "question": "What is the length of this bird in centimetre?" if numerical else question,
        "answer": [str(size)] if numerical else accepted[:1],
        "answer_eval": [{"wikidata": size, "range": [0.9 * size, 1.1 * size]}] if numerical else accepted,
        "data_split": "train",
    }


def entity_row(i: int) -> dict[str, str]:
    """The entity of a question; there are about 6,000 in the training data."""
    entity = i * 7 % 6000
    return {"data_id": f"infoseek_train_{i:08d}", "entity_id": f"Q{entity}", "entity_text": f"Entity {entity}"}


def wiki6m_lines(count: int) -> Iterator[str]:
    draw = random.Random(0)
    for i in range(count):
        sections = article(draw, ARTICLE_CHARACTERS["wiki6m"])
        content = sections[0] + "".join(f"## Heading {n}.{text}" for n, text in enumerate(sections[1:]))
        row = {"wikidata_id": f"Q{i}", "wikipedia_title": f"Title {i}", "wikipedia_content": content}
        yield json.dumps({**row, "wikipedia_image_url": "https://e.org/a.png", "wikipedia_summary": sections[0][:400]})


def wiki18_lines(count: int) -> Iterator[str]:
    """Passages of 100 words, some 580 characters, as wiki18's are."""
    draw = random.Random(0)
    for i in range(count):
        text = " ".join(draw.choices(SHORT_WORDS, k=100))
        yield json.dumps({"id": str(i), "contents": f'"Title {i // 7}"\n{text.capitalize()}.'})


def evqa_lines(count: int) -> Iterator[str]:
    draw = random.Random(0)
    for i in range(count):
        sections = article(draw, ARTICLE_CHARACTERS["evqa"])
        url = f"https://en.wikipedia.org/wiki/Title_{i}"
        value = {
            "title": f"Title {i}",
            "section_titles": [f"Title {i}", *(f"Heading {n}" for n in range(len(sections) - 1))],
            "section_texts": sections,
            "image_urls": ["https://upload.wikimedia.org/wikipedia/commons/a/ab/Some_image.jpg"] * 3,
            "image_reference_descriptions": ["a caption"] * 3,
            "image_section_indices": [0, 0, 1],
            "url": url,
        }
        yield f"{'{' if i == 0 else ','}{json.dumps(url)}: {json.dumps(value)}{'}' if i == count - 1 else ''}"


def article(draw: random.Random, characters: int) -> list[str]:
    """The texts of some sections, `characters` long together on average."""
    count = draw.randint(2, 8)
    texts = []
    for _ in range(count):
        words = draw.choices(WORDS, k=max(8, int(draw.uniform(0.5, 1.5) * characters / count / 10)))
        sentences = [" ".join(words[n : n + 16]).capitalize() + "." for n in range(0, len(words), 16)]
        texts.append(" ".join(sentences))
    return texts


def peak_memory(command: list[str]) -> int:
    """Run a command; the largest sum of resident bytes of it and its children."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peak, done = 0, threading.Event()

    def sample() -> None:
        nonlocal peak
        tree = psutil.Process(process.pid)
        while not done.wait(0.05):
            total = 0
            try:
                members = [tree, *tree.children(recursive=True)]
            except psutil.NoSuchProcess:
                return
            for member in members:
                try:
                    total += member.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            peak = max(peak, total)

    sampler = threading.Thread(target=sample)
    sampler.start()
    status = process.wait()
    done.set()
    sampler.join()
    if status:
        raise RuntimeError(f"{' '.join(command)} ended with {status}")
    return peak


if __name__ == "__main__":
    main()
