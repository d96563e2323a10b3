"""ECCV26-ARA: repaired questions of E-VQA and InfoSeek, and questions about images of two entities."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from reflectune.core.numerals import plain_numbers
from reflectune.core.rejected import Reject, stop
from reflectune.core.types import AnswerType, Evidence, Question
from reflectune.data_builders.readers import evqa
from reflectune.data_builders.readers.files import files_by_role, read_csv
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.rows import Placed, SourceRow, one_of, placed, text
from reflectune.metrics.official import infoseek
from reflectune.metrics.official.evqa import QUESTION_TYPES
from reflectune.metrics.official.vqa import DIGITS

ROLES = ("questions", "inaturalist")
_KINDS: Mapping[str, AnswerType] = {"String": "string", "Time": "time", "Numerical": "numerical"}
_SUFFIXES = {"one_entity": "anchor", "intra_category": "method1", "inter_category": "method2"}
"""Suffix of ids and columns by setting: one entity in the image, two of one kind, two of different kinds."""
_TOLERANCE = 0.1
"""Share by which an answer may differ from a number without a range, as in ARA's scorer."""
_EVQA_ROW = re.compile(r"E-VQA_(\d+)")


def questions(
    source: Path | Mapping[str, Any], *, split: str, images: ImageFolder, reject: Reject = stop
) -> Iterator[Placed[Question]]:
    """Yield the questions of one file of github.com/VAN-QIAN/ECCV26-ARA (arXiv 2607.00159, MIT), CSV with a header.

    - `data/ground_truth/`: `{evqa,infoseek}_fixed.csv`, the repaired questions, and `evqa_unfixed_test_with_id.csv`,
      `infoseek_unfixed_subset.csv`, the originals: `data_id` (`E-VQA_n`, `infoseek_val_…`), `question`, `answer`,
      `question_type`, `wikipedia_url`, `dataset_image_ids`, for E-VQA also `dataset_name` and `evidence_section_id`. A
      row is a question with the id `data_id`, so repaired and original questions are two data sets.
    - `data/augmented/*/…_challenging_queries_full_seed3185_with_images.csv`: three questions per row with the anchor's
      answer, about an image of the anchor alone (`<anchor_data_id>__anchor`), with an entity of its kind
      (`…__method1`), or with one of a different kind (`…__method2`). Their splits are `<split>_one_entity`,
      `<split>_intra_category` and `<split>_inter_category`. `Question.meta` has `setting`, `anchor` (the `data_id`),
      and the other entity's URL as `distractor`. The only entity is the anchor.

    E-VQA's answers are separated by `|`. InfoSeek's file has one answer per question. A number's range is stated in the
    answer, or is 10 % around it, as in ARA's scorer; a numerical answer without a number is a text. Ids of entities are
    Wikipedia URLs, as in E-VQA's knowledge base and EchoSight's 100k articles.

    Args:
        source: The CSV file, or a mapping of the roles `questions` (the CSV file) and `inaturalist` (iNaturalist 2021's
            `val.json`, for E-VQA's images) to files.
        split: Name of the split, or its beginning.
        images: For the first kind the folder of E-VQA's or OVEN's images; for the second the folder that the CSV's
            paths are relative to (`images/augmented/…`, from the Hub's VanQianMa/ECCV26-ARA).

    Raises:
        UserError: A role is unknown, or `inaturalist` is needed and missing.
    """
    files = files_by_role(source, ROLES, "ARA")
    names = evqa.file_names(files, 1) if images.root is not None else {}
    make = partial(_questions, split=split, images=images, names=names)
    for row_questions, line in placed(read_csv(files["questions"], reject), make, reject):
        yield from ((question, line) for question in row_questions)


def _questions(row: SourceRow, *, split: str, images: ImageFolder, names: Mapping[str, str]) -> list[Question]:
    if "anchor_data_id" not in row:
        return [_question(row, split=split, images=images, names=names)]
    row.id_field = "anchor_data_id"
    return [_of_setting(row, setting, split=split, images=images) for setting in _SUFFIXES]


