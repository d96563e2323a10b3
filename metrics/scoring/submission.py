"""Write answers in the layouts that the official programs of InfoSeek, Encyclopedic-VQA and VQA score.

InfoSeek's rows have `data_id` and `prediction`; VQA's are one array of `question_id`, an integer, and `answer`. E-VQA's
CSV has no ids: its n-th row, from 0, is `E-VQA_n` (EchoSight's name), with n in `Question.meta["row"]`.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from reflectune.core.durable import write_atomically
from reflectune.core.errors import UserError
from reflectune.core.types import Metric, Question
from reflectune.metrics.scoring.predictions import read_predictions
from reflectune.metrics.scoring.registry import evqa_candidate, evqa_type
from reflectune.metrics.scoring.scoring import join

Layout = Literal["infoseek", "evqa", "vqa"]
LAYOUT_OF: Mapping[Metric, Layout] = {"infoseek": "infoseek", "evqa": "evqa", "evqa_exact": "evqa", "vqa": "vqa"}
"""Layout of a data set's metric; other metrics have no official program that reads files."""

_IN_EVQA = re.compile(r"E-VQA_(0|[1-9]\d*)")


@dataclass(frozen=True)
class _Form:
    """Fields of a layout, and the id and further fields of a question's row."""

    id_field: str
    answer_field: str
    is_array: bool
    key: Callable[[Question], str | int]
    extra: Callable[[Question], dict[str, Any]] = lambda question: {}


def write_submission(
    path: Path,
    layout: Layout,
    predictions: Path,
    questions: Sequence[Question],
    official: Path | None = None,
    *,
    answered_splits_only: bool = False,
    fill: bool = False,
) -> str:
    """Write the answers of a prediction file for an official program. Returns a line about the file.

    Args:
        path: File to write.
        layout: Official program.
        predictions: Traces, or a file that `read_predictions` knows.
        questions: Questions of the data set.
        official: Official file of questions, for questions that the data set lacks.
        answered_splits_only: Cover only splits with an answer in the file.
        fill: Give a question without an answer an empty one.

    Raises:
        UserError: The file answers none of the questions, answers one twice, or has no answers; see `submission_rows`.
    """
    joined = join(read_predictions(predictions).rows, questions, "official")
    if not joined.pairs:
        raise UserError(f"{predictions} answers no question of the data set; check its data set and split")
    if joined.doubled:
        raise UserError(f"{joined.doubled[0].where}: this question was answered before; keep one of the answers")
    answers = {}
    for question, prediction in joined.pairs:
        if prediction.answer is None:
            raise UserError(f"{prediction.where}: the file holds no answers, only retrieval results")
        answers[question.id] = prediction.answer
    splits = {question.split for question, _ in joined.pairs}
    covered = [
        question
        for question in questions
        if (not answered_splits_only or question.split in splits) and question.is_knowledge_based is not False
    ]
    expected = official_ids(layout, official) if official is not None else ()
    rows = submission_rows(layout, covered, answers, expected=expected, fill=fill)
    write_atomically(path, as_text(layout, rows))
    unknown = f"; {len(joined.unknown)} answers to unknown questions are left out" if joined.unknown else ""
    return f"submission: {path} ({layout}, {len(rows)} rows{unknown})"


def layout_for(metric: Metric) -> Layout:
    """Return the layout of a data set's metric.

    Raises:
        UserError: The metric has no official program that reads files.
    """
    if metric not in LAYOUT_OF:
        raise UserError(f"no official program reads answers of a data set scored by {metric}; drop `submission`")
    return LAYOUT_OF[metric]


