"""Rerankers that are models: a bi-encoder and a cross-encoder, which read batches of at most so many tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    BatchEncoding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from reflectune.core.durable import read_json
from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.core.types import Passage
from reflectune.models.rendering.turns import passage_text
from reflectune.models.weights.pretrained import as_dtype
from reflectune.retrieval.encoders.checkpoints import Checkpoint, load_config, load_tokenizer, load_weights
from reflectune.retrieval.rerankers.base import ScoredPassage, best_first, check_request
from reflectune.retrieval.rerankers.config import Pooling, RerankerSettings

_POOLING_FILE = "1_Pooling/config.json"
_POOLING_KEYS: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_cls_token": "cls",
}


class EmbeddingReranker:
    """A bi-encoder.

    Args:
        checkpoint: The model's files.
        settings: Pooling, prefixes, lengths, dtype.
        device: Where it runs.
    """

    def __init__(self, checkpoint: Checkpoint, settings: RerankerSettings, device: torch.device) -> None:
        self.name = f"embedding {checkpoint.name}"
        self._settings = settings
        self._pooling = settings.pooling if settings.pooling != "auto" else _declared_pooling(checkpoint)
        dtype = as_dtype(settings.dtype)
        self._model = load_weights(checkpoint, AutoModel, dtype=dtype, device=device, unused="pooler.")
        self._model.config.use_cache = False
        self._tokenizer = load_tokenizer(checkpoint)
        self._tokenizer.padding_side = "right"  # learned positions count from the left, and causal models don't mind
        if self._tokenizer.pad_token is None:  # decoders often have none; what is padded is masked
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._longest = longest_input(self._model, self._tokenizer, settings.max_length)
        decisive = dataclasses.replace(settings, token_budget=0, pooling=self._pooling)
        self.fingerprint = fingerprint(["embedding", checkpoint.fingerprint, decisive])

    def rank(
        self, questions: Sequence[str], passages: Sequence[Sequence[Passage]], top_k: int | None = None
    ) -> list[list[ScoredPassage]]:
        """The `top_k` best passages of each question; see `Reranker.rank`. Each distinct text is read once."""
        check_request(questions, passages, top_k)
        texts = [[self._settings.passage_prefix + passage_text(one) for one in choice] for choice in passages]
        distinct = {text: place for place, text in enumerate(dict.fromkeys(t for choice in texts for t in choice))}
        if not distinct:
            return [[] for _ in questions]
        passage_vectors = self.encode(list(distinct))
        question_vectors = self.encode([self._settings.query_prefix + question for question in questions])
        ranked = []
        for vector, choice, own_texts in zip(question_vectors, passages, texts, strict=True):
            scores = (passage_vectors[[distinct[text] for text in own_texts]] @ vector).tolist()
            ranked.append(best_first(choice, scores, top_k))
        return ranked

    @torch.inference_mode()
    def encode(self, texts: Sequence[str]) -> Tensor:
        """Vectors of texts that have their prefix, of shape (n, d), in fp32, of length 1 if `similarity` is cosine."""
        encoded = self._tokenizer(list(texts), truncation=True, max_length=self._longest)
        parts = []
        for batch, inputs in token_batches(self._model, self._tokenizer, encoded, self._settings.token_budget):
            hidden = self._model(**inputs).last_hidden_state.float()  # (batch, tokens, d)
            parts.append((batch, _pool(hidden, inputs["attention_mask"], self._pooling).cpu()))
        vectors = scatter(parts, len(texts))
        return torch.nn.functional.normalize(vectors, dim=-1) if self._settings.similarity == "cosine" else vectors


def _pool(hidden: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """One vector per text, of shape (batch, d), whichever side is padded.

    Args:
        hidden: Shape (batch, tokens, d).
        mask: 1 for a text's own tokens, shape (batch, tokens).
        pooling: `mean` of the text's tokens, its `last` one, or its first (`cls`).
    """
    if pooling == "mean":
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)
    places = torch.arange(mask.shape[1], device=mask.device) * mask
    chosen = places.argmax(1) if pooling == "last" else mask.argmax(1)
    return hidden[torch.arange(len(hidden), device=hidden.device), chosen]


def _declared_pooling(checkpoint: Checkpoint) -> Pooling:
    """What the repository says of its pooling, in the file that sentence-transformers writes."""
    path = checkpoint.folder / _POOLING_FILE
    if not path.is_file():
        raise UserError(
            f"{checkpoint.name} doesn't say how its vectors are pooled (there is no {_POOLING_FILE}); look it up in "
            "its model card and set `reranker_pooling` to mean, last or cls"
        )
    declared = read_json(path, "the retriever's pooling")
    modes = [key for key, value in declared.items() if key.startswith("pooling_mode_") and value is True]
    if len(modes) != 1 or modes[0] not in _POOLING_KEYS:
        raise UserError(
            f"{path} asks for {', '.join(modes) or 'no pooling'}; mean, last and cls are known; set `reranker_pooling`"
        )
    return _POOLING_KEYS[modes[0]]


class CrossEncoderReranker:
    """A sequence classifier with one label, e.g. BAAI/bge-reranker-v2-m3. Its scores are logits.

    Args:
        checkpoint: The model's files.
        settings: Prefixes, lengths, dtype.
        device: Where it runs.

    Raises:
        UserError: The model has another number of labels.
    """

    def __init__(self, checkpoint: Checkpoint, settings: RerankerSettings, device: torch.device) -> None:
        self.name = f"cross_encoder {checkpoint.name}"
        self._settings = settings
        labels = load_config(checkpoint).num_labels
        if labels != 1:
            raise UserError(
                f"{checkpoint.name} is a classifier of {labels} labels; a cross-encoder for ranking has one, "
                "e.g. BAAI/bge-reranker-v2-m3; for a bi-encoder set `reranker: embedding`"
            )
        dtype = as_dtype(settings.dtype)
        self._model = load_weights(checkpoint, AutoModelForSequenceClassification, dtype=dtype, device=device)
        self._tokenizer = load_tokenizer(checkpoint)
        self._longest = longest_input(self._model, self._tokenizer, settings.max_length)
        decisive = dataclasses.replace(settings, token_budget=0)
        self.fingerprint = fingerprint(["cross_encoder", checkpoint.fingerprint, decisive])

    def rank(
        self, questions: Sequence[str], passages: Sequence[Sequence[Passage]], top_k: int | None = None
    ) -> list[list[ScoredPassage]]:
        """The `top_k` best passages of each question; see `Reranker.rank`."""
        check_request(questions, passages, top_k)
        pairs = [
            (self._settings.query_prefix + question, self._settings.passage_prefix + passage_text(passage))
            for question, choice in zip(questions, passages, strict=True)
            for passage in choice
        ]
        scores = iter(self._score(pairs))
        return [best_first(choice, [next(scores) for _ in choice], top_k) for choice in passages]

    @torch.inference_mode()
    def _score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """The logit of each (question, passage); of a pair that is too long the longer side is cut."""
        if not pairs:
            return []
        first, second = [one for one, _ in pairs], [other for _, other in pairs]
        encoded = self._tokenizer(first, second, truncation="longest_first", max_length=self._longest)
        parts = []
        for batch, inputs in token_batches(self._model, self._tokenizer, encoded, self._settings.token_budget):
            parts.append((batch, self._model(**inputs).logits[:, 0].float().cpu()))
        return scatter(parts, len(pairs)).tolist()


def longest_input(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int) -> int:
    """Tokens of a text beyond which it is cut: what was asked for, or what the model can read if that is less."""
    readable = getattr(model.config, "max_position_embeddings", None) or max_length
    return min(max_length, tokenizer.model_max_length, readable)


def token_batches(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, encoded: BatchEncoding, token_budget: int
) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
    """Batches of similar length, longest first, none with more than `token_budget` tokens, padding included.

    Args:
        model: Which the inputs are for: they are put on its device.
        tokenizer: Which pads them.
        encoded: Token ids of every text, not padded. One text longer than the budget is a batch of its own.
        token_budget: Most tokens of a batch.

    Yields:
        Which texts are in the batch, and the model's inputs, each of shape (texts, tokens).
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
    """Rows of batches in the order of the texts, of shape (count, …).

    Args:
        parts: Of each batch: which texts, and their rows.
        count: How many texts there are.
    """
    places: Any = torch.tensor([text for batch, _ in parts for text in batch], dtype=torch.long)
    rows = torch.cat([part for _, part in parts])
    ordered = torch.empty((count, *rows.shape[1:]), dtype=rows.dtype)
    ordered[places] = rows
    return ordered
