"""Files that the official programs of InfoSeek, Encyclopedic-VQA and VQA score: written, and checked.

Each program takes other rows, and each treats a wrong row in its own way: some stop, others pass it over in silence and
print a score of something else. `check` finds those rows before the program does.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from reflectune.core.errors import UserError
from reflectune.core.types import Metric, Question
from reflectune.metrics.official.evqa import QUESTION_TYPES
from reflectune.metrics.scoring.registry import evqa_candidate, evqa_type

Layout = Literal["infoseek", "evqa", "vqa"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
LAYOUT_OF: Mapping[Metric, Layout] = {"infoseek": "infoseek", "evqa": "evqa", "evqa_exact": "evqa", "vqa": "vqa"}
"""The layout that goes with a data set's metric; the other metrics have no official program that reads files."""

Kind = Literal["unreadable", "field", "type", "unknown", "doubled", "missing", "altered", "empty"]
"""What can be wrong, in the order in which it is reported. `empty` alone does not make a file unfit."""

_SHOWN = 3
_IN_EVQA = re.compile(r"E-VQA_(0|[1-9]\d*)")


@dataclass(frozen=True)
class Defect:
    """One kind of thing that is wrong with a file.

    Attributes:
        kind: What is wrong.
        count: With how many rows (`missing`: questions).
        examples: The first few, as `FILE:ROW: what was found`; of `missing` the questions' ids.
        consequence: What the official program does with such a row.
    """

    kind: Kind
    count: int
    examples: tuple[str, ...]
    consequence: str

    @property
    def is_unfit(self) -> bool:
        """Whether the program stops at it, or scores something else than was asked."""
        return self.kind != "empty"

    def __str__(self) -> str:
        more = f" and {self.count - len(self.examples)} more" if self.count > len(self.examples) else ""
        return f"{self.count} {self.kind}: {'; '.join(self.examples)}{more}. The official program: {self.consequence}"


@dataclass(frozen=True)
class _Form:
    """A layout: its fields, what a row of a question is, and what its program does with a wrong row."""

    id_field: str
    answer_field: str
    is_array: bool
    key: Callable[[Question], str | int]
    extra: Callable[[Question], dict[str, Any]]
    consequences: Mapping[Kind, str]


def official_id(layout: Layout, question: Question) -> str | int:
    """What the official files call a question.

    InfoSeek's `data_id`; VQA's `question_id`, a whole number. E-VQA's CSV has no ids: its n-th row, from 0, is
    `E-VQA_n` (EchoSight's name), and the data set has n in `Question.meta["row"]`.

    Raises:
        UserError: The question's id has no such form: the data set is another one.
    """
    return _FORMS[layout].key(question)


def submission_rows(
    layout: Layout,
    questions: Iterable[Question],
    answers: Mapping[str, str],
    *,
    expected: Iterable[str | int] = (),
    fill: bool = False,
) -> list[dict[str, Any]]:
    """The rows of a file, one a question, in the questions' order.

    Of E-VQA a row has the arguments of its official function `evaluate_example` beside the id; of lists the candidate
    has commas, as that function parts them. Where a data set has several pictures of one E-VQA row, the first counts.

    Args:
        layout: Whose program is to read them.
        questions: The data set's, all of which the file is to cover.
        answers: By the question's id.
        expected: Official ids (`official_ids`) that the file must cover too, whether the data set has them or not.
        fill: Give a question without an answer an empty one.

    Raises:
        UserError: A question has no answer and `fill` is off, its id has not the layout's form, or two questions of
            different splits have one official id.
    """
    form, missing, rows = _FORMS[layout], list[str | int](), []
    by_id = _by_official_id(form, questions)
    for key, question in by_id.items():
        if question.id not in answers:
            missing.append(key)
        answer = answers.get(question.id, "")
        said = evqa_candidate(answer, question) if layout == "evqa" else answer
        rows.append({form.id_field: key, form.answer_field: said, **form.extra(question)})
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
    """The content of a file: JSONL, or one JSON array for VQA; in ASCII, which every default encoding reads alike."""
    lines = [json.dumps(row) for row in rows]
    return "[\n" + ",\n".join(lines) + "\n]\n" if _FORMS[layout].is_array else "".join(f"{line}\n" for line in lines)