def _question(row: SourceRow, *, split: str, images: ImageFolder, names: Mapping[str, str]) -> Question:
    kind = one_of(row, "question_type", (*QUESTION_TYPES, *_KINDS))
    image_id = text(row, "dataset_image_ids").split("|", maxsplit=1)[0]
    is_evqa = kind in QUESTION_TYPES
    path = evqa.image(row, image_id, images, names) if is_evqa else images.path(row, "dataset_image_ids", image_id)
    entity = text(row, "wikipedia_url")
    section = text(row, "evidence_section_id", default="") if is_evqa else ""
    return Question(
        id=text(row, "data_id"),
        image=path,
        text=text(row, "question"),
        split=split,
        requires_retrieval=True,
        entity_ids=(entity,),
        evidence=(Evidence(entity, int(section)),) if section.isdigit() else (),
        meta=_meta(row, text(row, "data_id"), kind),
        **_truth(text(row, "answer"), kind),
    )


def _of_setting(row: SourceRow, setting: str, *, split: str, images: ImageFolder) -> Question:
    suffix, anchor = _SUFFIXES[setting], text(row, "anchor_data_id")
    kind = one_of(row, "anchor_question_type", (*QUESTION_TYPES, *_KINDS))
    is_alone = suffix == "anchor"
    image_field = "anchor_image_path" if is_alone else f"{suffix}_composite_image_path"
    status = "saved" if is_alone else text(row, f"{suffix}_image_status", default="saved")
    if not status.startswith("saved"):
        raise row.bad(f"{suffix}_image_status", f"is {status!r}", "the image is missing: leave the row out")
    meta = {**_meta(row, anchor, kind), "setting": setting, "anchor": anchor}
    meta |= {} if is_alone else {"distractor": text(row, f"{suffix}_pair_wikipedia_url", default="")}
    return Question(
        id=f"{anchor}__{suffix}",
        image=images.path(row, image_field, text(row, image_field)),
        text=text(row, "anchor_question" if is_alone else f"{suffix}_query"),
        split=f"{split}_{setting}",
        requires_retrieval=True,
        entity_ids=(text(row, "anchor_wikipedia_url"),),
        meta={name: value for name, value in meta.items() if value},
        **_truth(text(row, "anchor_answer" if is_alone else f"{suffix}_expected_answer"), kind),
    )


def _meta(row: SourceRow, data_id: str, kind: str) -> dict[str, str]:
    """Return the fields for E-VQA's metric and hand-ins, and the question before its repair."""
    number = _EVQA_ROW.fullmatch(data_id)
    before = text(row, "question_before_review", default="") or text(row, "question_original", default="")
    meta = {"row": number[1] if number else "", "question_before": before}
    meta |= {"question_type": kind, "dataset_name": text(row, "dataset_name", default="")} if number else {}
    return {name: value for name, value in meta.items() if value}


def _truth(answer: str, kind: str) -> dict[str, Any]:
    """Return answers, range and answer type."""
    if kind in QUESTION_TYPES:
        parts = tuple(stripped for part in answer.split("|") if (stripped := part.strip()))
        return {"answers": parts, "answer_type": "multi_answer" if kind == "multi_answer" else "string"}
    limits = stated_range(answer) if kind == "Numerical" else None
    is_text = kind == "Numerical" and limits is None
    return {"answers": (answer,), "range": limits, "answer_type": "string" if is_text else _KINDS[kind]}


def stated_range(answer: str) -> tuple[float, float] | None:
    """Return the range of a numerical answer in words: its two numbers, or 10 % around its one; None without any.

    Example:
        >>> stated_range("170–200 cm")
        (170.0, 200.0)
        >>> stated_range("20,000 people")
        (18000.0, 22000.0)
    """
    number = infoseek.parse_numerical(
        " ".join(DIGITS.get(word, word) for word in plain_numbers(answer).lower().split())
    )
    if number == [0, 0]:
        return None
    if isinstance(number, list):
        return float(number[0]), float(number[1])
    ends = sorted(round(number * (1 + side * _TOLERANCE), 9) for side in (-1, 1))
    return ends[0], ends[1]
