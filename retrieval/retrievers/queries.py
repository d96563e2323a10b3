"""Queries of an image, a text or both, and the weights of their similarities to an entry."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from PIL import Image

from reflectune.core.images import ImageKey, Images, first_images, image_key
from reflectune.core.types import Question

Modality = Literal["I", "IQ", "IC", "Q", "C"]
"""Modality of a query in mRAG (arXiv 2505.24073): an image, alone or with the question or a caption, or a text."""
Target = Literal["I", "IT", "T", "IC", "C"]
"""Modality of an entry: image, image and title, or title; or with its caption in place of the title.

In an index that was built with captions, these are the summaries."""

Fusion = Literal["scores", "vectors", "features"]
"""Fusion of a query's image and text; see `Weights`."""

PART_FIELDS: Final[Mapping[str, str]] = {
    "image": "image",
    "title": "title",
    "text_image": "image",
    "text_title": "title",
    "summary": "summary",
    "text_summary": "summary",
}
"""Index field that each part of a score compares with; parts in the order of summation."""
BY_IMAGE: Final = frozenset(("image", "title", "summary"))
"""Parts that compare a query's image; the others compare its text."""


class QueryKey(NamedTuple):
    """Identity of a query: the key of its image, or "" without one, and its text."""

    image: ImageKey
    text: str


@dataclass(frozen=True)
class Query:
    """Query of a search.

    Attributes:
        image: An image, or None.
        text: A question, a generated query, or a caption; "" for none.
        inside: Text that ranks passages of the retrieved entries; "": `text`.
        question: The data set's question that the query belongs to, if any.

    Raises:
        ValueError: There is neither an image nor a text.
    """

    image: Image.Image | None = None
    text: str = ""
    inside: str = ""
    question: Question | None = None

    def __post_init__(self) -> None:
        if self.image is None and not self.text.strip():
            raise ValueError("a query needs an image or a text, and has neither")

    @property
    def key(self) -> QueryKey:
        """Identity of the query; equal queries are searched once."""
        return QueryKey("" if self.image is None else image_key(self.image), self.text)

    @property
    def has_text(self) -> bool:
        """True if there is a text to search with."""
        return bool(self.text.strip())

    @property
    def is_both(self) -> bool:
        """True if there is both an image and a text."""
        return self.image is not None and self.has_text

    @property
    def kind(self) -> str:
        """`image`, `text` or `image and text`."""
        if self.is_both:
            return "image and text"
        return "text" if self.image is None else "image"


def image_queries(questions: Sequence[Question], images: Sequence[Images]) -> list[Query]:
    """Return a query for each question's first image."""
    return [Query(image, question=question) for question, image in zip(questions, first_images(images), strict=True)]


