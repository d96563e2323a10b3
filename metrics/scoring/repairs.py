"""Repaired answers of a data set's questions, read from a file beside it: the same answers given, scored against both.

Benchmarks have wrong labels. ECCV26-ARA (arXiv 2607.00159, MIT) repaired E-VQA's test set and a part of InfoSeek's
validation set; for other sets a JSONL file says what is repaired.
"""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.metrics.official import infoseek
from reflectune.metrics.official.evqa import QUESTION_TYPES
from reflectune.metrics.official.vqa import DIGITS
from reflectune.metrics.scoring.predictions import Prediction
from reflectune.metrics.scoring.scoring import join

_BEFORE = ("question_before_review", "question_original", "question_before")
"""Where a row has the question as it was, the first that is there: ARA on E-VQA, ARA on InfoSeek, ours."""

_TOLERANCE = 0.1


@dataclass(frozen=True)
class Repair:
    """What a file says of one question.

    Attributes:
        where: `FILE:LINE`, for errors.
        question_id: The question's id in its data set, or `E-VQA_n` for the n-th row of E-VQA's CSV.
        answers: The accepted answers after the repair; () leaves them as they are.
        range: Of a number: the lowest and the highest accepted value after the repair.
        text: The question after the repair; "" leaves it as it is.
        before: The question before, to tell another data set's file; "" if the file doesn't say it.
        dropped: Whether the question can't be mended, and is not to be scored.
        is_one_alias: Whether `answers` is one name alone of an answer that the data set may know by several (InfoSeek).
    """

    where: str
    question_id: str
    answers: tuple[str, ...] = ()
    range: tuple[float, float] | None = None
    text: str = ""
    before: str = ""
    dropped: bool = False
    is_one_alias: bool = False


@dataclass(frozen=True)
class Repaired:
    """A question before and after."""

    before: Question
    after: Question

    @property
    def is_answer_changed(self) -> bool:
        """Whether other answers are accepted."""
        return (self.before.answers, self.before.range) != (self.after.answers, self.after.range)

    @property
    def is_reworded(self) -> bool:
        """Whether it is asked in other words."""
        return _words(self.before.text) != _words(self.after.text)


@dataclass(frozen=True)
class Repairs:
    """A file of repairs, applied to a data set's questions.

    Attributes:
        path: The file.
        kept: By the question's id, each that the file speaks of and that is to be scored.
        dropped: Ids of those that are not to be scored.
        unknown: Rows about no question of the data set.
    """

    path: Path
    kept: Mapping[str, Repaired]
    dropped: tuple[str, ...]
    unknown: int


def read_repairs(path: Path, questions: Sequence[Question]) -> Repairs:
    """Read a file of repairs and apply it.

    - JSONL, a row `{"question_id", "answers"?: […], "range"?: [low, high], "question"?, "question_before"?,
      "dropped"?}`;
    - ARA's `evqa_fixed.csv`: `data_id` (`E-VQA_n`), `question`, `question_before_review`, `answer` (several parted by
      `|`), `question_type`;
    - ARA's `infoseek_fixed.csv`: `data_id`, `question`, `question_original`, `answer`, `question_type` (`String`,
      `Time`, `Numerical`). One name of the answer stands there where InfoSeek accepts many: if it is one of those, all
      stay accepted, else it is the only one. A single number is accepted within 10 %, as ARA's own scorer does. Rows
      tagged `Not_answerable` stay in, as they do there.

    Args:
        path: The file.
        questions: The data set's.

    Raises:
        UserError: A row is damaged, speaks of a question twice or of one that reads otherwise in the data set, or no
            row is about any question.
    """
    rows = list(_csv_rows(path) if path.suffix == ".csv" else _json_rows(path))
    by_place = {repair.where: repair for repair in rows}
    joined = join([Prediction(repair.where, (repair.question_id,)) for repair in rows], questions, "official")
    if joined.doubled:
        raise UserError(
            f"{joined.doubled[0].where}: {joined.doubled[0].ids[0]} has an earlier row; keep one of the two"
        )
    kept, dropped = {}, []
    for question, place in joined.pairs:
        repair = by_place[place.where]
        if repair.before and _words(repair.before) != _words(question.text):
            raise UserError(
                f"{repair.where}: {repair.question_id} asked {repair.before!r} before the repair, and the data set "
                f"asks {question.text!r}: the file is of another data set, or of another split"
            )
        if repair.dropped:
            dropped.append(question.id)
        else:
            kept[question.id] = Repaired(question, _applied(question, repair))
    if not kept:
        raise UserError(f"{path} repairs no question that is scored; is it of another data set, or of another split?")
    return Repairs(path, kept, tuple(dropped), len(joined.unknown))


