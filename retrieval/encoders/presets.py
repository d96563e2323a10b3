"""Presets of published text encoders by their model cards: prefixes, pooling, similarity and length.

A preset is found by the encoder's name and replaces unset keys; the index's manifest stores the result. The cards:

- **E5** (intfloat/e5-base-v2): "query: " and "passage: " in front, the mean of the last layer's token vectors, 512
  tokens. The instruct models put a task before the query and nothing before the passage: e5-mistral-7b-instruct uses
  the last token and reads 4096, multilingual-e5-large-instruct uses the mean.
- **BGE** (BAAI/bge-base-en-v1.5): one sentence before a short query, nothing before the passage, the first token.
  BAAI/bge-m3 has no prefixes and reads 8192 tokens.
- **Contriever** (facebook/contriever): no prefixes, the mean, and the inner product of unscaled vectors.
- **GTE**: no prefixes. thenlper/gte-base uses the mean and reads 512 tokens, Alibaba-NLP/gte-modernbert-base uses the
  first token and reads 8192.
- **Qwen3-Embedding** (Qwen/Qwen3-Embedding-0.6B): a task before the query, without a space after `Query:`; nothing
  before the passage; the vector of the last token, which is the end token that the tokenizer adds; 8192 tokens. It pads
  on the left. Padding on the right with a mask is equal for a causal model.
- **SFR-Embedding-Mistral** (Salesforce): as E5-mistral.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, Literal

from reflectune.retrieval.encoders.settings import Pooling, Similarity, TextSettings

TASK: Final = "Given a web search query, retrieve relevant passages that answer the query"
"""The task of retrieval, as the cards of Qwen3-Embedding, E5-mistral and SFR-Embedding-Mistral word it."""


@dataclass(frozen=True)
class Preset:
    """Settings of one encoder.

    Attributes:
        pooling: Pooling of token vectors.
        query_prefix: Text before each question.
        passage_prefix: Text before each passage.
        similarity: Similarity of vectors; for `cosine` they are scaled to length 1.
        max_length: Tokens after which a text is truncated.
    """

    pooling: Literal["mean", "last", "cls"]
    query_prefix: str = ""
    passage_prefix: str = ""
    similarity: Similarity = "cosine"
    max_length: int = 512


_E5 = Preset("mean", "query: ", "passage: ")
_BGE = Preset("cls", "Represent this sentence for searching relevant passages: ")
_CONTRIEVER = Preset("mean", similarity="dot")
_GTE = Preset("mean")
_QWEN3 = Preset("last", f"Instruct: {TASK}\nQuery:", max_length=8192)
_INSTRUCT = f"Instruct: {TASK}\nQuery: "

PRESETS: Final[Mapping[str, Preset]] = {
    **{f"intfloat/e5-{size}{version}": _E5 for size in ("small", "base", "large") for version in ("", "-v2")},
    **{f"intfloat/multilingual-e5-{size}": _E5 for size in ("small", "base", "large")},
    "intfloat/multilingual-e5-large-instruct": Preset("mean", _INSTRUCT),
    "intfloat/e5-mistral-7b-instruct": Preset("last", _INSTRUCT, max_length=4096),
    "Salesforce/SFR-Embedding-Mistral": Preset("last", _INSTRUCT, max_length=4096),
    **{f"BAAI/bge-{size}-en-v1.5": _BGE for size in ("small", "base", "large")},
    "BAAI/bge-m3": Preset("cls", max_length=8192),
    "facebook/contriever": _CONTRIEVER,
    "facebook/contriever-msmarco": _CONTRIEVER,
    **{f"thenlper/gte-{size}": _GTE for size in ("small", "base", "large")},
    "Alibaba-NLP/gte-modernbert-base": Preset("cls", max_length=8192),
    **{f"Qwen/Qwen3-Embedding-{size}": _QWEN3 for size in ("0.6B", "4B", "8B")},
}
"""By hub id."""


def find_preset(name: str) -> Preset | None:
    """Return the preset of an encoder; None for one that isn't listed.

    Args:
        name: A hub id, perhaps with a commit (`owner/name@COMMIT`), or a folder that ends in one, as
            `models/intfloat/e5-base-v2` does.
    """
    return PRESETS.get("/".join(PurePath(name.partition("@")[0]).parts[-2:]))


def text_settings(
    name: str,
    *,
    pooling: Pooling = "auto",
    similarity: Similarity = "auto",
    query_prefix: str | None = None,
    passage_prefix: str | None = None,
    max_length: int | None = None,
    token_budget: int = TextSettings.token_budget,
    dtype: str = TextSettings.dtype,
) -> TextSettings:
    """Return an encoder's settings: arguments first, then its preset; the rest is unset (`TextSettings.completed`).

    Args:
        name: Name of the encoder.
        pooling: `auto` is unset.
        similarity: `auto` is unset.
        query_prefix: None is unset.
        passage_prefix: None is unset.
        max_length: None is unset.
        token_budget: Maximum tokens of a forward pass.
        dtype: Precision of the weights.
    """
    preset = find_preset(name)
    usual: Preset | TextSettings = preset or TextSettings()
    return TextSettings(
        pooling=usual.pooling if pooling == "auto" else pooling,
        similarity=usual.similarity if similarity == "auto" else similarity,
        query_prefix=usual.query_prefix if query_prefix is None else query_prefix,
        passage_prefix=usual.passage_prefix if passage_prefix is None else passage_prefix,
        max_length=max_length or usual.max_length,
        token_budget=token_budget,
        dtype=dtype,
    )


def in_words(settings: TextSettings) -> str:
    """Describe an encoder's settings in a line."""
    settings = settings.completed()
    parts = [f"pooling {settings.pooling}", f"similarity {settings.similarity}", f"{settings.max_length:,} tokens"]
    prefixes = {"question": settings.query_prefix, "passage": settings.passage_prefix}
    parts += [f"{prefix!r} before each {what}" for what, prefix in prefixes.items() if prefix]
    return ", ".join(parts)
