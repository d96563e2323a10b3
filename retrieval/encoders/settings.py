"""How a text model that retrieves reads: settings without the libraries that it runs on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Pooling = Literal["auto", "mean", "last", "cls"]
Similarity = Literal["cosine", "dot"]


@dataclass(frozen=True)
class TextSettings:
    """How a bi-encoder or a cross-encoder reads.

    Attributes:
        pooling: Of a bi-encoder's token vectors; `auto` takes what the repository declares.
        similarity: Of a bi-encoder's vectors.
        query_prefix: Put before each question, as the model card says.
        passage_prefix: Put before each passage.
        max_length: Tokens beyond which a text (a bi-encoder's) or a pair (a cross-encoder's) is cut.
        token_budget: Most tokens of a forward pass, padding included; decides no score.
        dtype: `float32`, `bfloat16` or `float16`.
    """

    pooling: Pooling = "auto"
    similarity: Similarity = "cosine"
    query_prefix: str = ""
    passage_prefix: str = ""
    max_length: int = 512
    token_budget: int = 16_384
    dtype: str = "float32"
