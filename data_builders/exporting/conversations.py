"""Reads rows of TRL's chat data (messages, or prompt and completion, with one image) as plain conversations."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ijson

from reflectune.core.errors import UserError
from reflectune.core.parquet import open_parquet, stream_rows
from reflectune.data_builders.exporting.trl import IMAGE_NAMES
from reflectune.data_builders.readers.json_texts import HALF, has_half, json_reader
from reflectune.models.rendering.untrusted import SafeTokenizer

BATCH = 256


@dataclass(frozen=True)
class Conversation:
    """One row.

    Attributes:
        turns: Their texts; the user's and the assistant's in turn.
        image: Its path, as the row has it, or its bytes.
        id: Of the question, or "".
        question: How the question reads, where a column says so, or "".
    """

    turns: tuple[str, ...]
    image: str | bytes
    id: str = ""
    question: str = ""


def find_file(data: Path, split: str) -> Path:
    """The file of a split: `data` itself, or in that folder `train.parquet`, `train.jsonl`, `train/metadata.jsonl`, ….

    Raises:
        UserError: There is none.
    """
    if data.is_file():
        return data
    names = [f"{split}.parquet", f"{split}.jsonl", f"{split}.json", f"{split}/metadata.jsonl"]
    for name in names:
        if (data / name).is_file():
            return data / name
    raise UserError(f"no chat data in {data}; looked for {', '.join(names)}; give the file itself as `data`")


def raw_rows(path: Path) -> Iterator[Any]:
    """The rows of a `.parquet`, `.jsonl` or `.json` (one array) file; a line that is no JSON comes as a `UserError`.

    Raises:
        UserError: The file can't be read at all.
    """
    try:
        if path.suffix == ".parquet":
            with open_parquet(path, "write or copy it again") as file:
                yield from stream_rows(file)
        elif path.suffix == ".jsonl":
            with path.open("rb") as lines:
                yield from (_parsed(line) for line in lines if line.strip())
        elif path.suffix == ".json":
            with path.open("rb") as array:
                reader = json_reader(array)
                array.seek(0)
                yield from reader.items(array, "item")
        else:
            raise UserError(f"{path}: chat data is read from .parquet, .jsonl or .json, not from `{path.suffix}`")
    except ijson.JSONError as error:
        raise UserError(f"{path} can't be read: {error}") from error


def conversation(row: Any) -> Conversation:
    """A row as a conversation.

    Raises:
        UserError: Says what of the row is not of the form.
    """
    if isinstance(row, UserError):
        raise row
    if not isinstance(row, Mapping):
        raise UserError(f"a row should be an object with `messages` and `images`, found {type(row).__name__}")
    messages = _messages(row)
    if has_half([messages, row.get("id"), row.get("question")]):
        raise UserError(f"the row {HALF[0]}; {HALF[1]}")
    image = _image(row)
    turns = []
    for place, message in enumerate(messages):
        role = ("user", "assistant")[place % 2]
        message_role = message.get("role") if isinstance(message, Mapping) else None
        if message_role != role:
            raise UserError(f"message {place} should be of role `{role}`, found `{message_role}`")
        turns.append(SafeTokenizer.clean(_text(message.get("content"), place)))
    if not turns or len(turns) % 2:
        raise UserError(f"a conversation should end with the assistant's turn; it has {len(turns)} messages")
    texts = [str(row.get(name) or "") for name in ("id", "question")]
    return Conversation(tuple(turns), image, *texts)


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        return UserError(f"the line is not JSON: {error}")


def _messages(row: Mapping[str, Any]) -> list[Any]:
    names = ("messages",) if row.get("messages") is not None else ("prompt", "completion")
    for name in names:
        if not isinstance(row.get(name), list):
            raise UserError(
                f"`{name}` should be a list of messages (a row has `messages`, or `prompt` and `completion`)"
            )
    return [message for name in names for message in row[name]]


def _image(row: Mapping[str, Any]) -> str | bytes:
    name = next((name for name in ("images", "image", IMAGE_NAMES, "file_name") if row.get(name)), None)
    if name is None:
        raise UserError("there is no image: `images` should hold one")
    held = row[name] if isinstance(row[name], list) else [row[name]]
    if len(held) != 1:
        raise UserError(f"`{name}` should hold one image, found {len(held)}")
    image = held[0]
    if isinstance(image, Mapping):
        image = image.get("bytes") or image.get("path")
    if not isinstance(image, (str, bytes)) or not image:
        raise UserError(f"`{name}` should hold a path, or bytes, found {type(image).__name__}")
    if isinstance(image, str) and "://" in image:
        raise UserError(f"`{name}` holds a URL ({image}); download the image, a run must not depend on a server")
    return image


def _text(content: Any, place: int) -> str:
    """A message's text; an image may only stand at the beginning of the first message."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise UserError(
            f"message {place}: `content` should be text or a list of blocks, found {type(content).__name__}"
        )
    texts = []
    for number, block in enumerate(content):
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "image" and (place or number):
            raise UserError(f"message {place}: the image should be the first block of the first message")
        if kind not in ("image", "text"):
            raise UserError(f"message {place}: a block of type `{kind}`; only text and one image can be read")
        texts.append(str(block.get("text") or "") if kind == "text" else "")
    return "".join(texts)