def submission_rows(
    layout: Layout,
    questions: Iterable[Question],
    answers: Mapping[str, str],
    *,
    expected: Iterable[str | int] = (),
    fill: bool = False,
) -> list[dict[str, Any]]:
    """Return one row a question, in the questions' order.

    E-VQA's rows have the arguments of the official function `evaluate_example` next to the id, with commas between the
    items of a list. If a data set has several images of one E-VQA row, the first counts.

    Args:
        layout: Official program.
        questions: Questions to cover.
        answers: Answers by question id.
        expected: Official ids (`official_ids`) to cover too.
        fill: Give a question without an answer an empty one.

    Raises:
        UserError: A question has no answer and `fill` is off, its id doesn't have the layout's form, or two questions
            of different splits have one official id.
    """
    form = _FORMS[layout]
    missing: list[str | int] = []
    rows = []
    by_id = _by_official_id(form, questions)
    for key, question in by_id.items():
        if question.id not in answers:
            missing.append(key)
        answer = answers.get(question.id, "")
        written = evqa_candidate(answer, question) if layout == "evqa" else answer
        rows.append({form.id_field: key, form.answer_field: written, **form.extra(question)})
    absent = [key for key in dict.fromkeys(expected) if key not in by_id]
    if absent and layout == "evqa":
        raise UserError(
            f"the data set lacks {len(absent)} of the official questions, e.g. {absent[0]}, and a row of E-VQA says "
            "what was asked; convert the set again without `on_error: skip`"
        )
    if (missing or absent) and not fill:
        raise UserError(
            f"{len(missing) + len(absent)} of {len(rows) + len(absent)} questions have no answer, e.g. "
            f"{[*missing, *absent][0]}; answer them, set `splits`, or set `fill_missing` to give them an empty one, "
            "which counts as wrong"
        )
    return rows + [{form.id_field: key, form.answer_field: ""} for key in absent]


def as_text(layout: Layout, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as JSONL, or one JSON array for VQA; in ASCII, which every encoding reads."""
    lines = [json.dumps(row) for row in rows]
    return "[\n" + ",\n".join(lines) + "\n]\n" if _FORMS[layout].is_array else "".join(f"{line}\n" for line in lines)


def official_ids(layout: Layout, path: Path) -> list[str | int]:
    """Return the ids of an official file of questions.

    Args:
        layout: Official program.
        path: InfoSeek's annotations (JSONL), E-VQA's CSV, or VQA's JSON with `questions`.

    Raises:
        UserError: The file can't be read, or has a different layout.
    """
    try:
        if layout == "evqa":
            with path.open(encoding="utf-8", newline="") as file:
                return [f"E-VQA_{number}" for number, _ in enumerate(csv.DictReader(file))]
        if layout == "vqa":
            return [int(row["question_id"]) for row in json.loads(path.read_text(encoding="utf-8"))["questions"]]
        with path.open(encoding="utf-8") as file:
            return [str(json.loads(line)["data_id"]) for line in file if line.strip()]
    except (OSError, ValueError, RecursionError, KeyError, TypeError, csv.Error) as error:
        raise UserError(
            f"{path} is not a file of questions in the layout {layout} ({error!r}); name another"
        ) from error


def _by_official_id(form: _Form, questions: Iterable[Question]) -> dict[str | int, Question]:
    """Return the first question of each official id, in order; UserError if two splits share an id."""
    by_id: dict[str | int, Question] = {}
    for question in questions:
        first = by_id.setdefault(form.key(question), question)
        if first.split != question.split:
            raise UserError(
                f"{form.key(question)} is a question of {first.split} and of {question.split}; a file holds one split: "
                "set `splits`"
            )
    return by_id


def _evqa_id(question: Question) -> str:
    row = question.meta.get("row", "")
    if not _IN_EVQA.fullmatch(f"E-VQA_{row}"):
        raise UserError(
            f"question {question.id} does not say which row of Encyclopedic-VQA's CSV it is (`row` of its `meta`); "
            "convert the set with the reader `evqa`"
        )
    return f"E-VQA_{row}"


def _vqa_id(question: Question) -> int:
    if not re.fullmatch(r"\d+", question.id):
        raise UserError(
            f"question {question.id} has an id that isn't a number, as VQA's layout requires; the set is not OK-VQA or "
            "VQA"
        )
    return int(question.id)


_FORMS: Mapping[Layout, _Form] = {
    "infoseek": _Form("data_id", "prediction", False, attrgetter("id")),
    "evqa": _Form(
        "data_id",
        "candidate",
        False,
        _evqa_id,
        # the arguments of `evaluate_example` next to the candidate
        lambda q: {"question": q.text, "reference_list": list(q.answers), "question_type": evqa_type(q)},
    ),
    "vqa": _Form("question_id", "answer", True, _vqa_id),
}
