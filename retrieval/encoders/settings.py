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

    def or_else(self, usual: TextSettings) -> TextSettings:
        """Return the settings with unset ones replaced by those of `usual`."""
        unset = ("auto", None)
        changed = {name: getattr(usual, name) for name in _MAY_BE_UNSET if getattr(self, name) in unset}
        return replace(self, **changed)

    def completed(self, declared: TextSettings | None = None) -> TextSettings:
        """Return the settings with unset ones as declared, else cosine, no prefixes and 512 tokens."""
        return self.or_else(declared or TextSettings()).or_else(_USUAL)


_MAY_BE_UNSET: Final = ("pooling", "similarity", "query_prefix", "passage_prefix", "max_length")
_USUAL: Final = TextSettings(similarity="cosine", query_prefix="", passage_prefix="", max_length=USUAL_LENGTH)
