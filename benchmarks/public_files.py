"""Files in the layouts and under the names of the public downloads, about a tiny drawn world, with any number of rows.

    python benchmarks/public_files.py --rows 1000 --data runs/rehearsal/lab

What both papers' lists of downloads name is written below DATA/data: InfoSeek with OVEN's pictures and Wiki6M,
Encyclopedic-VQA with both of its sets of pictures, its knowledge base and Lens results, Natural Questions,
LLaVA-Instruct, and ReflectiVA's articles. Questions of the world are repeated until there are so many; its articles
stand among others of drawn words. A file that is there is left as it is.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from data import evqa_lines, wiki6m_lines
from wikipedia_files import annotation, article_of, copy, spread

from reflectune.core.partials import writing
from reflectune.core.types import Entry, Question
from reflectune.examples.miniature.world.build import build_world
from reflectune.formats.dataset import Dataset

WIKI = "https://en.wikipedia.org/wiki/"
EVQA_COLUMNS = (
    "question,answer,dataset_image_ids,dataset_name,dataset_category_id,question_type,wikipedia_url,wikipedia_title,"
    "evidence,evidence_section_id,evidence_section_title,encyclopedic_vqa_split,question_original,"
    "wikipedia_url_used_in_train"
).split(",")
_HALVES = ("val_unseen_question", "val_unseen_entity")


@dataclass(frozen=True)
class Rows:
    """How many rows the files have; the true counts are the defaults, Wiki6M's sliced to its first million.

    Attributes:
        infoseek: Training questions of InfoSeek.
        validation: Its validation questions.
        wiki6m: Articles of Wiki6M.
        reflectiva: Of ReflectiVA's knowledge base.
        evqa: Training questions of Encyclopedic-VQA.
        test: Its test questions.
        articles: Of its knowledge base.
        nq: Natural Questions.
        llava_instruct: Conversations of LLaVA-Instruct.
    """

    infoseek: int = 934_048
    validation: int = 73_620
    wiki6m: int = 1_000_000
    reflectiva: int = 100_000
    evqa: int = 1_000_000
    test: int = 5_750
    articles: int = 200_000
    nq: int = 30_000
    llava_instruct: int = 157_712

    def scaled(self, share: float) -> Rows:
        """So much of each, and at least 200, which hold the world's own articles."""
        return Rows(**{name: max(200, round(count * share)) for name, count in vars(self).items()})


def write_public_files(data: Path, rows: Rows) -> None:
    """Write all files below a folder's `data`.

    Args:
        data: The folder that a reproduction is given as `--data`.
        rows: How many each has.
    """
    world = data / "world"
    if not (world / "dataset.json").is_file():
        build_world(world, size="tiny", seed=0)
    dataset, root = Dataset(world), data / "data"
    entries = list(dataset.knowledge)
    train = [question for question in dataset.questions("train") if question.answer_type != "multi_answer"]
    held = {name: list(dataset.questions(name)) for name in _HALVES}
    halves = {name: [one for one in asked if one.answer_type != "multi_answer"] for name, asked in held.items()}
    _write_infoseek(root / "infoseek", dataset, entries, train, halves, rows)
    _write_evqa(root / "evqa", dataset, entries, list(dataset.questions("train")), held, rows)
    _write_lines(root / "nq/v1.0-simplified_simplified-nq-train.jsonl.gz", nq_lines(entries, train, rows.nq))
    _write_conversations(root / "llava_instruct", dataset, entries, rows.llava_instruct)
    others = wiki6m_lines(max(0, rows.reflectiva - len(entries)))
    lines = spread(others, [article_of(entry) for entry in entries], max(rows.reflectiva, len(entries)))
    _write_lines(root / "reflectiva/Wiki100k_ver_1_0-all.json", _as_dict(lines))


