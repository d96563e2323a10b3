"""Fuse a query's image and text into one vector, instead of adding up their scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from reflectune.core.errors import UserError
from reflectune.retrieval.encoders.base import ImageTextEncoder, Vectors
from reflectune.retrieval.retrievers.queries import BY_IMAGE, PART_FIELDS, Fusion

FUSED_FIELDS: Final[Mapping[str, str]] = {f"fused_{field}": field for field in ("image", "title", "summary")}
"""Index field that each part of a fused query's score compares with."""


def check_fusion(encoder: ImageTextEncoder, fusion: Fusion) -> None:
    """Refuse a fusion that an encoder doesn't support.

    Raises:
        UserError: Its images and texts have different spaces, or it can't read an image and a text together.
    """
    if fusion != "scores" and encoder.text_space != "shared":
        raise UserError(
            f"the encoder {encoder.name} has a separate space for texts: an image and a text can't be fused into one "
            "vector; set `fusion: scores`"
        )
    if fusion == "features" and not encoder.reads_pairs:
        raise UserError(
            f"the encoder {encoder.name} doesn't read an image and a text together; set `fusion: vectors` or "
            "`scores`, or use a multimodal LLM (`gme:MODEL`, `vlm2vec:MODEL`)"
        )


def fused_weights(weights: Mapping[str, float]) -> dict[str, float]:
    """Return the weight of each field for a fused query vector: the sum of its parts' weights.

    Args:
        weights: Weights of the parts of a query that has an image and a text, from `Weights.of`.
    """
    fused: dict[str, float] = {}
    for fused_part, field in FUSED_FIELDS.items():
        if parts := [part for part in weights if PART_FIELDS[part] == field]:
            fused[fused_part] = sum(weights[part] for part in parts)
    return fused


def weighted_sum(weights: Mapping[str, float], image: Vectors, text: Vectors) -> Vectors:
    """Return the weighted sum of an image's and a text's vectors, scaled to length 1; zero if they cancel out.

    The weight of each vector is the sum of its parts' weights.

    Args:
        weights: Weights of the parts of a query that has an image and a text.
        image: The image's vector, shape (dimensions,).
        text: The text's vector, shape (dimensions,).
    """
    total = sum(weights.values())
    image_share = sum(weight for part, weight in weights.items() if part in BY_IMAGE) / total
    vector = image_share * image.astype(np.float64) + (1 - image_share) * text.astype(np.float64)
    length = float(np.linalg.norm(vector))
    return (vector / length if length else vector).astype(np.float32)
