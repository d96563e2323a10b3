"""What MMSearch-R1's sets have in common: rows in veRL's form, with a prompt, pictures, and answers for the reward."""

from __future__ import annotations

import json
from pathlib import Path

from reflectune.data_builders.readers.rows import Row, mapping, rows, text, texts

_IMAGE_TOKEN = "<image>"


def row_id(row: Row) -> str:
    """The row's `data_id`; a row without one is called by its file and its place in it, as in `fvqa_test_0`."""
    return text(row, "data_id", default=f"{Path(row.file).stem}_{row.line - 1}")


def asked(row: Row) -> str:
    """What the user's first message in `prompt` says, without the mark for the image.

    Raises:
        BadRow: There is no question.
    """
    message = next((message for message in rows(row, "prompt") if message.get("role") == "user"), None)
    said = text(message, "content").replace(_IMAGE_TOKEN, " ").strip() if message is not None else ""
    if not said:
        raise row.bad("prompt", "has no question of the user", "give it one, or leave the row out")
    return said


def answers(row: Row) -> tuple[str, ...]:
    """The canonical answer, `reward_model.ground_truth`, then `candidate_answers`, which is the text of a JSON list.

    Raises:
        BadRow: The text is no JSON list of texts, or there is no canonical answer.
    """
    reward = mapping(row, "reward_model")
    value = reward.get("candidate_answers")
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else []
        except json.JSONDecodeError as error:
            raise reward.bad("candidate_answers", f"is no JSON ({error})", "it should be the text of a list") from error
    listed = Row({**reward, "candidate_answers": value}, reward.file, reward.line)
    others = texts(listed, "candidate_answers", default=(), empty=True)
    return tuple(dict.fromkeys((text(reward, "ground_truth"), *others)))