def _write_infoseek(
    folder: Path,
    dataset: Dataset,
    entries: list[Entry],
    train: list[Question],
    halves: dict[str, list[Question]],
    rows: Rows,
) -> None:
    names = {entry.id: entry.title for entry in entries}
    for entry in entries:
        place = folder / "wikipedia_images_full" / entry.id[:4] / f"{entry.id}.jpg"
        copy(dataset.knowledge.image_path(entry), place)
    asked = [*train, *(question for questions in halves.values() for question in questions)]
    pictures = {image: f"oven_{n:08d}" for n, image in enumerate(dict.fromkeys(q.image for q in asked))}
    for image, name in pictures.items():
        copy(dataset.root / image, folder / "oven_images" / name[5:7] / f"{name}.jpg")
    splits = {
        "train": [(question, "train") for question in train],
        "val": [(question, half) for half, questions in halves.items() for question in questions],
    }
    for split, questions in splits.items():
        count = rows.infoseek if split == "train" else rows.validation
        repeated = [*islice(cycle(questions), count)]
        rows_of = (
            {
                **annotation(question),
                "data_id": f"infoseek_{split}_{n:08d}",
                "image_id": pictures[question.image],
                "data_split": half,
            }
            for n, (question, half) in enumerate(repeated)
        )
        links = (
            {
                "data_id": f"infoseek_{split}_{n:08d}",
                "entity_id": question.entity_ids[0],
                "entity_text": names[question.entity_ids[0]],
            }
            for n, (question, _) in enumerate(repeated)
        )
        _write_lines(folder / f"infoseek_{split}.jsonl", map(json.dumps, rows_of))
        _write_lines(folder / f"infoseek_{split}_withkb.jsonl", map(json.dumps, links))
    total = max(rows.wiki6m, len(entries))
    own = [article_of(entry) for entry in entries]
    _write_lines(folder / "Wiki6M_ver_1_0.jsonl.gz", spread(wiki6m_lines(total - len(own)), own, total))


