"""Files in the layouts of published sets, and the questions that their readers find in them."""

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from reflectune.core.types import Question
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.registry import question_reader


def jsonl(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def array(path: Path, *rows: object) -> Path:
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def parquet(path: Path, *rows: Mapping[str, Any], schema: pa.Schema | None = None) -> Path:
    pq.write_table(pa.Table.from_pylist(list(rows), schema), path)
    return path


def csv_file(path: Path, *rows: Mapping[str, Any]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def draw(folder: Path, *names: str) -> Path:
    """Write small images of these names, and return the folder."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(folder / name)
    return folder


def encoded(colour: str, form: str = "JPEG") -> bytes:
    """Return an image of one colour as the bytes of a file."""
    Image.new("RGB", (4, 4), colour).save(buffer := io.BytesIO(), form)
    return buffer.getvalue()


def read_set(name: str, source: Any, images: Any = None, *, split: str = "train", **options: Any) -> list[Question]:
    """Return the questions of a source; `images` is an `ImageFolder`, or its path."""
    folder = images if isinstance(images, ImageFolder) else ImageFolder(images)
    return [question for question, _ in question_reader(name)(source, split=split, images=folder, **options)]
