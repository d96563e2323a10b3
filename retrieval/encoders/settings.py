"""Settings of text models for retrieval, importable without their libraries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

Pooling = Literal["auto", "mean", "last", "cls"]
Similarity = Literal["auto", "cosine", "dot"]


USUAL_LENGTH: Final = 512
"""Tokens that are read of a text, if nothing else is set or declared."""


@dataclass(frozen=True)
class TextSettings:
    """Settings of a bi-encoder or a cross-encoder; unset ones (`auto`, None) are those that its repository declares.

    Attributes:
        pooling: Pooling of a bi-encoder's token vectors.
        similarity: Similarity of a bi-encoder's vectors; for `cosine` they are scaled to length 1.
        query_prefix: Text before each question.
        passage_prefix: Text before each passage.
        max_length: Tokens after which a text (bi-encoder) or a pair (cross-encoder) is truncated.
        token_budget: Maximum tokens of a forward pass, padding included; scores don't depend on it.
        dtype: `float32`, `bfloat16` or `float16`.
    """

    pooling: Pooling = "auto"
    similarity: Similarity = "auto"
    query_prefix: str | None = None
    passage_prefix: str | None = None
    max_length: int | None = None
    token_budget: int = 16_384
    dtype: str = "float32"

    def completed(self, declared: TextSettings | None = None) -> TextSettings:
        """Return the settings with unset ones as declared, else cosine, no prefixes and 512 tokens."""
        usual = declared or TextSettings()
        similarity = usual.similarity if self.similarity == "auto" else self.similarity
        return replace(
            self,
            pooling=usual.pooling if self.pooling == "auto" else self.pooling,
            similarity="cosine" if similarity == "auto" else similarity,
            query_prefix=(usual.query_prefix or "") if self.query_prefix is None else self.query_prefix,
            passage_prefix=(usual.passage_prefix or "") if self.passage_prefix is None else self.passage_prefix,
            max_length=self.max_length or usual.max_length or USUAL_LENGTH,
        )