def official_ids(layout: Layout, path: Path) -> list[str | int]:
    """The ids of an official file of questions, all of which a file of answers must cover.

    Args:
        layout: Whose file it is.
        path: InfoSeek's annotations (JSONL), E-VQA's CSV, or VQA's JSON with `questions`.

    Raises:
        UserError: The file can't be read, or is another one.
    """
    try:
        if layout == "evqa":
            with path.open(encoding="utf-8", newline="") as file:
                return [f"E-VQA_{number}" for number, _ in enumerate(csv.DictReader(file))]
        if layout == "vqa":
            return [int(row["question_id"]) for row in json.loads(path.read_text(encoding="utf-8"))["questions"]]
        with path.open(encoding="utf-8") as file:
            return [str(json.loads(line)["data_id"]) for line in file if line.strip()]
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise UserError(
            f"{path} is not a file of questions in the layout {layout} ({error!r}); name another"
        ) from error


def check(
    path: Path,
    layout: Layout,
    questions: Sequence[Question],
    expected: Sequence[str | int] | None = None,
    *,
    touched: bool = False,
) -> list[Defect]:
    """What is wrong with a file of answers, each kind once, the worst first; empty if nothing is.

    Args:
        path: The file.
        layout: Whose program is to read it.
        questions: The data set's.
        expected: The ids to cover; those of the questions if None.
        touched: Of the questions, cover those splits alone that the file has an id of.

    Raises:
        UserError: The file can't be opened, or two questions of different splits have one official id.
    """
    form, problems = _FORMS[layout], dict[Kind, list[str]]()
    by_id = _by_official_id(form, questions)
    known = by_id.keys() | set(expected or ())
    seen: Counter[str | int] = Counter()
    for where, row in _read(path, form, problems):
        for kind, problem in _row_problems(row, form, known, by_id):
            problems.setdefault(kind, []).append(f"{where}: {problem}")
        if _is_id(row, form):
            seen[row[form.id_field]] += 1
            if seen[row[form.id_field]] > 1:
                problems.setdefault("doubled", []).append(f"{where}: {row[form.id_field]!r} has an earlier row")
    splits = {by_id[key].split for key in seen if key in by_id} if touched else set()
    wanted = [key for key, question in by_id.items() if not splits or question.split in splits]
    if absent := [repr(key) for key in dict.fromkeys(expected or wanted) if key not in seen]:
        problems["missing"] = absent
    return [
        Defect(kind, len(problems[kind]), tuple(problems[kind][:_SHOWN]), form.consequences[kind])
        for kind in get_args(Kind)
        if kind in problems
    ]


def _by_official_id(form: _Form, questions: Iterable[Question]) -> dict[str | int, Question]:
    """The first question of each official id, in order; UserError if another split has the same id."""
    by_id: dict[str | int, Question] = {}
    for question in questions:
        first = by_id.setdefault(form.key(question), question)
        if first.split != question.split:
            raise UserError(
                f"{form.key(question)} is a question of {first.split} and of {question.split}; one file is of one "
                "split: set `splits`"
            )
    return by_id


