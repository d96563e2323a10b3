"""Adds reflection tokens to a model: ids by string, new rows that start from words and differ from one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from tokenizers import AddedToken
from torch import Tensor
from transformers import PreTrainedTokenizerBase, ProcessorMixin

from reflectune.core.errors import UserError
from reflectune.models.rendering.chat_template import before_reply
from reflectune.models.schemes.base import Scheme

NOISE = 0.1
"""Standard deviation of the noise on a new row, as a share of its matrix's."""


def add_reflection_tokens(model: Any, processor: ProcessorMixin, scheme: Scheme, *, seed: int = 0) -> dict[str, int]:
    """Add the scheme's tokens to the tokenizer, and give each a row in the embedding and in the output matrix.

    The table is enlarged only if it is too small: Qwen's is padded, and resizing it to the tokenizer would shrink it.
    A new row is the mean of its description's rows in that same matrix, plus seeded noise, so that two tokens differ.
    Tied matrices stay tied. A model that has the tokens already is left as it is.

    Args:
        model: A transformers model. Changed in place; its config remembers the scheme.
        processor: Its tokenizer is changed in place.
        scheme: Scheme of the tokens.
        seed: Of the noise.

    Returns:
        The id of each role's token; none for a scheme without tokens, which leaves the model as it is.

    Raises:
        UserError: The output matrix has fewer rows than the token table, as Mllama's has.
    """
    ids = add_to_tokenizer(processor, scheme)
    if not ids or getattr(model.config, "reflection_scheme", None) == scheme.fingerprint:
        return ids
    tokenizer = processor.tokenizer
    embedding = model.get_input_embeddings().weight  # under ZeRO-3 its whole shape is `ds_shape`
    if max(ids.values()) >= getattr(embedding, "ds_shape", embedding.shape)[0]:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    words = {role: tokenizer(scheme.descriptions[role], add_special_tokens=False)["input_ids"] for role in ids}
    matrices = _matrices(model)
    fewest = min(getattr(matrix, "ds_shape", matrix.shape)[0] for matrix in matrices)
    if max(ids.values()) >= fewest:
        raise UserError(
            f"{type(model).__name__} has {fewest} rows in its output matrix and more in its token table, so that new "
            "tokens can't be written; use another model"
        )
    for number, matrix in enumerate(matrices):
        with gathered(matrix):
            _initialise_rows(matrix, ids, words, seed=seed * 2 + number)
    model.config.reflection_scheme = scheme.fingerprint
    return ids


def add_to_tokenizer(processor: ProcessorMixin, scheme: Scheme) -> dict[str, int]:
    """Add the scheme's tokens to the tokenizer alone; the id of each role's token.

    The space that LLaVA's chat template puts before a reply must belong to the token (`lstrip`), so that it follows the
    cue directly. Qwen's cue ends in a line break, which a token with `lstrip` would swallow in training only.
    """
    lstrip = bool(scheme.tokens) and before_reply(processor).startswith(" ")
    tokens = [
        AddedToken(token, lstrip=lstrip, rstrip=False, normalized=False, special=True)
        for token in scheme.tokens.values()
    ]
    processor.tokenizer.add_tokens(tokens, special_tokens=True)
    return {role: token_id_of(processor.tokenizer, token) for role, token in scheme.tokens.items()}


def token_id_of(tokenizer: PreTrainedTokenizerBase, token: str) -> int:
    """Return the id of a token, looked up by its string, in every place where a template may put it.

    Raises:
        UserError: The tokenizer doesn't read it as one token everywhere.
    """
    token_id: Any = tokenizer.convert_tokens_to_ids(token)
    for text in (token, f" {token}", f"a: {token}", f"a:{token} b", f"\n{token}</s>"):
        token_ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if token_id is None or token_id == tokenizer.unk_token_id or token_ids.count(token_id) != 1:
            raise UserError(
                f"the tokenizer reads {token} in {text!r} as {tokenizer.convert_ids_to_tokens(token_ids)}, not as one "
                "token; it may hold a token of another kind with this text"
            )
    return token_id


def known_tokens(tokenizer: PreTrainedTokenizerBase, scheme: Scheme) -> set[str]:
    """Return those of a scheme's tokens that a tokenizer knows."""
    return set(scheme.tokens.values()) & set(tokenizer.get_added_vocab())


@torch.no_grad()
def _initialise_rows(matrix: Tensor, ids: Mapping[str, int], words: Mapping[str, Sequence[int]], *, seed: int) -> None:
    """Set the new rows of one matrix; the noise is drawn in float32 on the CPU, so that it is the same everywhere."""
    generator = torch.Generator().manual_seed(seed)
    spread = float(matrix[: min(ids.values())].float().std()) * NOISE
    for role in sorted(ids):
        mean = matrix[list(words[role])].float().mean(0)
        noise = torch.randn(mean.shape, generator=generator) * spread
        matrix[ids[role]] = (mean + noise.to(mean.device)).to(matrix.dtype)


def gathered(matrix: Tensor) -> AbstractContextManager[None]:
    """Gather a matrix that ZeRO-3 has sharded; after the block every process has its part of the first one's."""
    if not hasattr(matrix, "ds_shape"):
        return nullcontext()
    import deepspeed  # an extra, and there if a weight is divided by it

    return deepspeed.zero.GatheredParameters([matrix], modifier_rank=0)


def _matrices(model: Any) -> list[Tensor]:
    embedding, output = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    return [embedding] if output is embedding else [embedding, output]
