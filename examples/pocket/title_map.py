"""A learned linear map from an image encoder's space into a text encoder's, for images and titles of two models.

CLIP compares an image with a title because its towers were trained together. Pocket has an image tower alone: a ridge
regression from vectors of images to the vectors of their entries' titles takes the place of the text tower. This is
ours, not the paper's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from reflectune.core.durable import write_atomically
from reflectune.core.errors import UserError

SHIPPED: Final = Path(__file__).parent / "models" / "title_map.safetensors"
"""The map of the encoder `pocket/clip`: `pocket/vision` for images, `pocket/text` for titles."""
PENALTIES: Final = tuple(float(10**exponent) for exponent in np.arange(-4, 0.01, 0.5))
"""Penalties to choose from, each multiplied by the number of images."""
FOLDS: Final = 5

_RECORD = "record"
_NAMES = ("weight", "bias")

Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TitleMap:
    """An affine map from image vectors to title vectors.

    Attributes:
        weight: Shape (image dimensions, title dimensions).
        bias: Shape (title dimensions,).
        record: Data, settings and quality of the fit; `vision` and `text` name the models.
    """

    weight: Vectors
    bias: Vectors
    record: Mapping[str, Any]

    def apply(self, images: Vectors) -> Vectors:
        """Map image vectors, shape (n, image dimensions), into the titles' space, at length 1."""
        mapped = images @ self.weight + self.bias  # (n, title dimensions)
        return mapped / np.maximum(np.linalg.norm(mapped, axis=1, keepdims=True), 1e-12)


def fit_title_map(
    images: Vectors, titles: Vectors, shown: npt.NDArray[np.int64], penalties: Sequence[float] = PENALTIES
) -> tuple[Vectors, Vectors, dict[str, Any]]:
    """Fit a ridge regression with an intercept, in closed form.

    The chosen penalty maximises the mean reciprocal rank of held-out images' titles among all titles. All images of
    an entry are held out together.

    Args:
        images: Vectors of images, shape (n, image dimensions).
        titles: Vectors of the titles of all entries, of length 1, shape (entries, title dimensions).
        shown: Row of `titles` of each image's entry, shape (n,).
        penalties: Penalties to choose from; each is multiplied by the number of images fitted on.

    Returns:
        The weight, shape (image dimensions, title dimensions); the bias, shape (title dimensions,); and the penalty
        with the mean reciprocal rank under each penalty.

    Raises:
        ValueError: The images show fewer than two entries.
    """
    entries, entry_rows = np.unique(shown, return_inverse=True)
    if len(entries) < 2:
        raise ValueError(f"images of {len(entries)} entry can't be held out from each other; give two or more")
    fold = entry_rows % min(FOLDS, len(entries))
    x, all_titles = images.astype(np.float64), titles.astype(np.float64)
    reciprocal = np.zeros((len(penalties), len(x)))
    for number in range(fold.max() + 1):
        held = fold == number
        for row, (weight, bias) in enumerate(_ridge(x[~held], all_titles[shown[~held]], penalties)):
            reciprocal[row, held] = _reciprocal_ranks((x[held] @ weight + bias) @ all_titles.T, shown[held])
    means = reciprocal.mean(1)
    penalty = penalties[int(means.argmax())]
    ((weight, bias),) = _ridge(x, all_titles[shown], [penalty])
    held_out = {f"{value:.3g}": round(float(mean), 4) for value, mean in zip(penalties, means, strict=True)}
    return weight.astype(np.float32), bias.astype(np.float32), {"penalty": penalty, "held_out_mrr": held_out}


def _ridge(
    x: npt.NDArray[np.float64], y: npt.NDArray[np.float64], penalties: Sequence[float]
) -> list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]:
    """Return (weight, bias) for each penalty; the intercept isn't penalised."""
    x_mean, y_mean = x.mean(0), y.mean(0)
    values, axes = np.linalg.eigh((x - x_mean).T @ (x - x_mean))
    product = axes.T @ ((x - x_mean).T @ (y - y_mean))
    weights = [axes @ (product / (values.clip(min=0) + penalty * len(x))[:, None]) for penalty in penalties]
    return [(weight, y_mean - x_mean @ weight) for weight in weights]


def _reciprocal_ranks(similarities: npt.NDArray[np.float64], gold: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return 1 / rank of each row's gold column, shape (rows,); the length of a mapped vector changes no rank."""
    gold_similarity = similarities[np.arange(len(gold)), gold][:, None]
    return 1 / (1 + (similarities > gold_similarity).sum(1))


def write_title_map(path: Path, title_map: TitleMap) -> None:
    """Write a map as fp16 safetensors, with its record as metadata."""
    tensors = {"weight": title_map.weight.astype(np.float16), "bias": title_map.bias.astype(np.float16)}
    metadata = {_RECORD: json.dumps(title_map.record, ensure_ascii=False, sort_keys=True)}
    write_atomically(path, save(tensors, metadata=metadata))


def read_title_map(path: Path) -> TitleMap:
    """Read a map.

    Raises:
        UserError: The file is missing, damaged, or holds other tensors.
    """
    advice = "`python -m reflectune.examples.pocket.fit_title_map` writes one"
    if not path.is_file():
        raise UserError(f"no title map at {path}; {advice}")
    try:
        with safe_open(path, framework="numpy") as file:
            tensors = {name: file.get_tensor(name) for name in list(file.keys())}
            record = json.loads((file.metadata() or {}).get(_RECORD, "null"))
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"the title map {path} cannot be read: {error}; {advice}") from error
    if set(tensors) != set(_NAMES) or not isinstance(record, dict) or not {"vision", "text"} <= set(record):
        raise UserError(
            f"{path} is not a title map: it holds {', '.join(sorted(tensors)) or 'nothing'}, not weight and bias with "
            f"a record of their models; {advice}"
        )
    weight, bias = (tensors[name].astype(np.float32) for name in _NAMES)
    finite = np.isfinite(weight).all() and np.isfinite(bias).all()
    if weight.ndim != 2 or bias.shape != weight.shape[1:] or not finite:
        raise UserError(
            f"{path}: a weight of shape {weight.shape} with a bias of shape {bias.shape} should be a matrix with one "
            f"bias per column, all finite; {advice}"
        )
    return TitleMap(weight, bias, record)
