"""Measure the speed and memory of converting and scoring, on generated files of the public sets' shape.

    python benchmarks/data.py

InfoSeek's questions, Wiki6M's articles and Encyclopedic-VQA's dictionary are converted by the command line, and a
prediction for each question of InfoSeek's validation size is scored officially. Memory is that of the whole process
tree, sampled every 50 ms. Nothing is downloaded; the generated files stay in `--run` and are used again.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from results import Benchmark, table

from reflectune.core.partials import writing

WORDS = [f"w{i}" * (1 + i % 3) for i in range(4000)]
CHARACTERS = {"wiki6m": 3_300, "evqa": 7_500}
"""Mean length of an article: 20 GB over 6 M entities, and 15 GB over 2 M articles."""
VALIDATION = {"val_unseen_question": 18_656, "val_unseen_entity": 54_964}
"""Questions of InfoSeek's validation set."""
FACTS = (
    ("Which place is this animal endemic to?", ["China", "People's Republic of China", "cn", "Mainland China", "PRC"]),
    ("What is the date this aircraft took the first flight?", ["1981 September 26", "26 September 1981", "1981-09-26"]),
    ("What is the closest upper taxonomy of this bird?", ["Pavonini"]),
    ("Which city or region does this building locate in?", ["Provence-Alpes-Côte d'Azur", "PACA", "Région Sud"]),
)
"""Questions with the accepted spellings of their answers; each fifth question asks for a number."""
CONVERT = ("-m", "reflectune", "convert")


def question_rows(split: str, count: int) -> Iterator[dict[str, Any]]:
    """Yield rows of InfoSeek's annotation file of a split."""
    for i in range(count):
        question, accepted = FACTS[i % len(FACTS)]
        size = float(i % 900 + 1)
        row = {"data_id": f"infoseek_{split}_{i:08d}", "image_id": f"oven_{i // 2:08d}", "data_split": split}
        if i % 5 == 0:
            answers = {"answer": [str(size)], "answer_eval": [{"wikidata": size, "range": [0.9 * size, 1.1 * size]}]}
            yield {**row, "question": "What is the length of this bird in centimetre?", **answers}
        else:
            yield {**row, "question": question, "answer": accepted[:1], "answer_eval": accepted}


def entity_rows(split: str, count: int) -> Iterator[dict[str, Any]]:
    """Yield the entity of each question; there are about 6,000 in InfoSeek's training data."""
    for i in range(count):
        entity = i * 7 % 6000
        yield {"data_id": f"infoseek_{split}_{i:08d}", "entity_id": f"Q{entity}", "entity_text": f"Entity {entity}"}


def wiki6m_rows(count: int) -> Iterator[dict[str, Any]]:
    """Yield articles of Wiki6M."""
    rng = random.Random(0)
    for i in range(count):
        sections = article(rng, CHARACTERS["wiki6m"])
        content = sections[0] + "".join(f"## Heading {n}.{text}" for n, text in enumerate(sections[1:]))
        row = {"wikidata_id": f"Q{i}", "wikipedia_title": f"Title {i}", "wikipedia_content": content}
        yield {**row, "wikipedia_image_url": "https://e.org/a.png", "wikipedia_summary": sections[0][:400]}


def evqa_lines(count: int) -> Iterator[str]:
    """Yield the lines of Encyclopedic-VQA's dictionary of articles, one JSON object."""
    rng = random.Random(0)
    for i in range(count):
        sections, url = article(rng, CHARACTERS["evqa"]), f"https://en.wikipedia.org/wiki/Title_{i}"
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


def article(rng: random.Random, characters: int) -> list[str]:
    """Draw the texts of some sections, `characters` long together on average."""
    count = rng.randint(2, 8)
    texts = []
    for _ in range(count):
        words = rng.choices(WORDS, k=max(8, int(rng.uniform(0.5, 1.5) * characters / count / 10)))
        sentences = [" ".join(words[n : n + 16]).capitalize() + "." for n in range(0, len(words), 16)]
        texts.append(" ".join(sentences))
    return texts


def generate(path: Path, lines: Callable[[], Iterator[str]]) -> Path:
    """Write a file unless it exists."""
    if not path.is_file():
        with writing(path) as unfinished, unfinished.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines())
    return path


def as_json(rows: Iterator[dict[str, Any]]) -> Iterator[str]:
    """Yield rows as lines of JSON."""
    return map(json.dumps, rows)


def measured(name: str, rows: int, size: int, command: list[str]) -> dict[str, Any]:
    """Run a command; return its seconds, CPU seconds and peak memory."""
    start, cpu = time.perf_counter(), _children_seconds()
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    peak, done = [0], threading.Event()
    sampler = threading.Thread(target=_sample, args=(process.pid, peak, done))
    sampler.start()
    _, errors = process.communicate()
    done.set()
    sampler.join()
    if process.returncode:
        sys.exit(f"{name} ended with status {process.returncode}:\n{errors.decode()[-2000:]}")
    seconds = {"seconds": round(time.perf_counter() - start, 1), "CPU seconds": round(_children_seconds() - cpu, 1)}
    return {"rows": rows, "bytes": size, **seconds, "peak, bytes": peak[0]}


