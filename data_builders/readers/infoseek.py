"""InfoSeek: questions about Wikidata facts of the entity in an image of OVEN."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from reflectune.core.rejected import BadRow, Reject, stop
from reflectune.core.types import AnswerType, Question
from reflectune.data_builders.readers.files import files_by_role, read_jsonl
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.rows import Placed, SourceRow, number, placed, text, texts

ROLES = ("annotations", "withkb", "qtype")
_KINDS: Mapping[str, AnswerType] = {"string": "string", "time": "time", "numerical": "numerical"}
_HALF = re.compile(r"unseen_(?:question|entity)$")
_MONTH = "(?:January|February|March|April|May|June|July|August|September|October|November|December)"
_TIME = re.compile(
    rf"(?=.*\d)(?:c(?:irca|a?\.) ?)?(?:[-+]?\d{{3,4}}(?:-\d\d?(?:-\d\d?)?)?s?|\d{{1,2}}(?:st|nd|rd|th) century"
    rf"|(?:\d{{1,4}} )?{_MONTH}(?: \d{{1,2}})?(?:,? \d{{3,4}})?)(?: (?:BCE?|CE|AD))?",
    re.IGNORECASE,
)


def questions(
    source: Path | Mapping[str, Any], *, split: str, images: ImageFolder, reject: Reject = stop
) -> Iterator[Placed[Question]]:
    """Yield the questions of one split, in the order of the annotations.

    The files of github.com/open-vision-language/infoseek are JSONL (`.gz` too), joined on `data_id`:

    - `annotations` (`infoseek_{train,val,test,human}.jsonl`): `data_id`, `image_id`, `question`, `answer`,
      `answer_eval`, `data_split`. `answer_eval` is a list of texts or, for a number, `{"wikidata", "range": [low,
      high]}`, alone or in a list. The released test and human files have neither answers nor entities.
    - `withkb` (`infoseek_{train,val}_withkb.jsonl`): `data_id`, `entity_id` (as in Wiki6M), `entity_text`.
    - `qtype` (`infoseek_val_qtype.jsonl`): `data_id`, `question_type`: `String`, `Time` or `Numerical`.

    Without `qtype` the type is derived: `numerical` with a range, `time` if the canonical answer is a date or a year,
    else `string`. The official scores of `time` and `string` are computed alike.

    The answers are those of `answer_eval`, with `answer[0]` first if it is among them: the official score accepts no
    other. A range keeps the order of the file, as the official score does. If a row's `data_split` ends in
    `unseen_question` or `unseen_entity`, that is appended to the name of the split.

    Args:
        source: The annotations, or a mapping of the role `annotations`, and optionally `withkb` and `qtype`, to files.
        images: Folder of OVEN's images.

    Raises:
        UserError: A role is unknown, or `annotations` is missing.
    """
    files = files_by_role(source, ROLES, "InfoSeek")
    entities, names = _entities(files["withkb"], reject) if "withkb" in files else (None, {})
    kinds = _by_id(files["qtype"], "question_type", _kind, reject) if "qtype" in files else None
    make = partial(_question, split=split, images=images, entities=entities, names=names, kinds=kinds)
    return placed(read_jsonl(files["annotations"], reject), make, reject)


def derived_kind(answer: str) -> AnswerType:
    """Return `time` for a date, a year, a decade or a century, else `string`."""
    return "time" if _TIME.fullmatch(answer) else "string"


def split_of(row: SourceRow, split: str) -> str:
    """Return the split with the half of InfoSeek's validation data that ends the row's `data_split`, if any."""
    half = _HALF.search(text(row, "data_split", default=""))
    return f"{split}_{half[0]}" if half and not split.endswith(half[0]) else split


def _entities(path: Path, reject: Reject) -> tuple[dict[str, str], dict[str, str]]:
    """Return the entity of each `data_id`, and the name of each entity; equal ids share one string."""
    names: dict[str, str] = {}
    shared: dict[str, str] = {}

    def take(row: SourceRow) -> str:
        entity = text(row, "entity_id")
        names.setdefault(entity, text(row, "entity_text", default=""))
        return shared.setdefault(entity, entity)

    return _by_id(path, "entity_id", take, reject), names


def _kind(row: SourceRow) -> AnswerType:
    name = text(row, "question_type")
    if name.lower() not in _KINDS:
        raise row.bad("question_type", f"is {name!r}", "it must be String, Time or Numerical")
    return _KINDS[name.lower()]


def _by_id(path: Path, field: str, take: Callable[[SourceRow], Any], reject: Reject) -> dict[str, Any]:
    """Return the values that `take` returns for the rows of a file, by `data_id`."""
    values: dict[str, Any] = {}
    for _, row in read_jsonl(path, reject):
        try:
            data_id, value = text(row, "data_id"), take(row)
            if values.setdefault(data_id, value) != value:
                problem = f"is {value!r}, and {values[data_id]!r} in an earlier row of this id"
                raise row.bad(field, problem, "keep one of the two rows")
        except BadRow as error:
            reject(error)
    return values


def _question(
    row: SourceRow,
    *,
    split: str,
    images: ImageFolder,
    entities: Mapping[str, str] | None,
    names: Mapping[str, str],
    kinds: Mapping[str, AnswerType] | None,
) -> Question:
    data_id = text(row, "data_id")
    entity = _joined(row, data_id, entities, "withkb") if entities is not None else ""
    kind = _joined(row, data_id, kinds, "qtype") if kinds is not None else None
    answers, limits = _answers(row)
    if kind is None:
        kind = "numerical" if limits else derived_kind(answers[0]) if answers else "string"
    elif answers and (kind == "numerical") != (limits is not None):
        problem = f"has {'a' if limits else 'no'} range, and the qtype file says {kind}"
        raise row.bad("answer_eval", problem, "the two files must be of one release")
    name = names.get(entity)
    return Question(
        id=data_id,
        image=images.path(row, "image_id", text(row, "image_id")),
        text=text(row, "question"),
        answers=answers,
        range=limits,
        answer_type=kind,
        split=split_of(row, split),
        requires_retrieval=True,
        entity_ids=(entity,) if entity else (),
        meta={"entity_text": name} if name else {},
    )


def _joined(row: SourceRow, data_id: str, by_id: Mapping[str, Any], role: str) -> Any:
    value = by_id.get(data_id)
    if value is None:
        raise row.bad("data_id", f"is not in the {role} file", f"give the {role} file of this split, or none")
    return value


def _answers(row: SourceRow) -> tuple[tuple[str, ...], tuple[float, float] | None]:
    """Return the answers, the canonical one first, and a number's range; nothing if the row has neither field."""
    accepted, canonical = row.get("answer_eval"), _listed(row, "answer")[:1]
    if isinstance(accepted, list) and accepted and isinstance(accepted[0], dict):
        accepted = accepted[0]
    if isinstance(accepted, dict):
        accepted_row = SourceRow(accepted, row.file, row.line)
        accepted_row.setdefault("id", row.get("data_id"))
        return tuple(canonical) or (f"{number(accepted_row, 'wikidata'):g}",), limits_of(accepted_row, "range")
    if accepted is None and row.get("answer") is None:
        return (), None
    listed = _listed(row, "answer_eval") or texts(row, "answer_eval")
    return tuple(dict.fromkeys([*(text for text in canonical if text in listed), *listed])), None


def _listed(row: SourceRow, field: str) -> list[str]:
    """Return a list of texts like `texts`, but faster, for a million rows."""
    value = row.get(field)
    if type(value) is list:
        try:
            return [item for item in map(str.strip, value) if item]
        except TypeError:
            pass  # `texts` raises the error
    return list(texts(row, field, default=(), empty=True))


def limits_of(row: SourceRow, field: str) -> tuple[float, float]:
    """Return the two ends of a field that is the range of a number; raise BadRow for anything else."""
    ends = row.get(field)
    if not isinstance(ends, list) or len(ends) != 2:
        raise row.bad(field, f"is {ends!r}", "it should be the lowest and the highest accepted number")
    low, high = (number(SourceRow({"id": row.id, field: end}, row.file, row.line), field) for end in ends)
    return low, high
