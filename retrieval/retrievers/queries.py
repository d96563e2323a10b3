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
"""A query's side in mRAG (arXiv 2505.24073): an image, with the question or a caption, or a text alone."""
Target = Literal["I", "IT", "T", "IC", "C"]
"""A knowledge base's side: an entry's image, its image and its title, or its title; or in the title's place its
caption, which is the summary of an index that was built with captions."""

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
"""The index's field that each part of a score is a similarity to; parts in the order in which they are added up."""
BY_IMAGE: Final = frozenset(("image", "title", "summary"))
"""The parts that a query's image is compared in; the others are its text's."""


class QueryKey(NamedTuple):
    """Identity of a query: that of the image, "" without one, and the text."""

    image: ImageKey
    text: str


@dataclass(frozen=True)
class Query:
    """Query of a search.

    Attributes:
        image: An image, or None.
        text: A question, a query that was written for it, or a caption; "" for none.
        inside: Text that selects passages inside the entries found; "" for `text`.
        question: The data set's question that is searched for; None for any other.

    Raises:
        ValueError: There is neither.
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
        """Identity of what is searched for; several questions are asked about one image."""
        return QueryKey("" if self.image is None else image_key(self.image), self.text)

    @property
    def has_text(self) -> bool:
        """True if there is a text to search with."""
        return bool(self.text.strip())

    @property
    def is_both(self) -> bool:
        """True if there are an image and a text."""
        return self.image is not None and self.has_text

    @property
    def kind(self) -> str:
        """`image`, `text` or `image and text`."""
        return " and ".join(name for name, is_there in (("image", self.image), ("text", self.has_text)) if is_there)


def image_queries(questions: Sequence[Question], images: Sequence[Images]) -> list[Query]:
    """Return a query of each question's first image."""
    return [Query(image, question=question) for question, image in zip(questions, first_images(images), strict=True)]


@dataclass(frozen=True)
class Weights:
    """Weights of the similarities between a query and an entry in the entry's score; they sum to 1.

    S = image · sim(I, I_k) + title · sim(I, T_k) + text_image · sim(q, I_k) + text_title · sim(q, T_k), with a query's
    image I and text q, and an entry's image I_k and title T_k; and summary · sim(I, S_k) + text_summary · sim(q, S_k)
    for an index that has the entries' summaries S_k. The names are those of `Hit.parts`. All weights are on the query's
    side: any weights work on one index.

    A query that has both may be fused into one vector v instead, with S = Σ_f w_f · sim(v, f) over an entry's fields f,
    each weighted by the sum of its two parts. A query that has only one of them is searched as usual.

    Attributes:
        image: Query's image and entry's image.
        title: Query's image and entry's title.
        text_image: Query's text and entry's image; needs an encoder with a common space.
        text_title: Query's text and entry's title.
        summary: Query's image and entry's summary.
        text_summary: Query's text and entry's summary.
        fusion: `scores`: add the similarities, as above. `vectors`: v is the sum of the image's vector and the text's,
            each weighted as its parts, scaled to length 1; needs a common space. Where weights are products of a side's
            and a field's, as in `modality_weights`, entries come in the order of `scores`. `features`: v is the
            encoder's vector of both, read together; weights apply to fields only.

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
        """Return the weights of the parts that a query has, scaled to the sum of all.

        A query without text has no part of a text, one without image none of an image: a missing part doesn't lower
        scores. Parts of weight 0 are included, except those of summaries, which not every index has.

        Raises:
            ValueError: All weight is on parts that the query lacks.
        """
        values = {part: float(getattr(self, part)) for part in PART_FIELDS}
        values = {part: value for part, value in values.items() if value or PART_FIELDS[part] != "summary"}
        own = {
            part: value
            for part, value in values.items()
            if (query.image is not None if part in BY_IMAGE else query.has_text)
        }
        if not any(own.values()):
            raise ValueError(f"a query that has only {query.kind} can't be searched for with {self}")
        if sum(own.values()) == sum(values.values()):
            return own
        scale = sum(values.values()) / sum(own.values())
        return {part: value * scale for part, value in own.items()}

    def fused(self, fusion: Fusion) -> Weights:
        """Return the same with another rule for queries of an image and a text."""
        return dataclasses.replace(self, fusion=fusion)

    def with_summaries(self, share: float) -> Weights:
        """Move a share of the titles' weight to summaries.

        Args:
            share: From 0, which changes nothing, to 1, with which titles weigh nothing.
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
    """Return mRAG's modality configurations by score fusion (its CLIP_SF): equal sums of embeddings in one space.

    The inner product of a query's sum and an entry's sum is the sum of all similarities between their parts: for `IQ`
    and `IT` four of a quarter each. A caption is the query's text, as a question is (`IC`, `C`).

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

    Of the weight on titles, `summary_share` goes to summaries.
    """
    if query.image is None:
        weights = Weights(text_title=1.0)
    else:
        weights = equation_7() if query.has_text else equation_3(title_weight)
    return weights.with_summaries(summary_share)