def _sample(pid: int, peak: list[int], done: threading.Event) -> None:
    tree = psutil.Process(pid)
    while not done.wait(0.05):
        total = 0
        try:
            for member in [tree, *tree.children(recursive=True)]:
                total += member.memory_info().rss
        except psutil.NoSuchProcess:
            continue
        peak[0] = max(peak[0], total)


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def knowledge(run: Path, reader: str, count: int) -> dict[str, Any]:
    """Convert a knowledge base."""
    source = run / f"{reader}_{count}.{'jsonl' if reader == 'wiki6m' else 'json'}"
    generate(source, lambda: as_json(wiki6m_rows(count)) if reader == "wiki6m" else evqa_lines(count))
    output = run / f"converted_{reader}"
    shutil.rmtree(output, ignore_errors=True)
    command = [*CONVERT, "--output", str(output), "--knowledge", reader, "--knowledge_source", str(source)]
    figures = measured(reader, count, source.stat().st_size, command)
    shutil.rmtree(output)
    return figures


def questions(run: Path, name: str, splits: dict[str, int]) -> dict[str, Any]:
    """Convert questions of InfoSeek with their entities; the data set stays in `run/NAME`."""
    root, size, files = run / f"{name}_source", 0, dict[str, dict[str, str]]()
    root.mkdir(parents=True, exist_ok=True)
    for split, count in splits.items():
        paths = {
            "annotations": generate(root / f"{split}.jsonl", partial(as_json, question_rows(split, count))),
            "withkb": generate(root / f"{split}_withkb.jsonl", partial(as_json, entity_rows(split, count))),
        }
        files[split] = {kind: path.name for kind, path in paths.items()}
        size += sum(path.stat().st_size for path in paths.values())
    shutil.rmtree(run / name, ignore_errors=True)
    command = [*CONVERT, "--output", str(run / name), "--questions", "infoseek", "--root", str(root)]
    return measured(name, sum(splits.values()), size, [*command, "--splits", json.dumps(files)])


def scoring(run: Path, dataset: Path) -> dict[str, Any]:
    """Score a prediction for every question of a data set of validation size."""
    count = sum(VALIDATION.values())

    def predictions() -> Iterator[str]:
        rng = random.Random(0)
        for split, questions_of_split in VALIDATION.items():
            for row in question_rows(split, questions_of_split):
                answer = row["answer"][0] if rng.random() < 0.3 else " ".join(rng.choices(WORDS, k=3))
                yield json.dumps({"data_id": row["data_id"], "prediction": answer})

    path = generate(run / "predictions.jsonl", predictions)
    command = ["-m", "reflectune", "score", "--predictions", str(path), "--dataset", str(dataset)]
    return measured("scoring", count, path.stat().st_size, [*command, "--output", str(run / "scores.json")])


def tables(figures: dict[str, Any]) -> list[str]:
    """Return the page's table."""
    rows = [
        (
            name,
            row["rows"],
            f"{row['bytes'] / 2**20:,.0f}",
            row["seconds"],
            round(row["rows"] / row["seconds"]),
            round(row["rows"] / row["CPU seconds"]),
            round(row["peak, bytes"] / 2**20),
        )
        for name, row in figures.items()
    ]
    return table(("", "rows", "file, MiB", "seconds", "rows/s", "rows a CPU second", "peak memory, MiB"), rows)


def claims(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the rows of the board."""
    row = figures["Wiki6M's articles"]
    rate = f"{row['rows'] / row['seconds']:,.0f} articles/s, {row['peak, bytes'] / 2**20:,.0f} MiB"
    return [("50,000 of Wiki6M's articles converted", rate, f"a file of {row['bytes'] / 2**20:,.0f} MiB")]


BENCHMARK = Benchmark(
    "data",
    "Converting and scoring",
    """
Generated files of the public sets' shape. Each row is one command, with the start of Python, reading, checks and
writing; scoring has the official score with its intervals, for as many predictions as InfoSeek's validation set has
questions. Memory is the peak of all processes together.
""",
    tables,
    claims,
)


def main() -> None:
    """Measure every command, and write the results."""
    parser = BENCHMARK.parser(__doc__)
    parser.add_argument("--articles", type=int, default=50_000)
    parser.add_argument("--questions", type=int, default=300_000)
    parser.add_argument("--run", type=Path, default=Path("runs/data_benchmark"), help="folder of the generated files")
    arguments = BENCHMARK.parse(parser)
    run = arguments.run
    run.mkdir(parents=True, exist_ok=True)
    figures = {
        "InfoSeek's questions": questions(run, "train", {"train": arguments.questions}),
        "Wiki6M's articles": knowledge(run, "wiki6m", arguments.articles),
        "Encyclopedic-VQA's articles": knowledge(run, "evqa", arguments.articles),
    }
    questions(run, "validation", VALIDATION)
    figures["official score of InfoSeek's validation set"] = scoring(run, run / "validation")
    return BENCHMARK.finish(figures, arguments)


if __name__ == "__main__":
    main()
