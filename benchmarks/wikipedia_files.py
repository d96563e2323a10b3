"""Generated files of Wikipedia's shape, wiki18 and Wiki6M, with a drawn world's articles, and questions about it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml
from data import wiki6m_lines, wiki18_lines

from reflectune.core.durable import write_atomically
from reflectune.core.partials import writing
from reflectune.core.types import Entry, Question
from reflectune.examples.miniature.world.build import build_world
from reflectune.formats.dataset import Dataset

SPLIT = "val_unseen_question"


def generate(work: Path, rows: int) -> None:
    """Write both files, the questions' file, the pictures, and the configs that convert them."""
    source, world = work / "source", work / "world"
    if not (world / "dataset.json").is_file():
        build_world(world, size="tiny", seed=0)
    dataset = Dataset(world)
    entries = list(dataset.knowledge)
    for entry in entries:
        copy(dataset.knowledge.image_path(entry), source / "wikipedia_images_full" / f"{entry.id}.jpg")
    own_texts = [passage for entry in entries for passage in passages_of(entry)]
    write_lines(source / "wiki18_100w.jsonl", spread(wiki18_lines(rows - len(own_texts)), own_texts, rows))
    own_articles = [article_of(entry) for entry in entries]
    write_lines(source / "Wiki6M_ver_1_0.jsonl", spread(wiki6m_lines(rows - len(entries)), own_articles, rows))
    questions = [question for question in dataset.questions(SPLIT) if question.answer_type != "multi_answer"]
    names = {entry.id: entry.title for entry in entries}
    for question in questions:
        copy(world / question.image, source / "oven_images" / f"{image_id(question)}.jpg")
    write_lines(source / "annotations.jsonl", (json.dumps(annotation(question)) for question in questions))
    named = ({"data_id": q.id, "entity_id": q.entity_ids[0], "entity_text": names[q.entity_ids[0]]} for q in questions)
    write_lines(source / "withkb.jsonl", map(json.dumps, named))
    for name, config in configs(work).items():
        write_atomically(source / f"{name}.yaml", yaml.safe_dump(config))
    print(f"{len(own_texts)} passages and {len(entries)} articles of the world, {len(questions)} questions about it")


def configs(work: Path) -> dict[str, dict[str, object]]:
    """The conversions of both files."""
    shared = {"root": str(work / "source"), "workers": int(os.environ.get("OMP_NUM_THREADS", "0"))}
    texts = {"output": str(work / "texts"), "knowledge": "wiki18", "knowledge_source": "wiki18_100w.jsonl"}
    entries: dict[str, object] = {
        "output": str(work / "dataset"),
        "questions": "infoseek",
        "splits": {SPLIT: {"annotations": "annotations.jsonl", "withkb": "withkb.jsonl"}},
        "images": "oven_images",
        "knowledge": "wiki6m",
        "knowledge_source": "Wiki6M_ver_1_0.jsonl",
        "knowledge_images": "wikipedia_images_full",
    }
    return {"texts": {**shared, **texts}, "dataset": {**shared, **entries}}


def spread(many: Iterable[str], few: list[str], rows: int) -> Iterator[str]:
    """`rows` lines: the few at even distances among the many."""
    places = {i * rows // len(few): line for i, line in enumerate(few)}
    rest = iter(many)
    for place in range(rows):
        yield places[place] if place in places else next(rest)


def passages_of(entry: Entry) -> Iterator[str]:
    """The sections of an entry as rows of wiki18."""
    for number, section in enumerate(entry.sections):
        yield json.dumps({"id": f"{entry.id}-{number}", "contents": f'"{entry.title}"\n{section.text}'})


def article_of(entry: Entry) -> str:
    """An entry as a row of Wiki6M."""
    content = entry.summary + "".join(f"## {section.title}.{section.text}" for section in entry.sections)
    row = {"wikidata_id": entry.id, "wikipedia_title": entry.title, "wikipedia_content": content}
    return json.dumps({**row, "wikipedia_summary": entry.summary, "wikipedia_url": entry.url})


def annotation(question: Question) -> dict[str, object]:
    """A question as a row of InfoSeek."""
    span = question.range and [{"wikidata": sum(question.range) / 2, "range": list(question.range)}]
    return {
        "data_id": question.id,
        "image_id": image_id(question),
        "question": question.text,
        "answer": list(question.answers[:1]),
        "answer_eval": span or list(question.answers),
        "data_split": SPLIT,
    }


def image_id(question: Question) -> str:
    """The id of a question's picture, made of its path in the world."""
    return Path(question.image).with_suffix("").as_posix().replace("/", "_")


def copy(path: Path, to: Path) -> None:
    """Copy a file, unless it is there."""
    to.parent.mkdir(parents=True, exist_ok=True)
    if not to.is_file():
        shutil.copyfile(path, to)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a file, unless it is there; it appears whole or not at all."""
    if not path.is_file():
        with writing(path) as partial, partial.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
