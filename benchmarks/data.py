"""Speed and memory of the data code, on generated files of the public sets' shape.

    python benchmarks/data.py --folder /tmp/data_benchmark [--articles 50000] [--questions 1000000]

Each knowledge base is converted at two sizes, four times apart. Memory is that of the whole process tree, sampled
every 50 ms. Nothing is downloaded; what is generated stays in the folder, and is used again.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from reflectune.core.types import Entry
from reflectune.data_builders.readers.base import Images
from reflectune.data_builders.readers.registry import knowledge_reader, question_reader
from reflectune.retrieval.passages import Cut, split_passages

WORDS = [f"w{i}" * (1 + i % 3) for i in range(4000)]
ARTICLE_CHARACTERS = {"wiki6m": 3_300, "evqa": 7_500}
"""Mean length of an article: 20 GB over 6 M entities, and 15 GB over 2 M articles."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--articles", type=int, default=50_000)
    parser.add_argument("--questions", type=int, default=1_000_000)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    print("| what | size | seconds | rate | memory |\n|---|---|---|---|---|", flush=True)
    infoseek(arguments.folder, arguments.questions)
    for reader in ("wiki6m", "evqa"):
        for times in (1, 4):
            conversion(arguments.folder, reader, times * arguments.articles)
    passages(arguments.folder, arguments.articles)


def infoseek(folder: Path, count: int) -> None:
    """Rows of InfoSeek read, joined with their entities and validated in this process."""
    files = {name: folder / f"infoseek_{count}_{name}.jsonl" for name in ("annotations", "withkb")}
    generate(files["annotations"], lambda: (json.dumps(question_row(i)) for i in range(count)))
    generate(files["withkb"], lambda: (json.dumps(entity_row(i)) for i in range(count)))
    start = time.perf_counter()
    rows = sum(1 for _ in question_reader("infoseek")(files, split="train", images=Images(None)))
    seconds = time.perf_counter() - start
    if rows != count:
        raise RuntimeError(f"{rows} of {count} rows of InfoSeek were good")
    show("InfoSeek read, one core", files["annotations"], seconds, f"{rows / seconds:,.0f} rows/s", 0)


def conversion(folder: Path, reader: str, count: int) -> None:
    """A knowledge base converted by the command line, on all cores."""
    source = folder / f"{reader}_{count}.{'jsonl' if reader == 'wiki6m' else 'json'}"
    generate(source, lambda: wiki6m_lines(count) if reader == "wiki6m" else evqa_lines(count))
    output = folder / f"converted_{reader}_{count}"
    shutil.rmtree(output, ignore_errors=True)
    command = [sys.executable, "-m", "reflectune.data_builders.convert", "--output", str(output)]
    command += ["--knowledge", reader, "--knowledge_source", str(source)]
    start = time.perf_counter()
    peak = peak_memory(command)
    seconds = time.perf_counter() - start
    shutil.rmtree(output)
    show(f"{reader} converted", source, seconds, f"{count / seconds:,.0f} articles/s", peak)


def passages(folder: Path, count: int) -> None:
    """Articles cut in each of the four ways."""
    reader = knowledge_reader("wiki6m")
    source = folder / f"wiki6m_{count}.jsonl"
    entries: list[Entry] = []
    for _, row in reader.read_source(source, lambda error: None):
        entries.append(reader.entry(row, Images(None)))
        if len(entries) == 5000:
            break
    size = sum(len(section.text.encode()) for entry in entries for section in entry.sections)
    cuts: tuple[Cut, ...] = ("paragraphs", "sections", "windows", "words")
    for cut in cuts:
        start = time.perf_counter()
        for entry in entries:
            split_passages(entry, lead="first_sentence", cut=cut)
        seconds = time.perf_counter() - start
        print(
            f"| passages: {cut} | {size / 1e6:.0f} MB | {seconds:.1f} | {size / 1e6 / seconds:.0f} MB/s | |", flush=True
        )


def generate(path: Path, lines: Callable[[], Iterator[str]]) -> None:
    """Write a file, unless it is there."""
    if path.is_file():
        return
    partial = path.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as file:
        for line in lines():
            file.write(line + "\n")
    partial.replace(path)


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


def show(what: str, source: Path, seconds: float, rate: str, peak: int) -> None:
    size = f"{source.stat().st_size / 2**20:,.0f} MiB"
    print(f"| {what} | {size} | {seconds:.1f} | {rate} | {f'{peak / 2**20:,.0f} MiB' if peak else ''} |", flush=True)


if __name__ == "__main__":
    main()
