"""FactualVQA, MMSearch-R1's training and test set: some questions need a search, some do not.

Functions for rows in veRL's form (a prompt, images, and answers for the reward) serve MMSearch-R1's other sets, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from reflectune.core.rejected import Reject, stop
from reflectune.core.types import Question
from reflectune.data_builders.readers.files import one_path, read_parquet
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.rows import Placed, SourceRow, mapping, one_of, placed, rows, text, texts

_RETRIEVAL = {"search_required": True, "search_free": False, "": None}
_IMAGE_TOKEN = "<image>"


def questions(
    source: Path | Mapping[str, Any], *, split: str, images: ImageFolder, reject: Reject = stop
) -> Iterator[Placed[Question]]:
    """Yield the questions of one file.

    The files are the Hub's `lmms-lab/FVQA`, `fvqa_train.parquet` and `fvqa_test.parquet`, in veRL's form: `data_id`,
    `prompt[{role, content}]`, `images[{bytes, path}]`, `reward_model{ground_truth, candidate_answers, style}`,
    `data_source`, `image_urls` (null) and, in the training file alone, `category` (`search_required` or
    `search_free`). `candidate_answers` is the text of a JSON list. `ground_truth` is the canonical answer and comes
    first. A row without `data_id` gets its file's name and its number as id, as in `fvqa_test_0`.

    `category` decides `requires_retrieval`, which is unknown in the test file.

    Args:
        source: A Parquet file, or a folder of Parquet files (the downloaded folder holds both splits).
        images: Its `save_to` is the folder that the images are written to.

    Raises:
        UserError: The source is not a path.
    """
    return placed(
        read_parquet(one_path(source, "FVQA"), reject), partial(_question, split=split, images=images), reject
    )


def _question(row: SourceRow, *, split: str, images: ImageFolder) -> Question:
    row.id_field = "data_id"
    category = one_of(row, "category", tuple(filter(None, _RETRIEVAL)), default="")
    meta = {"category": category, "data_source": text(row, "data_source", default="")}
    found = rows(row, "images")
    if len(found) != 1:
        raise row.bad("images", f"has {len(found)} images", "a question has one image: leave the row out")
    return Question(
        id=row_id(row),
        image=images.keep(row, "images", found[0]),
        text=question_text(row),
        answers=answers(row),
        split=split,
        requires_retrieval=_RETRIEVAL[category],
        meta={name: value for name, value in meta.items() if value},
    )


def row_id(row: SourceRow) -> str:
    """Return the row's `data_id`, else its file's name and its number, as in `fvqa_test_0`."""
    return text(row, "data_id", default=f"{Path(row.file).stem}_{row.line - 1}")


def question_text(row: SourceRow) -> str:
    """Return the user's first message in `prompt`, without the image token.

    Raises:
        BadRow: The message is missing or empty.
    """
    message = next((message for message in rows(row, "prompt") if message.get("role") == "user"), None)
    content = text(message, "content").replace(_IMAGE_TOKEN, " ").strip() if message is not None else ""
    if not content:
        raise row.bad("prompt", "has no question of the user", "give it one, or leave the row out")
    return content


def answers(row: SourceRow) -> tuple[str, ...]:
    """Return the canonical answer, `reward_model.ground_truth`, and those in the JSON list `candidate_answers`.

    Raises:
        BadRow: The text is not a JSON list of texts, or the canonical answer is missing.
    """
    reward = mapping(row, "reward_model")
    value = reward.get("candidate_answers")
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else []
        except json.JSONDecodeError as error:
            problem = f"is not JSON ({error})"
            raise reward.bad("candidate_answers", problem, "it should be the text of a list") from error
    listed = SourceRow({**reward, "candidate_answers": value}, reward.file, reward.line)
    others = texts(listed, "candidate_answers", default=(), empty=True)
    return tuple(dict.fromkeys((text(reward, "ground_truth"), *others)))
