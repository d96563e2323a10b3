"""ECCV26-ARA: repaired questions of E-VQA and InfoSeek, and questions about pictures of two entities."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from reflectune.core.errors import UserError
from reflectune.core.rejected import Reject, stop
from reflectune.core.types import AnswerType, Evidence, Question
from reflectune.data_builders.readers import evqa
from reflectune.data_builders.readers.files import read_csv
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.rows import Placed, SourceRow, one_of, placed, text
from reflectune.metrics.official.evqa import QUESTION_TYPES
from reflectune.metrics.scoring.repair_table import ANCHOR, SETTING, SETTINGS
from reflectune.metrics.scoring.repairs import stated_range

_KINDS: Mapping[str, AnswerType] = {"String": "string", "Time": "time", "Numerical": "numerical"}
_SUFFIXES = dict(zip(SETTINGS, ("anchor", "method1", "method2"), strict=True))
_EVQA_ROW = re.compile(r"E-VQA_(\d+)")


def questions(
    source: Path | Mapping[str, Any], *, split: str, images: ImageFolder, reject: Reject = stop
) -> Iterator[Placed[Question]]:
    """The questions of one file of github.com/VAN-QIAN/ECCV26-ARA (arXiv 2607.00159, MIT), as CSV with a header.

    - `data/ground_truth/`: `{evqa,infoseek}_fixed.csv`, the repaired questions, and `evqa_unfixed_test_with_id.csv`,
      `infoseek_unfixed_subset.csv`, the same ones as they were: `data_id` (`E-VQA_n`, `infoseek_val_…`), `question`,
      `answer`, `question_type`, `wikipedia_url`, `dataset_image_ids`, of E-VQA also `dataset_name` and
      `evidence_section_id`. One question a row, called by its `data_id`: so the two files of a set are two data sets
      (or one is `repairs` of `metrics.score`), not two splits of one.
    - `data/augmented/*/…_challenging_queries_full_seed3185_with_images.csv`: three questions a row, all with the
      anchor's answer. `<anchor_data_id>__anchor` asks about the picture of the anchor alone, `…__method1` about a
      picture of it beside another entity of its kind, `…__method2` beside one of another kind. Their splits are
      `<split>_one_entity`, `<split>_intra_category` and `<split>_inter_category`; `Question.meta` has `setting`,
      `anchor` (the `data_id`), and the other entity's address as `distractor`. `entity_ids` is the anchor alone.

    E-VQA's answers are parted by `|`. InfoSeek's file has one name of each answer. Of a number its range is read from
    the answer, or is 10 % about it, as ARA's scorer has it; a numerical answer without a number is a text. Entities are
    called by their Wikipedia addresses, as E-VQA's knowledge base and EchoSight's 100k articles call them.

    Args:
        source: The CSV file, or a mapping of the roles `questions` (it) and `inaturalist` (iNaturalist 2021's
            `val.json`, for E-VQA's pictures) to files.
        split: Name of the split, or its beginning.
        images: Of the first kind, what E-VQA or OVEN has; of the second, the folder in which the CSV's paths
            (`images/augmented/…`, from the Hub's VanQianMa/ECCV26-ARA) start.
        reject: Called with each bad row.

    Raises:
        UserError: A role is unknown, or `inaturalist` is needed and not given.
    """
    files = {"questions": source} if not isinstance(source, Mapping) else {r: Path(p) for r, p in source.items()}
    if "questions" not in files or not set(files) <= set(evqa.ROLES):
        given_roles = ", ".join(map(str, files)) or "none"
        raise UserError(f"ARA's roles are {', '.join(evqa.ROLES)}, and questions is needed; found {given_roles}")
    names = evqa.file_names(files, 1) if images.root is not None else {}
    make = partial(_questions, split=split, images=images, names=names)
    for row_questions, place in placed(read_csv(files["questions"], reject), make, reject):
        yield from ((question, place) for question in row_questions)


def _questions(row: SourceRow, *, split: str, images: ImageFolder, names: Mapping[str, str]) -> list[Question]:
    if "anchor_data_id" not in row:
        return [_question(row, split=split, images=images, names=names)]
    row.id_field = "anchor_data_id"
    return [_of_setting(row, setting, split=split, images=images) for setting in SETTINGS]


def _question(row: SourceRow, *, split: str, images: ImageFolder, names: Mapping[str, str]) -> Question:
    kind = one_of(row, "question_type", (*QUESTION_TYPES, *_KINDS))
    said = text(row, "dataset_image_ids")
    image_id = said.split("|", maxsplit=1)[0]
    is_evqa = kind in QUESTION_TYPES
    path = evqa.picture(row, image_id, images, names) if is_evqa else images.path(row, "dataset_image_ids", image_id)
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
        raise row.bad(f"{suffix}_image_status", f"is {status!r}", "there is no such picture: leave the row out")
    meta = {**_meta(row, anchor, kind), SETTING: setting, ANCHOR: anchor}
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
    """What E-VQA's metric and hand-ins read, and how the question was put before it was repaired."""
    number = _EVQA_ROW.fullmatch(data_id)
    before = text(row, "question_before_review", default="") or text(row, "question_original", default="")
    meta = {"row": number[1] if number else "", "question_before": before}
    meta |= {"question_type": kind, "dataset_name": text(row, "dataset_name", default="")} if number else {}
    return {name: value for name, value in meta.items() if value}


def _truth(answer: str, kind: str) -> dict[str, Any]:
    """Answers, range and answer type."""
    if kind in QUESTION_TYPES:
        parts = tuple(stripped for part in answer.split("|") if (stripped := part.strip()))
        return {"answers": parts, "answer_type": "multi_answer" if kind == "multi_answer" else "string"}
    limits = stated_range(answer) if kind == "Numerical" else None
    is_text = kind == "Numerical" and limits is None
    return {"answers": (answer,), "range": limits, "answer_type": "string" if is_text else _KINDS[kind]}
