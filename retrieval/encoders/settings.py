"""Settings of text models for retrieval, importable without torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

Pooling = Literal["auto", "mean", "last", "cls"]
Similarity = Literal["auto", "cosine", "dot"]

USUAL_LENGTH: Final = 512
"""Tokens after which a text is truncated, if no length is set or declared."""


@dataclass(frozen=True)
class TextSettings:
    """Settings of a bi-encoder or a cross-encoder; unset ones (`auto`, None) are read from its repository.

    Attributes:
        pooling: Pooling of a bi-encoder's token vectors.
        similarity: Similarity of a bi-encoder's vectors; `cosine` scales them to length 1.
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

    def or_else(self, usual: TextSettings) -> TextSettings:
        """Fill unset settings from `usual`."""
        unset = ("auto", None)
        changed = {name: getattr(usual, name) for name in _MAY_BE_UNSET if getattr(self, name) in unset}
        return replace(self, **changed)

    def completed(self, declared: TextSettings | None = None) -> TextSettings:
        """Fill unset settings from `declared`, then with cosine, no prefixes and 512 tokens."""
        return self.or_else(declared or TextSettings()).or_else(_USUAL)


_MAY_BE_UNSET: Final = ("pooling", "similarity", "query_prefix", "passage_prefix", "max_length")
_USUAL: Final = TextSettings(similarity="cosine", query_prefix="", passage_prefix="", max_length=USUAL_LENGTH)
