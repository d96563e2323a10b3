"""HotpotQA: questions over two Wikipedia articles, and the articles.

The paragraphs that come with the questions are the knowledge base: an entry for each title, with one section.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from reflectune.core.rejected import BadRow, Reject, stop
from reflectune.core.types import Entry, Evidence, Question, Section
from reflectune.data_builders.readers.files import one_path, read_parquet
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.json_documents import read_json_array
from reflectune.data_builders.readers.rows import Placed, SourceRow, mapping, placed, text, texts


def questions(
    source: Path | Mapping[str, Any], *, split: str, images: ImageFolder, reject: Reject = stop
) -> Iterator[Placed[Question]]:
    """Yield the questions, without images, from one of two layouts:

    - the authors' JSON arrays (`hotpot_train_v1.1.json`, `hotpot_dev_{distractor,fullwiki}_v1.json`) of `{_id,
      question, answer, supporting_facts[[title, sentence]], context[[title, [sentence, …]]], type, level}`; the test
      file has no answers and no supporting facts;
    - Parquet files from the Hub (`hotpotqa/hotpot_qa`): `{id, question, answer, type, level, supporting_facts{title,
      sent_id}, context{title, sentences}}`.

    The titles of the supporting facts, each once and in order, are a question's entities and its evidence. In the
    fullwiki file the context may lack them. `Question.meta` has `type` (`bridge` or `comparison`) and `level`.

    Args:
        source: A JSON file, a Parquet file, or a folder of Parquet files.
        images: Not read.

    Raises:
        UserError: The source is not a path, or the file is missing or damaged.
    """
    return placed(_rows(one_path(source, "HotpotQA"), reject), partial(_question, split=split), reject)


def read_source(path: Path, reject: Reject = stop) -> Iterator[tuple[int, SourceRow]]:
    """Yield the paragraphs of the same files, `{title, sentences}`, the first of each title."""
    seen: set[str] = set()
    for number, row in _rows(path, reject):
        try:
            paragraphs = _pairs(row, "context", "sentences")
        except BadRow as error:
            reject(error)
            continue
        for title, sentences in paragraphs:
            if title not in seen:
                seen.add(title)
                yield number, SourceRow({"title": title, "sentences": sentences}, row.file, number, "title")


def entry(row: SourceRow, images: ImageFolder) -> Entry:
    """Make an entry of a paragraph, which is the article's summary, too."""
    title, paragraph = text(row, "title"), " ".join(texts(row, "sentences", empty=True))
    return Entry(id=title, title=title, summary=paragraph, sections=(Section(title, paragraph),))


def _rows(path: Path, reject: Reject) -> Iterator[tuple[int, SourceRow]]:
    parquet = path.is_dir() or path.suffix.lower() == ".parquet"
    return (read_parquet if parquet else read_json_array)(path, reject)


def _question(row: SourceRow, *, split: str) -> Question:
    facts = _pairs(row, "supporting_facts", "sent_id") if row.get("supporting_facts") is not None else []
    titles = tuple(dict.fromkeys(title for title, _ in facts))
    answer = text(row, "answer", default="")
    return Question(
        id=text(row, "_id" if "_id" in row else "id"),
        image="",
        text=text(row, "question"),
        answers=(answer,) if answer else (),
        split=split,
        requires_retrieval=True,
        entity_ids=titles,
        evidence=tuple(Evidence(title, 0) for title in titles),
        meta={name: text(row, name) for name in ("type", "level") if row.get(name)},
    )


def _pairs(row: SourceRow, field: str, second: str) -> list[tuple[str, Any]]:
    """Return pairs of a title and its value: a list of pairs, or on the Hub an object of two lists."""
    value = row.get(field)
    if isinstance(value, dict):
        lists = mapping(row, field)
        titles, others = lists.get("title"), lists.get(second)
        same = isinstance(titles, list) and isinstance(others, list) and len(titles) == len(others)
        value = list(zip(titles or (), others or (), strict=True)) if same else None
    if not isinstance(value, list) or not all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 and isinstance(pair[0], str) and pair[0].strip()
        for pair in value
    ):
        problem = "is missing" if field not in row else "is not a list of pairs of a title and its value"
        raise row.bad(field, problem, f"it should be [[title, {second}], …]: download the file again")
    return [(pair[0].strip(), pair[1]) for pair in value]
