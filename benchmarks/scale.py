"""Measure the way from Wikipedia's files to evaluated answers, on generated files of any number of rows.

    python benchmarks/scale.py --rows 200000 2000000

A wiki18 and a Wiki6M of `--rows` rows each are generated, with the articles of a miniature world spread among them.
They are converted, indexed (store `faiss`, the miniature's encoders) and searched, and questions about the world are
answered from both. Each step is a command. A finished step is not run again.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from data import CONVERT, WORDS, generate, measured, wiki6m_rows
from results import Benchmark, table

from reflectune.core.durable import read_json, write_json
from reflectune.core.types import Entry, Question
from reflectune.examples.miniature.world.build import build_world
from reflectune.formats.dataset import Dataset

SPLIT = "val_unseen_question"
PIPELINES = ("naive_rag", "text_rag", "pmsr")
SHORT_WORDS = WORDS[::3]
TEXT_TOKENS = 32
"""Tokens of a passage that the text encoder reads."""


def generate_files(run: Path, rows: int) -> None:
    """Write both knowledge bases, the questions, their pictures, and the configs of the conversions."""
    source, world = run / "source", run / "world"
    if not (world / "dataset.json").is_file():
        build_world(world, size="tiny", seed=0)
    dataset = Dataset(world)
    entries = list(dataset.knowledge)
    questions = [question for question in dataset.questions(SPLIT) if question.answer_type != "multi_answer"]
    titles = {entry.id: entry.title for entry in entries}
    pictures = {source / f"entry_images/{entry.id}.jpg": dataset.knowledge.image_path(entry) for entry in entries}
    pictures |= {source / f"question_images/{image_id(q)}.jpg": world / q.image for q in questions}
    for path, picture in pictures.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(picture, path)
    texts = [line for entry in entries for line in passage_lines(entry)]
    articles = [article_line(entry) for entry in entries]
    drawn = (json.dumps(row) for row in wiki6m_rows(rows - len(articles)))
    generate(source / "wiki18.jsonl", lambda: spread(wiki18_lines(rows - len(texts)), texts, rows))
    generate(source / "wiki6m.jsonl", lambda: spread(drawn, articles, rows))
    generate(source / "annotations.jsonl", lambda: (json.dumps(annotation(question)) for question in questions))
    entities = (
        {"data_id": q.id, "entity_id": q.entity_ids[0], "entity_text": titles[q.entity_ids[0]]} for q in questions
    )
    generate(source / "withkb.jsonl", lambda: map(json.dumps, entities))
    settings = {
        "output": str(run / "dataset"),
        "root": str(source),
        "questions": "infoseek",
        "splits": {SPLIT: {"annotations": "annotations.jsonl", "withkb": "withkb.jsonl"}},
        "images": "question_images",
        "knowledge": "wiki6m",
        "knowledge_source": "wiki6m.jsonl",
        "knowledge_images": "entry_images",
    }
    (run / "dataset.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")


def wiki18_lines(count: int) -> Iterator[str]:
    """Yield passages of 100 words, as wiki18's are."""
    rng = random.Random(0)
    for i in range(count):
        text = " ".join(rng.choices(SHORT_WORDS, k=100))
        yield json.dumps({"id": str(i), "contents": f'"Title {i // 7}"\n{text.capitalize()}.'})


