"""M2KR: questions of E-VQA, InfoSeek, OK-VQA and others in one layout, and their passages as entries.

Every passage (`<NAME>_passages`, Parquet, a file per split) is an entry, since the questions name passages by id.
Passages have no images. A title is the column `title`, or is parsed from a text "title: X content: Y".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

from reflectune.core.errors import UserError
from reflectune.core.rejected import Reject, stop
from reflectune.core.types import AnswerType, Entry, Evidence, Question, Section
from reflectune.data_builders.readers.files import one_path, read_parquet, several_splits
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.infoseek import derived_kind, limits_of, split_of
from reflectune.data_builders.readers.rows import Placed, SourceRow, placed, text, texts

_KINDS: Mapping[str, AnswerType] = {"string": "string", "time": "time", "numerical": "numerical"}
_CARRIED = ("question_type", "entity_id", "entity_text", "image_id", "instruction", "llava_split", "wiki_entity_id")
_TITLED = re.compile(r"\s*title:\s*(?P<title>.*?)\s+content:\s*(?P<content>.*)", re.DOTALL)


Gold = Literal["passages", "wikidata"]
"""Entries that a question is about: M2KR's passages, or the entity of Wikidata, as Wiki6M's entries are named."""


def questions(
    source: Path | Mapping[str, Any], *, split: str, images: ImageFolder, reject: Reject = stop, gold: Gold = "passages"
) -> Iterator[Placed[Question]]:
    """Yield the questions of one configuration and split, in the order of the files.

    The files are the Hub's `BByrneLab/multi_task_multi_modal_knowledge_retrieval_benchmark_M2KR`, Parquet,
    configurations `<NAME>_data`. All have `question_id`, `question`, `instruction`, `img_path`, `pos_item_ids` and
    `pos_item_contents`; E-VQA, InfoSeek and OK-VQA also `answers` and `gold_answer`. E-VQA has a `question_type`;
    InfoSeek has `answer_eval`, `data_split`, `wikidata_value`, `wikidata_range`, `entity_id`, `entity_text`,
    `question_type` and more.

    - `gold_answer` is the canonical answer and comes first, then `answers` and `answer_eval`. OK-VQA's ten answers keep
      their repetitions, which `metric: vqa` counts.
    - InfoSeek's `answer_eval` is a list of texts even for numbers. Their ranges come from `wikidata_range`: two finite
      numbers make a question `numerical`.
    - Entries are passages: `pos_item_ids` are the question's entities and its evidence, for the reader `m2kr` of
      knowledge bases. Wikidata's `entity_id` is in `Question.meta`. With `gold: wikidata` it is the question's entity,
      without evidence, for a knowledge base of Wikidata's entities: Wiki6M and its parts, which have images.
    - An empty `question` is replaced by the `instruction`.
    - M2KR's test split of InfoSeek is drawn from the official validation split; `data_split` names the half.

    Args:
        source: A Parquet file, or the folder of one configuration and split.
        images: Folder of images. An image is searched by its path, then by its name, since InfoSeek's paths lack
            OVEN's sub-folders.
        gold: Gold entries, `passages` or `wikidata`.

    Raises:
        UserError: The source is not a path, or `gold` is unknown.
    """
    if gold not in get_args(Gold):
        raise UserError(f"`gold` is {gold!r}; it is {' or '.join(get_args(Gold))}")
    make = partial(_question, split=split, images=images, gold=gold)
    return placed(read_parquet(one_path(source, "M2KR"), reject), make, reject)


def _question(row: SourceRow, *, split: str, images: ImageFolder, gold: Gold) -> Question:
    row.id_field = "question_id"
    answers, limits = _answers(row), _range(row)
    passages = texts(row, "pos_item_ids", default=(), empty=True) if gold == "passages" else ()
    meta = {name: text(row, name, default="") for name in _CARRIED}
    return Question(
        id=text(row, "question_id"),
        image=_image(row, images),
        text=text(row, "question", default="") or text(row, "instruction"),
        answers=answers,
        range=limits,
        answer_type=_kind(row, answers, limits),
        split=split_of(row, split),
        requires_retrieval=True,
        entity_ids=passages if gold == "passages" else (text(row, "entity_id"),),
        evidence=tuple(Evidence(passage, 0) for passage in passages),
        meta={name: value for name, value in meta.items() if value},
    )


def _answers(row: SourceRow) -> tuple[str, ...]:
    """Return the accepted answers, the canonical one first; `answers` keeps its repetitions."""
    given, accepted = (texts(row, field, default=(), empty=True) for field in ("answers", "answer_eval"))
    gold = text(row, "gold_answer", default="")
    others = (answer for answer in dict.fromkeys((gold, *accepted)) if answer and answer not in given)
    return tuple(sorted((*given, *others), key=lambda answer: answer != gold))


def _range(row: SourceRow) -> tuple[float, float] | None:
    """Return the two ends of `wikidata_range`; None if it is null, empty, or without numbers."""
    ends = row.get("wikidata_range")
    if ends is None or not ends or all(end is None or (isinstance(end, float) and math.isnan(end)) for end in ends):
        return None
    return limits_of(row, "wikidata_range")


def _kind(row: SourceRow, answers: tuple[str, ...], limits: tuple[float, float] | None) -> AnswerType:
    kind = _KINDS.get(text(row, "question_type", default="").lower())
    if kind == "numerical" and limits is None:
        problem = "is missing, and the question is numerical"
        raise row.bad("wikidata_range", problem, "download the file again, or leave the row out")
    if limits is not None:
        return "numerical"
    if kind is None and "data_split" in row and answers:
        return derived_kind(answers[0])
    return kind or ("multi_answer" if any("&&" in answer for answer in answers) else "string")


def _image(row: SourceRow, images: ImageFolder) -> str:
    """Return the path of the image, found by its path or its name; "" for a question without one."""
    path = text(row, "img_path", default="")
    if not path:
        return ""
    return images.find_for(row, "img_path", path) or images.path(row, "img_path", PurePosixPath(path).stem)


def read_source(path: Path, reject: Reject = stop) -> Iterator[tuple[int, SourceRow]]:
    """Yield the rows of one split's passages.

    Raises:
        UserError: The folder holds several splits. M2KR retrieves from one; many passages are in all of them.
    """
    if names := several_splits(path):
        raise UserError(f"{path} holds the files of {names}; name one: a split is searched in its own passages")
    return read_parquet(path, reject)


def entry(row: SourceRow, images: ImageFolder) -> Entry:
    """Make an entry of a passage; its image may be named by the passage's id."""
    passage_id, content = text(row, "passage_id"), text(row, "passage_content")
    title = text(row, "title", default="")
    titled = _TITLED.fullmatch(content)
    if titled:
        title, content = title or titled["title"], titled["content"]
    image = images.find_for(row, "passage_id", passage_id)
    return Entry(
        id=passage_id, title=title or passage_id, images=(image,) if image else (), sections=(Section("", content),)
    )