def stated_range(answer: str) -> tuple[float, float] | None:
    """The range that a numerical answer in words accepts: its two numbers, or 10 % about its one; None without any.

    Example:
        >>> stated_range("170–200 cm")
        (170.0, 200.0)
        >>> stated_range("20,000 people")
        (18000.0, 22000.0)
    """
    number = infoseek.parse_numerical(" ".join(DIGITS.get(word, word) for word in answer.lower().split()))
    if number == [0, 0]:
        return None
    if isinstance(number, list):
        return float(number[0]), float(number[1])
    ends = sorted(round(number * (1 + side * _TOLERANCE), 9) for side in (-1, 1))
    return ends[0], ends[1]


def _applied(question: Question, repair: Repair) -> Question:
    text = repair.text or question.text
    if repair.is_one_alias and _is_accepted(repair, question):
        return dataclasses.replace(question, text=text)
    answers, limits = repair.answers or question.answers, repair.range
    if question.answer_type == "numerical" and limits is None:
        limits = stated_range(repair.answers[0]) if repair.answers else question.range
        if limits is None:
            raise UserError(f"{repair.where}: {repair.question_id} wants a number, found {answers[0]!r}; give `range`")
    return dataclasses.replace(question, text=text, answers=answers, range=limits)


def _is_accepted(repair: Repair, question: Question) -> bool:
    """Whether the data set accepts the repaired answer already."""
    if question.answer_type == "numerical":
        return question.range is not None and bool(infoseek.numerical(repair.answers[0], question.range))
    return bool(question.answers) and bool(infoseek.exact_match(repair.answers[0], question.answers))


def _csv_rows(path: Path) -> Iterator[Repair]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            for row in reader:
                yield _of_ara(f"{path}:{reader.line_num}", row)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} can't be read as a file of repairs: {error}") from error


def _of_ara(where: str, row: Mapping[str, str | None]) -> Repair:
    if lacking := [name for name in ("data_id", "question", "answer", "question_type") if not row.get(name)]:
        raise UserError(f"{where}: `{lacking[0]}` is missing or empty; ARA's files end in _fixed.csv")
    answer, is_evqa = str(row["answer"]), row["question_type"] in QUESTION_TYPES
    parts = answer.split("|") if is_evqa else [answer]
    answers = tuple(stripped for part in parts if (stripped := part.strip()))
    if not answers:
        raise UserError(f"{where}: `answer` holds no answer; mend the row, or leave it out")
    before = next((str(row[name]) for name in _BEFORE if row.get(name)), "")
    text = str(row["question"]).strip()
    return Repair(where, str(row["data_id"]), answers, None, text, before, is_one_alias=not is_evqa)


def _json_rows(path: Path) -> Iterator[Repair]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} can't be read as a file of repairs: {error}") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _of_json(f"{path}:{number}", line)


def _of_json(where: str, line: str) -> Repair:
    try:
        row: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not valid JSON ({error.msg}); mend or delete the line") from error
    key = row.get("question_id") if isinstance(row, dict) else None
    if not isinstance(key, str) or not key:
        raise UserError(
            f'{where}: expected an object with `question_id`, e.g. {{"question_id": "q1", "answers": ["a"]}}'
        )
    answers, limits, dropped = row.get("answers", []), row.get("range"), row.get("dropped", False)
    if not isinstance(answers, list) or not all(isinstance(answer, str) and answer.strip() for answer in answers):
        raise UserError(f"{where}: `answers` of {key} should be a list of texts, found {answers!r}")
    is_pair = isinstance(limits, list) and len(limits) == 2 and all(type(end) in (int, float) for end in limits)
    if limits is not None and not is_pair:
        raise UserError(f"{where}: `range` of {key} should be two numbers, found {limits!r}")
    texts = {name: row.get(name, "") for name in ("question", "question_before")}
    if bad := [name for name, value in texts.items() if not isinstance(value, str)]:
        raise UserError(f"{where}: `{bad[0]}` of {key} should be text, found {texts[bad[0]]!r}")
    if not isinstance(dropped, bool) or not (dropped or answers or is_pair or texts["question"]):
        raise UserError(
            f"{where}: {key} is neither repaired nor dropped; give `answers`, `range`, `question` or `dropped`"
        )
    ends = (float(limits[0]), float(limits[1])) if limits is not None else None
    return Repair(where, key, tuple(answers), ends, texts["question"], texts["question_before"], dropped)


def _words(text: str) -> list[str]:
    return text.casefold().split()