@dataclass(frozen=True)
class Weights:
    """Weights of the similarities between a query and an entry in the entry's score; they sum to 1.

    S = image · sim(I, I_k) + title · sim(I, T_k) + text_image · sim(q, I_k) + text_title · sim(q, T_k), with a query's
    image I and text q, and an entry's image I_k and title T_k; and summary · sim(I, S_k) + text_summary · sim(q, S_k)
    for an index that has the entries' summaries S_k. The names are those of `Hit.parts`. Weights are multiplied into
    the query's vectors, so that one index serves all weights.

    A query with an image and a text may be fused into one vector v instead, with S = Σ_f w_f · sim(v, f) over an
    entry's fields f, where w_f is the sum of the field's two parts. Other queries are not affected by `fusion`.

    Attributes:
        image: Query's image and entry's image.
        title: Query's image and entry's title.
        text_image: Query's text and entry's image; needs an encoder with a common space.
        text_title: Query's text and entry's title.
        summary: Query's image and entry's summary.
        text_summary: Query's text and entry's summary.
        fusion: `scores`: add the similarities, as above. `vectors`: v is the weighted sum of the image's and the text's
            vectors, scaled to length 1; needs a common space. If the weights are products of a modality's and a field's
            weight, as in `modality_weights`, it ranks entries as `scores` does. `features`: v is the encoder's
            vector of image and text read together; only the weights of fields matter.

    Raises:
        ValueError: A weight is negative or NaN, or they don't sum to 1.
    """

    image: float = 0.0
    title: float = 0.0
    text_image: float = 0.0
    text_title: float = 0.0
    summary: float = 0.0
    text_summary: float = 0.0
    fusion: Fusion = "scores"

    def __post_init__(self) -> None:
        values = [getattr(self, part) for part in PART_FIELDS]
        if not all(0 <= value <= 1 for value in values) or not math.isclose(sum(values), 1, abs_tol=1e-6):
            raise ValueError(f"weights must be from 0 to 1 and sum to 1, found {self}")

    def of(self, query: Query) -> dict[str, float]:
        """Return the weights of the parts that a query has, rescaled so that missing parts don't lower scores.

        A query without a text lacks the parts of the text, one without an image those of the image. Parts of weight 0
        are included, except for summaries, which not every index has.

        Raises:
            ValueError: The query has no part with a weight above 0.
        """
        values = {part: float(getattr(self, part)) for part in PART_FIELDS}
        values = {part: value for part, value in values.items() if value or PART_FIELDS[part] != "summary"}
        own = {
            part: value
            for part, value in values.items()
            if (query.image is not None if part in BY_IMAGE else query.has_text)
        }
        if not any(own.values()):
            raise ValueError(f"a query that has only {query.kind} can't be searched with {self}")
        if sum(own.values()) == sum(values.values()):
            return own
        scale = sum(values.values()) / sum(own.values())
        return {part: value * scale for part, value in own.items()}

    def fused(self, fusion: Fusion) -> Weights:
        """Return the same weights with another `fusion`."""
        return dataclasses.replace(self, fusion=fusion)

    def with_summaries(self, share: float) -> Weights:
        """Move a share of the titles' weight to summaries.

        Args:
            share: From 0 (no change) to 1 (titles have no weight).
        """
        return dataclasses.replace(
            self,
            title=self.title * (1 - share),
            summary=self.summary + self.title * share,
            text_title=self.text_title * (1 - share),
            text_summary=self.text_summary + self.text_title * share,
        )


def equation_3(title_weight: float = 0.5) -> Weights:
    """Return the weights of mR²AG's equation 3 (arXiv 2411.15041): (1 - w) · sim(I, I_k) + w · sim(I, T_k).

    Raises:
        ValueError: `title_weight` is not from 0 to 1.
    """
    return Weights(image=1 - title_weight, title=title_weight)


def equation_7(text_weight: float = 0.5) -> Weights:
    """Return the weights of PMSR's equation 7: λ · sim(q, T_k) + (1 - λ) · sim(I, I_k).

    Raises:
        ValueError: λ is not from 0 to 1.
    """
    return Weights(image=1 - text_weight, text_title=text_weight)


def modality_weights(query: Modality, target: Target) -> Weights:
    """Return the weights of mRAG's modality configurations with score fusion (CLIP_SF), which adds up embeddings.

    The inner product of a query's sum and an entry's sum is the sum of all similarities between their parts: four with
    a weight of 1/4 for `IQ` and `IT`. A caption is the query's text, as a question is (`IC`, `C`).

    Args:
        query: Modality of the query.
        target: Modality of the entries.

    Example:
        >>> modality_weights("I", "IT") == equation_3()
        True
        >>> modality_weights("IQ", "I") == Weights(image=0.5, text_image=0.5)
        True
    """
    by_image = {"I": "image", "T": "title", "C": "summary"}
    by_text = {"I": "text_image", "T": "text_title", "C": "text_summary"}
    parts = [(by_image if side == "I" else by_text)[field] for side in query for field in target]
    weights: dict[str, Any] = {part: 1 / len(parts) for part in parts}
    return Weights(**weights)


def usual_weights(query: Query, title_weight: float = 0.5, summary_share: float = 0.0) -> Weights:
    """Return a query's default weights: equation 3 for an image, equation 7 with a text, titles for a text alone.

    `summary_share` of the titles' weight is moved to summaries.
    """
    if query.image is None:
        weights = Weights(text_title=1.0)
    else:
        weights = equation_7() if query.has_text else equation_3(title_weight)
    return weights.with_summaries(summary_share)
