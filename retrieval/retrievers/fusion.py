"""A query's image and text made one vector, which is searched for once: the other way than adding up their scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from reflectune.core.errors import UserError
from reflectune.retrieval.encoders.base import ImageTextEncoder, Vectors
from reflectune.retrieval.retrievers.queries import BY_IMAGE, PART_FIELDS, Fusion

FUSED_FIELDS: Final[Mapping[str, str]] = {f"fused_{field}": field for field in ("image", "title", "summary")}
"""The index's field that each part of a fused query's score is a similarity to."""


def check_fusion(encoder: ImageTextEncoder, fusion: Fusion) -> None:
    """Refuse a rule that an encoder's vectors don't allow.

    Raises:
        UserError: Images and texts of different spaces are to be one vector, or the encoder can't read both at once.
    """
    if fusion != "scores" and encoder.text_space != "shared":
        raise UserError(
            f"the encoder {encoder.name} has a space of its own for texts: an image and a text can't become one "
            "vector; set `fusion: scores`"
        )
    if fusion == "features" and not encoder.reads_pairs:
        raise UserError(
            f"the encoder {encoder.name} doesn't read an image and a text together; set `fusion: vectors` or "
            "`scores`, or take a multimodal language model (`gme:MODEL`, `vlm2vec:MODEL`)"
        )


def fused_weights(weights: Mapping[str, float]) -> dict[str, float]:
    """Return the weight of each field for a fused query vector: the sum of the parts' weights.

    Args:
        weights: Weights of the parts of a query that has both, from `Weights.of`.
    """
    return {
        part: sum(weight for each, weight in weights.items() if PART_FIELDS[each] == field)
        for part, field in FUSED_FIELDS.items()
        if any(PART_FIELDS[each] == field for each in weights)
    }


def weighted_sum(weights: Mapping[str, float], image: Vectors, text: Vectors) -> Vectors:
    """Return the weighted sum of an image's and a text's vectors, scaled to length 1; zero if they cancel out.

    Each weighs as much as all of its parts do.

    Args:
        weights: Of the parts of a query that has both.
        image: The image's vector, shape (dimensions,).
        text: The text's.
    """
    total = sum(weights.values())
    by_image = sum(weight for part, weight in weights.items() if part in BY_IMAGE) / total
    vector = by_image * image.astype(np.float64) + (1 - by_image) * text.astype(np.float64)
    length = float(np.linalg.norm(vector))
    return (vector / length if length else vector).astype(np.float32)