def _write_evqa(
    folder: Path,
    dataset: Dataset,
    entries: list[Entry],
    train: list[Question],
    halves: dict[str, list[Question]],
    rows: Rows,
) -> None:
    titles = {entry.id: entry.title for entry in entries}
    held = [question for questions in halves.values() for question in questions]
    pictures = {
        image: hashlib.sha256(image.encode()).hexdigest()[:16]
        for image in dict.fromkeys(q.image for q in (*train, *held))
    }
    for image, name in pictures.items():
        copy(dataset.root / image, folder / "images/landmarks" / "/".join(name[:3]) / f"{name}.jpg")
    first = dataset.root / train[0].image
    names = [("train", 1), ("val", 2)]
    for split, number in names:
        file_name = f"{split}/00000_Animalia/{number}.jpg"
        copy(first, folder / "images/inaturalist" / file_name)
        listing = {"images": [{"id": number, "file_name": file_name}], "annotations": [], "categories": []}
        _write_lines(folder / f"inaturalist/{split}.json", [json.dumps(listing)])
    counts = {"train": (train, rows.evqa, 1), "val": (held, max(50, rows.test // 3), 2), "test": (held, rows.test, 2)}
    for split, (questions, count, number) in counts.items():
        _write_csv(folder / f"{split}.csv", evqa_rows(questions, count, split, pictures, titles, number))
    seen = {
        name: [WIKI + held_question.entity_ids[0]] for held_question in held for name in [pictures[held_question.image]]
    }
    lens = [("dataset_name", "dataset_image_id", "lens_wiki_urls"), ("inaturalist", "2", repr([]))]
    lens += [("landmarks", name, repr(urls)) for name, urls in seen.items()]
    _write_csv(folder / "lens_entities.csv", lens)
    for entry in entries:
        copy(dataset.knowledge.image_path(entry), folder / "kb_images" / f"{entry.id}.jpg")
    _write_zip(folder / "encyclopedic_kb_wiki.zip", "encyclopedic_kb_wiki.json", evqa_articles(entries, rows.articles))


def evqa_rows(
    questions: list[Question], count: int, split: str, pictures: dict[str, str], titles: dict[str, str], number: int
) -> Iterator[list[str]]:
    """A split of Encyclopedic-VQA, its heading first; every fiftieth picture is iNaturalist's."""
    yield list(EVQA_COLUMNS)
    for n, question in enumerate(islice(cycle(questions), count)):
        of_nature = n % 50 == 49
        listed = question.answer_type == "multi_answer"
        kind = "multi_answer" if listed else ("templated", "automatic")[n % 2]
        entity = question.entity_ids[0]
        section = question.evidence[0].section + 1 if question.evidence else 0
        yield [
            question.text,
            "|".join("&&".join(part.strip() for part in answer.split("&&")) for answer in question.answers),
            str(number) if of_nature else pictures[question.image],
            "inaturalist" if of_nature else "landmarks",
            "7",
            kind,
            WIKI + entity,
            titles[entity],
            "",
            str(section),
            "",
            split,
            question.text,
            str(split == "train"),
        ]


def evqa_articles(entries: list[Entry], count: int) -> Iterator[str]:
    """The JSON dict of Encyclopedic-VQA's knowledge base, the world's articles first."""
    for n, entry in enumerate(entries):
        url = WIKI + entry.id
        article = {
            "title": entry.title,
            "section_titles": [entry.title, *(section.title for section in entry.sections)],
            "section_texts": [entry.summary or entry.title, *(section.text for section in entry.sections)],
            "image_urls": [f"https://upload.wikimedia.org/wikipedia/commons/a/ab/{entry.id}.jpg"],
            "image_reference_descriptions": [entry.title],
            "image_section_indices": [0],
            "url": url,
        }
        yield f"{',' if n else '{'}{json.dumps(url)}: {json.dumps(article)}"
    others = max(1, count - len(entries))
    yield from (f",{line[1:]}" if n == 0 else line for n, line in enumerate(evqa_lines(others)))


def nq_lines(entries: list[Entry], questions: list[Question], count: int) -> Iterator[str]:
    """Natural Questions in the simplified layout: the world's own, with its articles as tokens."""
    articles = {entry.id: entry for entry in entries}
    for number, question in enumerate(islice(cycle(questions), count)):
        entry = articles[question.entity_ids[0]]
        tokens = ["<H1>", *entry.title.split(), "</H1>"]
        spans: list[tuple[int, int]] = []
        for section in entry.sections:
            tokens += ["<H2>", *section.title.split(), "</H2>"]
            begin = len(tokens)
            tokens += ["<P>", *section.text.split(), "</P>"]
            spans.append((begin, len(tokens)))
        place = question.evidence[0].section if question.evidence else 0
        yield json.dumps(
            {
                "example_id": number,
                "question_text": question.text,
                "document_title": entry.title,
                "document_url": f"https://en.wikipedia.org//w/index.php?title={entry.id}&amp;oldid=1",
                "document_text": " ".join(tokens),
                "long_answer_candidates": [_span(one, top_level=True) for one in spans],
                "annotations": [_annotation(tokens, spans[place], place, question.answers, number)],
            }
        )


def _annotation(
    tokens: list[str], span: tuple[int, int], place: int, answers: tuple[str, ...], number: int
) -> dict[str, object]:
    """Where the long and the short answer are; the first word of the section if no answer is there."""
    starts = ((answer.split(), at) for answer in answers for at in range(*span))
    short = next(((at, at + len(words)) for words, at in starts if tokens[at : at + len(words)] == words), None)
    return {
        "annotation_id": number,
        "yes_no_answer": "NONE",
        "long_answer": {**_span(span), "candidate_index": place},
        "short_answers": [_span(short or (span[0] + 1, span[0] + 2))],
    }


def _span(span: tuple[int, int], **more: object) -> dict[str, object]:
    return {"start_token": span[0], "end_token": span[1], **more}


def _write_conversations(folder: Path, dataset: Dataset, entries: list[Entry], count: int) -> None:
    names = {entry.id: f"{n:012d}" for n, entry in enumerate(entries)}
    for entry in entries:
        copy(dataset.knowledge.image_path(entry), folder / "coco/train2017" / f"{names[entry.id]}.jpg")
    rows = (
        {
            "id": names[entry.id],
            "image": f"{names[entry.id]}.jpg",
            "conversations": [
                {"from": "human", "value": "<image>\nWhat is shown?"},
                {"from": "gpt", "value": f"A drawing of {entry.title}."},
            ],
        }
        for entry in islice(cycle(entries), count)
    )
    lines = (f"{',' if n else '['}{json.dumps(row)}" for n, row in enumerate(rows))
    _write_lines(folder / "llava_instruct_150k.json", _closed(lines, "]"))


def _as_dict(lines: Iterable[str]) -> Iterator[str]:
    """Rows of Wiki6M as ReflectiVA's dict, by their ids."""
    pairs = (
        f"{',' if n else '{'}{json.dumps(json.loads(line)['wikidata_id'])}: {line}" for n, line in enumerate(lines)
    )
    return _closed(pairs, "}")


def _closed(lines: Iterable[str], end: str) -> Iterator[str]:
    yield from lines
    yield end


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a text file, packed if it is called `.gz`."""

    def fill(partial: Path) -> None:
        packed = path.suffix == ".gz"
        with gzip.open(partial, "wt", 1, "utf-8") if packed else partial.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)

    _write(path, fill)


def _write_csv(path: Path, rows: Iterable[Iterable[str]]) -> None:
    def fill(partial: Path) -> None:
        with partial.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(rows)

    _write(path, fill)


def _write_zip(path: Path, member: str, lines: Iterable[str]) -> None:
    def fill(partial: Path) -> None:
        with (
            zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
            archive.open(member, "w", force_zip64=True) as file,
        ):
            for line in lines:
                file.write(f"{line}\n".encode())

    _write(path, fill)


def _write(path: Path, fill: Callable[[Path], None]) -> None:
    """Write a file whole or not at all, unless it is there."""
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing(path) as partial:
            fill(partial)


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=934_048, help="of InfoSeek's training file; others in proportion")
    parser.add_argument("--data", type=Path, default=Path("runs/rehearsal/lab"), help="the reproduction's `--data`")
    options = parser.parse_args()
    write_public_files(options.data, Rows().scaled(options.rows / Rows.infoseek))


if __name__ == "__main__":
    main()
