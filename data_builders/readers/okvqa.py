"""OK-VQA: questions about COCO's images that need outside knowledge, with the answers of ten annotators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import ijson

from reflectune.core.errors import UserError
from reflectune.core.rejected import BadRow, Reject, stop
from reflectune.core.types import Question
from reflectune.data_builders.readers.files import open_source
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.json_documents import json_reader_of, read_json_array
from reflectune.data_builders.readers.rows import Placed, SourceRow, each, integer, placed, rows, text

ROLES = ("questions", "annotations")

_Annotation = tuple[tuple[str, ...], dict[str, str]]


def questions(
    source: Path | Mapping[str, Any],
    *,
    split: str,
    images: ImageFolder,
    reject: Reject = stop,
    raw_answers: bool = False,
) -> Iterator[Placed[Question]]:
    """Yield the questions of a pair of files from okvqa.allenai.org. VQA v2's files have the same layout.

    - `OpenEnded_mscoco_{train,val}2014_questions.json`: an object with `info`, `task_type`, `data_type`, `license`,
      `data_subtype` (`train2014` or `val2014`) and `questions[{image_id, question, question_id}]`;
    - `mscoco_{train,val}2014_annotations.json`: an object with `info`, `license`, `data_subtype`, in OK-VQA
      `question_types` (the name of each kind of question), and `annotations[{question_id, image_id, question_type,
      answer_type, answers[{answer_id, answer, raw_answer, answer_confidence}]}]`; other fields are not read.

    All ten answers are kept, with repetitions, since the VQA metric counts them. The most frequent comes first, since
    training reads `answers[0]`. OK-VQA's `answer` is stemmed ("race" for "racing"), as its metric expects.

    `Question.meta` has the kind of question (`question_type`) and VQA's kind of answer (`answer_type`: `yes/no`,
    `number`, `other`), for break-downs. Memory holds the annotations.

    Args:
        source: The two files, `{questions, annotations}`.
        images: Folder of COCO's images, `COCO_{data_subtype}_{image_id, twelve digits}.jpg`, or of `{train,val}2014`.
        raw_answers: Read each annotator's `raw_answer`, which is not stemmed, for training.

    Raises:
        UserError: A role is missing or unknown, or a file doesn't name its part of COCO.
    """
    files = _files(source)
    annotations = _annotations(files["annotations"], reject, "raw_answer" if raw_answers else "answer")
    part = _member(files["questions"], "data_subtype")
    if not isinstance(part, str):
        problem = "has no `data_subtype` (train2014, val2014), which the images' names begin with"
        raise UserError(f"{files['questions']} {problem}; download it again")
    make = partial(_question, split=split, images=images, part=part, annotations=annotations)
    yield from placed(read_json_array(files["questions"], reject, "questions.item"), make, reject)


def _files(source: Path | Mapping[str, Any]) -> dict[str, Path]:
    given = source if isinstance(source, Mapping) else {}
    if set(given) != set(ROLES):
        given_roles = ", ".join(given) or f"the path {source}"
        raise UserError(f"OK-VQA is read from the roles {' and '.join(ROLES)}; found {given_roles}")
    return {role: Path(given[role]) for role in ROLES}


def _annotations(path: Path, reject: Reject, field: str) -> dict[int, _Annotation | BadRow]:
    """Return answers and `Question.meta`, or their error, by the question's id."""
    types = _member(path, "question_types")
    names = types if isinstance(types, dict) else {}
    annotations: dict[int, _Annotation | BadRow] = {}

    def add(row: SourceRow) -> None:
        question_id = integer(row, "question_id")
        if question_id in annotations:
            raise row.bad("question_id", "has two annotations", "keep one of them")
        try:
            kind = text(row, "question_type", default="")
            meta = {"question_type": str(names.get(kind, kind)), "answer_type": text(row, "answer_type", default="")}
            annotations[question_id] = _answers(row, field), {name: value for name, value in meta.items() if value}
        except BadRow as error:
            annotations[question_id] = error

    for _ in each(read_json_array(path, reject, "annotations.item"), add, reject):
        pass
    return annotations


def _answers(row: SourceRow, field: str) -> tuple[str, ...]:
    given = [text(answer, field) for answer in rows(row, "answers")]
    if not given:
        raise row.bad("answers", "is empty", "download the file again, or leave the question out")
    counts = Counter(given)
    return tuple(sorted(given, key=lambda answer: -counts[answer]))


def _question(
    row: SourceRow, *, split: str, images: ImageFolder, part: str, annotations: Mapping[int, _Annotation | BadRow]
) -> Question:
    question_id = integer(row, "question_id")
    annotation = annotations.get(question_id)
    if annotation is None:
        raise row.bad("question_id", "has no annotation", "give the annotations of the same split as the questions")
    if isinstance(annotation, BadRow):
        raise annotation
    answers, meta = annotation
    return Question(
        id=str(question_id),
        image=images.path(row, "image_id", f"COCO_{part}_{integer(row, 'image_id'):012d}"),
        text=text(row, "question"),
        answers=answers,
        split=split,
        requires_retrieval=True,
        meta=meta,
    )


def _member(path: Path, name: str) -> Any:
    """Return a member of the file's object, or None; reading the rows raises the error of a damaged file."""
    reader = json_reader_of(path)
    with open_source(path) as file:
        try:
            return next(reader.items(file, name, use_float=True), None)
        except ijson.JSONError:
            return None
