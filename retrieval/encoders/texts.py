"""Encode texts with a text model, in batches of similar length, and pool their token vectors."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from reflectune.retrieval.encoders.checkpoints import Checkpoint, load_tokenizer, load_weights
from reflectune.retrieval.encoders.modules import Modules, PoolingMode


class TextModel:
    """Model and tokenizer of a bi-encoder, which encodes a text as one vector.

    Args:
        checkpoint: The model's files.
        device: Device of the model.
        pooling: Pooling of token vectors.
        max_length: Tokens after which a text is truncated.
        token_budget: Maximum tokens of a forward pass, padding included.
        dtype: Precision of the weights.

    Attributes:
        dimensions: Length of a vector.
        longest: Tokens after which a text is truncated: `max_length`, or the model's limit if that is less.
        cut: Number of texts that were truncated so far.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        *,
        pooling: PoolingMode,
        max_length: int = 512,
        token_budget: int = 16_384,
        dtype: torch.dtype,
    ) -> None:
        self._pooling, self._token_budget = pooling, token_budget
        self._model = load_weights(checkpoint, AutoModel, dtype=dtype, device=device, unused="pooler.")
        self._model.config.use_cache = False
        self._tokenizer = load_tokenizer(checkpoint)
        self._tokenizer.padding_side = "right"  # learned positions count from the left; causal models allow both sides
        if self._tokenizer.pad_token is None:  # decoders often have none; padding is masked
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self.longest = longest_input(self._model, self._tokenizer, max_length)
        modules, self.dimensions = Modules.of(checkpoint), int(self._model.config.hidden_size)
        self._lowers, self._dense = modules.lowers, list[nn.Module]()
        for layer in modules.dense:
            self._dense.append(layer.load(checkpoint, self.dimensions).to(device))
            self.dimensions = layer.size
        self.cut = 0

    @torch.inference_mode()
    def encode(self, texts: Sequence[str]) -> Tensor:
        """Return unscaled float32 vectors of at least one text, shape (n, dimensions)."""
        encoded = self._tokenized([text.lower() for text in texts] if self._lowers else texts)
        parts = []
        for batch, inputs in token_batches(self._model, self._tokenizer, encoded, self._token_budget):
            hidden = self._model(**inputs).last_hidden_state.float()  # (batch, tokens, d)
            vectors = _pool(hidden, inputs["attention_mask"], self._pooling)
            for dense in self._dense:
                vectors = dense(vectors)
            parts.append((batch, vectors.cpu()))
        return scatter(parts, len(texts))

    def too_long(self, texts: Sequence[str]) -> list[bool]:
        """Return True for each text that is longer than `longest`."""
        return longer_than(self.longest, self._tokenizer, [text.lower() if self._lowers else text for text in texts])

    def _tokenized(self, texts: Sequence[str]) -> BatchEncoding:
        """Return the truncated token ids of every text, and count the texts that were truncated."""
        if not self._tokenizer.is_fast:  # slow tokenizers don't report truncation
            self.cut += sum(longer_than(self.longest, self._tokenizer, texts))
            return self._tokenizer(list(texts), truncation=True, max_length=self.longest)
        pieces = self._tokenizer(list(texts), truncation=True, max_length=self.longest, return_overflowing_tokens=True)
        owners = pieces.pop("overflow_to_sample_mapping")  # index of each piece's text, in order, shape (pieces,)
        counts = Counter(owners)
        self.cut += sum(count > 1 for count in counts.values())
        first = [0, *itertools.accumulate(counts.values())][: len(texts)]
        return BatchEncoding({name: [values[piece] for piece in first] for name, values in pieces.items()})


def _pool(hidden: Tensor, mask: Tensor, pooling: PoolingMode) -> Tensor:
    """Pool token vectors (batch, tokens, d) to (batch, d); `mask` (batch, tokens) is 0 at padding, on either side."""
    if pooling == "mean":
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)
    positions = torch.arange(mask.shape[1], device=mask.device) * mask
    pooled = positions.argmax(1) if pooling == "last" else mask.argmax(1)
    return hidden[torch.arange(len(hidden), device=hidden.device), pooled]


def longer_than(length: int, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[bool]:
    """Return True for each text of more than `length` tokens."""
    return [len(ids) > length for ids in tokenizer(list(texts), verbose=False)["input_ids"]] if texts else []


def longest_input(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int) -> int:
    """Return the tokens after which a text is truncated: `max_length`, or the model's limit if that is less."""
    return min(max_length, tokenizer.model_max_length, max_positions(model, model.config) or max_length)


def max_positions(model: nn.Module, config: Any) -> int | None:
    """Return the maximum number of tokens that a model has positions for; None if unlimited.

    RoBERTa and similar models (XLM-R, MPNet) count from the padding index, and don't use the table's first rows.
    """
    declared = getattr(config, "max_position_embeddings", None)
    tables = [
        table.num_embeddings - table.padding_idx - 1
        for name, table in model.named_modules()
        if name.endswith("position_embeddings") and isinstance(table, nn.Embedding) and table.padding_idx is not None
    ]
    return min([*tables, *([declared] if declared and declared > 0 else [])], default=None)


def token_batches(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, encoded: BatchEncoding, token_budget: int
) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
    """Yield batches of similar length, longest first, of at most `token_budget` tokens, padding included.

    Args:
        model: The model; inputs are moved to its device.
        tokenizer: The tokenizer, for padding.
        encoded: Token ids of every text, not padded. A text longer than the budget is a batch of its own.
        token_budget: Maximum tokens of a batch.

    Yields:
        Indices of the batch's texts, and the model's inputs, each of shape (texts, tokens).
    """
    lengths = [len(ids) for ids in encoded["input_ids"]]
    order = sorted(range(len(lengths)), key=lambda text: -lengths[text])
    start = 0
    while start < len(order):
        size = max(1, token_budget // max(1, lengths[order[start]]))
        batch = order[start : start + size]
        rows = {key: [values[text] for text in batch] for key, values in encoded.items()}
        yield batch, dict(tokenizer.pad(rows, return_tensors="pt").to(model.device))
        start += size


def scatter(parts: Sequence[tuple[list[int], Tensor]], count: int) -> Tensor:
    """Return the rows of batches in the order of the texts, of shape (count, …).

    Args:
        parts: Indices of texts and their rows, for each batch.
        count: Number of texts.
    """
    order: Any = torch.tensor([text for batch, _ in parts for text in batch], dtype=torch.long)
    rows = torch.cat([part for _, part in parts])
    ordered = torch.empty((count, *rows.shape[1:]), dtype=rows.dtype)
    ordered[order] = rows
    return ordered