def spread(many: Iterable[str], few: list[str], rows: int) -> Iterator[str]:
    """Yield `rows` lines: the few at even distances among the many."""
    inserted = {i * rows // len(few): line for i, line in enumerate(few)}
    rest = iter(many)
    for row in range(rows):
        yield inserted[row] if row in inserted else next(rest)


def passage_lines(entry: Entry) -> Iterator[str]:
    """Yield the sections of an entry as rows of wiki18."""
    for number, section in enumerate(entry.sections):
        yield json.dumps({"id": f"{entry.id}-{number}", "contents": f'"{entry.title}"\n{section.text}'})


def article_line(entry: Entry) -> str:
    """Return an entry as a row of Wiki6M."""
    content = entry.summary + "".join(f"## {section.title}.{section.text}" for section in entry.sections)
    row = {"wikidata_id": entry.id, "wikipedia_title": entry.title, "wikipedia_content": content}
    return json.dumps({**row, "wikipedia_summary": entry.summary, "wikipedia_url": entry.url})


def annotation(question: Question) -> dict[str, Any]:
    """Return a question as a row of InfoSeek."""
    numbers = question.range and [{"wikidata": sum(question.range) / 2, "range": list(question.range)}]
    return {
        "data_id": question.id,
        "image_id": image_id(question),
        "question": question.text,
        "answer": list(question.answers[:1]),
        "answer_eval": numbers or list(question.answers),
        "data_split": SPLIT,
    }


def image_id(question: Question) -> str:
    """Return an id of the question's picture, made of its path in the world."""
    return Path(question.image).with_suffix("").as_posix().replace("/", "_")


def steps(run: Path, rows: int, questions: int) -> dict[str, tuple[int, list[str], Path | None]]:
    """Return the rows, the command and the output of each step."""
    texts, dataset, index, text_index = (run / name for name in ("texts", "dataset", "index", "text_index"))
    both = f"--dataset {dataset} --splits {SPLIT} --index {index} --text_index {text_index} --device cpu"
    both += f" --text_knowledge {texts}/knowledge"
    wiki18 = f"--output {texts} --knowledge wiki18 --knowledge_source {run}/source/wiki18.jsonl"
    passages = f"--knowledge {texts}/knowledge --encoder miniature/text --max_length {TEXT_TOKENS}"
    entries = f"--knowledge {dataset}/knowledge --encoder miniature/clip --workers 1"
    store = "--store faiss --device cpu --output"
    answers = f"--base_model miniature/llava --pipelines {' '.join(PIPELINES)} --limit {questions} --iterations 1"
    answers += f" --max_record_tokens 16 --max_new_tokens 16 --output {run}/evaluation"
    return {
        "convert wiki18": (rows, [*CONVERT, *wiki18.split()], texts),
        "convert Wiki6M and the questions": (rows, [*CONVERT, "--config", str(run / "dataset.yaml")], dataset),
        "index passages": (
            rows,
            ["-m", "reflectune", "build_index", "--rows", "passages", *f"{passages} {store} {text_index}".split()],
            text_index,
        ),
        "index entries": (rows, _command("build_index", f"{entries} {store} {index}"), index),
        "recall": (rows, _command("recall", f"{both} --title_weights 0 0.5 --overlap"), None),
        "evaluate": (questions, _command("evaluate", f"{both} {answers}"), None),
    }


def _command(name: str, options: str) -> list[str]:
    return ["-m", "reflectune", name, *options.split()]


def measure(run: Path, rows: int, questions: int) -> dict[str, Any]:
    """Run the unfinished steps, and return the figures of every step."""
    run.mkdir(parents=True, exist_ok=True)
    record = run / "figures.json"
    figures: dict[str, Any] = read_json(record, "figures") if record.is_file() else {}
    generate_files(run, rows)
    for name, (count, command, output) in steps(run, rows, questions).items():
        if name not in figures:
            print(f"== {name}, {rows:,} rows", flush=True)
            found = measured(name, count, 0, command)
            found["bytes"] = sum(path.stat().st_size for path in output.rglob("*") if path.is_file()) if output else 0
            figures[name] = found
            write_json(record, figures)
    return figures


def tables(figures: dict[str, Any]) -> list[str]:
    """Return the page's table."""
    rows = [
        (
            f"{step}, {int(size):,} rows",
            f"{row['seconds'] / 60:.1f}",
            f"{row['rows'] / row['seconds']:,.0f}" if row["bytes"] else None,
            f"{row['peak, bytes'] / 2**30:.2f}",
            f"{row['bytes'] / 1e9:.2f}" if row["bytes"] else None,
        )
        for size, found in figures.items()
        for step, row in found.items()
    ]
    return table(("step", "minutes", "rows/s", "peak memory, GiB", "GB on the disk"), rows)


def claims(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the rows of the board."""
    size, found = max(figures.items(), key=lambda item: int(item[0]))
    peak = max(row["peak, bytes"] for row in found.values()) / 2**30
    minutes = sum(row["seconds"] for row in found.values()) / 60
    claim = f"Two knowledge bases of {int(size):,} rows: files to answers"
    return [(claim, f"{minutes:.0f} minutes, {peak:.1f} GiB", "none")]


BENCHMARK = Benchmark(
    "scale",
    "From Wikipedia's files to evaluated answers",
    f"""
Two generated files of equally many rows: wiki18's passages of 100 words, and Wiki6M's articles of some 3,300
characters. The articles of a miniature world are spread among both, and questions ask about them alone. Encoders are
the miniature's ({TEXT_TOKENS} tokens of a passage): a real encoder takes most of a build's time. *Peak memory* is that
of all processes of a step, mapped files included, which the system takes back when it needs them.
""",
    tables,
    claims,
)


def main() -> None:
    """Measure every size, and write the results."""
    parser = BENCHMARK.parser(__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[200_000], help="rows of each file")
    parser.add_argument("--questions", type=int, default=6, help="questions of the split that are answered")
    parser.add_argument("--run", type=Path, default=Path("runs/scale"))
    arguments = parser.parse_args()
    if arguments.page:
        return BENCHMARK.write_page(arguments)
    figures = {str(rows): measure(arguments.run / str(rows), rows, arguments.questions) for rows in arguments.rows}
    return BENCHMARK.finish(figures, arguments)


if __name__ == "__main__":
    main()
