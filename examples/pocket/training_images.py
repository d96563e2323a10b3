"""Images to fit a title map on: of training alone, and none of a held-out question."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from reflectune.core.durable import read_row
from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.core.parquet import open_parquet, stream_rows
from reflectune.core.progress import progress_bar
from reflectune.examples.pocket.title_map import Vectors
from reflectune.retrieval.encoders.clip import ImageTower


def training_images(path: Path) -> list[tuple[str, str]]:
    """Return (image, entity) of each row whose use is `train`, without images that also have a different use.

    Images of questions of other splits are left out as well, read from `questions/` in the same folder: a held-out
    question may be about an image that training has.

    Raises:
        UserError: The file is missing, or a row is not as it should be.
    """
    if not path.is_file():
        raise UserError(f"`images`: the file {path} does not exist")
    rows = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            row = read_row(line, f"{path}:{number}")
            try:
                image, entity, use = row["image"], row["entity"], row["use"]
            except KeyError as error:
                raise UserError(f"{path}:{number}: should be JSON with image, entity and use: {error!r}") from error
            if not all(isinstance(value, str) for value in (image, entity, use)):
                raise UserError(f"{path}:{number}: image, entity and use should be texts")
            rows.append((image, entity, use))
    elsewhere = {image for image, _, use in rows if use != "train"} | _asked_about(path.parent / "questions")
    return [(image, entity) for image, entity, use in rows if use == "train" and image not in elsewhere]


def _asked_about(folder: Path) -> set[str]:
    """Return the images of the questions of every split whose name doesn't contain `train`."""
    files = [file for file in folder.rglob("*.parquet") if "train" not in str(file.relative_to(folder))]
    images: set[str] = set()
    for path in files:
        with open_parquet(path, "build the data set again") as file:
            images.update(row["image"] for row in stream_rows(file, pa.schema([("image", pa.string())])))
    return images


def encode_images(tower: ImageTower, folder: Path, images: list[str], batch_size: int) -> Vectors:
    """Encode the images of a folder, shape (n, dimensions)."""
    vectors = []
    with progress_bar(total=len(images), unit="image", desc="encoding") as bar:
        for start in range(0, len(images), batch_size):
            batch = images[start : start + batch_size]
            vectors.append(tower.encode_images([load_image(image, root=(folder,)) for image in batch]))
            bar.update(len(batch))
    return np.concatenate(vectors)
