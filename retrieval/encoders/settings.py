"""Settings of text models for retrieval, importable without their libraries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Pooling = Literal["auto", "mean", "last", "cls"]
Similarity = Literal["cosine", "dot"]


@dataclass(frozen=True)
class TextSettings:
    """Settings of a bi-encoder or a cross-encoder.

    Attributes:
        pooling: Pooling of a bi-encoder's token vectors; `auto` uses the repository's declaration.
        similarity: Similarity of a bi-encoder's vectors.
        query_prefix: Text before each question, by the model card.
        passage_prefix: Text before each passage.
        max_length: Tokens after which a text (bi-encoder) or a pair (cross-encoder) is truncated.
        token_budget: Most tokens of a forward pass, padding included; scores don't depend on it.
        dtype: `float32`, `bfloat16` or `float16`.
    """

    pooling: Pooling = "auto"
    similarity: Similarity = "cosine"
    query_prefix: str = ""
    passage_prefix: str = ""
    max_length: int = 512
    token_budget: int = 16_384
    dtype: str = "float32"