def _read(path: Path, form: _Form, problems: dict[Kind, list[str]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(FILE:ROW, row) of all rows that are objects; what is not one is noted."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} can't be read as a file of answers: {error}") from error
    if form.is_array:
        array = _parsed(f"{path}", text, problems)
        if array is not None and not isinstance(array, list):
            problems["unreadable"] = [f"{path}: {type(array).__name__} instead of a JSON array"]
        values = [(f"{path}:{number}", value) for number, value in enumerate(array, 1)] if type(array) is list else []
    else:
        lines = text.removesuffix("\n").split("\n") if text else []
        values = [
            (f"{path}:{number}", _parsed(f"{path}:{number}", line, problems)) for number, line in enumerate(lines, 1)
        ]
    for where, value in values:
        if isinstance(value, dict):
            yield where, value
        elif value is not None or form.is_array:
            problems.setdefault("unreadable", []).append(f"{where}: {type(value).__name__} instead of an object")


def _parsed(where: str, text: str, problems: dict[Kind, list[str]]) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        problem = f"no JSON ({error.msg})" if text.strip() else "an empty line"
        problems.setdefault("unreadable", []).append(f"{where}: {problem}")
        return None


def _row_problems(
    row: Mapping[str, Any], form: _Form, known: Container[str | int], by_id: Mapping[str | int, Question]
) -> Iterator[tuple[Kind, str]]:
    fields = (form.id_field, form.answer_field)
    if absent := [name for name in fields if name not in row]:
        yield "field", f"no `{'`, no `'.join(absent)}`"
    wanted: dict[str, type] = {form.id_field: int if form.is_array else str, form.answer_field: str}
    for name, kind in wanted.items():
        if name in row and type(row[name]) is not kind:
            yield "type", f"`{name}` is {type(row[name]).__name__} instead of {kind.__name__}"
    if _is_id(row, form):
        key = row[form.id_field]
        if key not in known:
            yield "unknown", f"{key!r} is no question"
        elif key in by_id and (other := _altered(row, form.extra(by_id[key]))):
            yield "altered", f"{key!r}: `{other}` is not the data set's"
    if isinstance(answer := row.get(form.answer_field), str) and not answer.strip():
        yield "empty", f"{row.get(form.id_field)!r}"


def _is_id(row: Mapping[str, Any], form: _Form) -> bool:
    return type(row.get(form.id_field)) is (int if form.is_array else str)


def _altered(row: Mapping[str, Any], extra: Mapping[str, Any]) -> str:
    """The first field that is not what the data set has; "" if all are."""
    return next((name for name, value in extra.items() if row.get(name) != value), "")


def _infoseek_id(question: Question) -> str:
    return question.id


def _evqa_id(question: Question) -> str:
    row = question.meta.get("row", "")
    if not _IN_EVQA.fullmatch(f"E-VQA_{row}"):
        raise UserError(
            f"question {question.id} does not say which row of Encyclopedic-VQA's CSV it is (`row` of its `meta`); "
            "convert the set with the reader `evqa`, or set `layout`"
        )
    return f"E-VQA_{row}"


def _vqa_id(question: Question) -> int:
    if not re.fullmatch(r"\d+", question.id):
        raise UserError(
            f"question {question.id} has no number as its id, which VQA's layout wants; the set is not OK-VQA or VQA: "
            "set `layout`"
        )
    return int(question.id)


def _nothing(question: Question) -> dict[str, Any]:
    return {}


def _arguments(question: Question) -> dict[str, Any]:
    """The arguments of E-VQA's `evaluate_example` beside the candidate."""
    return {
        "question": question.text,
        "reference_list": list(question.answers),
        "question_type": evqa_type(question),
    }


_STOPS = "stops"
_FORMS: Mapping[Layout, _Form] = {
    "infoseek": _Form(
        "data_id",
        "prediction",
        False,
        _infoseek_id,
        _nothing,
        {
            "unreadable": _STOPS,
            "field": _STOPS,
            "type": "stops at a prediction that is no text, and passes over an id that is none",
            "unknown": "passes the row over in silence",
            "doubled": "counts each of the rows",
            "missing": "leaves the question out of the score in silence",
            "altered": "",
            "empty": "counts it as wrong; to a numerical question it reads as 0, which may be in the range",
        },
    ),
    "evqa": _Form(
        "data_id",
        "candidate",
        False,
        _evqa_id,
        _arguments,
        {
            "unreadable": _STOPS,
            "field": _STOPS,
            "type": _STOPS,
            "unknown": "averages over it, as it has no ids",
            "doubled": "averages over each of the rows",
            "missing": "leaves the question out of the average",
            "altered": f"scores another question (the types are {', '.join(QUESTION_TYPES)})",
            "empty": "counts it as wrong unless BEM takes it for equivalent",
        },
    ),
    "vqa": _Form(
        "question_id",
        "answer",
        True,
        _vqa_id,
        _nothing,
        {
            "unreadable": _STOPS,
            "field": _STOPS,
            "type": "stops: ids are whole numbers, answers are texts",
            "unknown": "stops: the ids must be those of the questions",
            "doubled": "takes the last of the rows",
            "missing": "stops: the ids must be those of the questions",
            "altered": "",
            "empty": "counts it as wrong",
        },
    ),
}
