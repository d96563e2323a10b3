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
from pathlib import PurePath
from typing import Any, Final

from reflectune.retrieval.encoders.settings import Pooling, TextSettings

TASK: Final = "Given a web search query, retrieve relevant passages that answer the query"
"""The task of retrieval, as the cards of Qwen3-Embedding, E5-mistral and SFR-Embedding-Mistral word it."""


def _preset(
    pooling: Pooling, query_prefix: str = "", passage_prefix: str = "", *, dot: bool = False, max_length: int = 512
) -> TextSettings:
    return TextSettings(pooling, "dot" if dot else "cosine", query_prefix, passage_prefix, max_length)


_E5 = _preset("mean", "query: ", "passage: ")
_BGE = _preset("cls", "Represent this sentence for searching relevant passages: ")
_CONTRIEVER = _preset("mean", dot=True)
_GTE = _preset("mean")
_QWEN3 = _preset("last", f"Instruct: {TASK}\nQuery:", max_length=8192)
_INSTRUCT = f"Instruct: {TASK}\nQuery: "

PRESETS: Final[Mapping[str, TextSettings]] = {
    **{f"intfloat/e5-{size}{version}": _E5 for size in ("small", "base", "large") for version in ("", "-v2")},
    **{f"intfloat/multilingual-e5-{size}": _E5 for size in ("small", "base", "large")},
    "intfloat/multilingual-e5-large-instruct": _preset("mean", _INSTRUCT),
    "intfloat/e5-mistral-7b-instruct": _preset("last", _INSTRUCT, max_length=4096),
    "Salesforce/SFR-Embedding-Mistral": _preset("last", _INSTRUCT, max_length=4096),
    **{f"BAAI/bge-{size}-en-v1.5": _BGE for size in ("small", "base", "large")},
    "BAAI/bge-m3": _preset("cls", max_length=8192),
    "facebook/contriever": _CONTRIEVER,
    "facebook/contriever-msmarco": _CONTRIEVER,
    **{f"thenlper/gte-{size}": _GTE for size in ("small", "base", "large")},
    "Alibaba-NLP/gte-modernbert-base": _preset("cls", max_length=8192),
    **{f"Qwen/Qwen3-Embedding-{size}": _QWEN3 for size in ("0.6B", "4B", "8B")},
}
"""By hub id."""


def find_preset(name: str) -> TextSettings | None:
    """Return the preset of an encoder; None for one that isn't listed.

    Args:
        name: A hub id, perhaps with a commit (`owner/name@COMMIT`), or a folder that ends in one, as
            `models/intfloat/e5-base-v2` does.
    """
    return PRESETS.get("/".join(PurePath(name.partition("@")[0]).parts[-2:]))


def text_settings(name: str, **keys: Any) -> TextSettings:
    """Return an encoder's settings: the given keys first, then its preset; the rest is unset.

    Args:
        name: Name of the encoder.
        keys: Fields of `TextSettings`.
    """
    return TextSettings(**keys).or_else(find_preset(name) or TextSettings())


def in_words(settings: TextSettings) -> str:
    """Describe an encoder's settings in a line."""
    settings = settings.completed()
    parts = [f"pooling {settings.pooling}", f"similarity {settings.similarity}", f"{settings.max_length:,} tokens"]
    prefixes = {"question": settings.query_prefix, "passage": settings.passage_prefix}
    parts += [f"{prefix!r} before each {what}" for what, prefix in prefixes.items() if prefix]
    return ", ".join(parts)
