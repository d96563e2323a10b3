"""Presets of published text encoders from their model cards: prefixes, pooling, similarity and length.

A preset is chosen by the encoder's name and fills unset keys. The index's manifest stores the result. The cards:

- **E5** (intfloat/e5-base-v2): the prefixes "query: " and "passage: ", mean pooling, 512 tokens. The instruct models
  put a task before the query and nothing before the passage: e5-mistral-7b-instruct pools the last token and reads 4096
  tokens, multilingual-e5-large-instruct uses the mean.
- **BGE** (BAAI/bge-base-en-v1.5): a sentence before the query, nothing before the passage, the first token.
  BAAI/bge-m3 has no prefixes and reads 8192 tokens.
- **Contriever** (facebook/contriever): no prefixes, the mean, and the inner product of vectors of any length.
- **GTE**: no prefixes. thenlper/gte-base uses the mean and reads 512 tokens, Alibaba-NLP/gte-modernbert-base uses the
  first token and reads 8192.
- **Qwen3-Embedding** (Qwen/Qwen3-Embedding-0.6B): a task before the query, without a space after `Query:`, nothing
  before the passage, the last token, which is the end token that the tokenizer appends, and 8192 tokens. The card pads
  on the left; padding on the right with a mask gives a causal model the same vectors.
- **SFR-Embedding-Mistral** (Salesforce): as E5-mistral.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

from reflectune.retrieval.encoders.settings import Pooling, TextSettings

TASK: Final = "Given a web search query, retrieve relevant passages that answer the query"
"""Retrieval task in the words of the cards of Qwen3-Embedding, E5-mistral and SFR-Embedding-Mistral."""


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
"""Presets by hub id."""


def text_settings(name: str, **keys: Any) -> TextSettings:
    """Return an encoder's settings: the given ones, then those of its preset, if there is one.

    Args:
        name: Name of the encoder. The preset of a hub id also applies to `owner/name@COMMIT`, and to a folder that ends
            in the id, such as `models/intfloat/e5-base-v2`.
        keys: Fields of `TextSettings`.
    """
    hub_id = "/".join(PurePath(name.partition("@")[0]).parts[-2:])
    return TextSettings(**keys).or_else(PRESETS.get(hub_id, TextSettings()))


def in_words(settings: TextSettings) -> str:
    """Describe an encoder's settings on one line."""
    settings = settings.completed()
    parts = [f"pooling {settings.pooling}", f"similarity {settings.similarity}", f"{settings.max_length:,} tokens"]
    prefixes = {"question": settings.query_prefix, "passage": settings.passage_prefix}
    parts += [f"{prefix!r} before each {what}" for what, prefix in prefixes.items() if prefix]
    return ", ".join(parts)
