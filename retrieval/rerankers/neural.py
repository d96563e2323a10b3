"""Rerankers by text models: a bi-encoder and a cross-encoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import nn
from transformers import AutoModelForSequenceClassification

from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.core.types import Passage
from reflectune.models.rendering.turns import passage_text
from reflectune.models.weights.output_head import read_in_float32
from reflectune.models.weights.pretrained import as_dtype
from reflectune.retrieval.encoders.checkpoints import Checkpoint, load_config, load_tokenizer, load_weights
from reflectune.retrieval.encoders.modules import Modules, refuse_dense
from reflectune.retrieval.encoders.settings import USUAL_LENGTH, TextSettings
from reflectune.retrieval.encoders.text_encoder import TextEncoder
from reflectune.retrieval.encoders.texts import longest_input, scatter, token_batches
from reflectune.retrieval.rerankers.base import ScoredPassage, best_first, rank_by_vectors

_REMEDY = "set `reranker_pooling` to mean, last or cls"


class EmbeddingReranker:
    """Bi-encoder, e.g. Salesforce/SFR-Embedding-Mistral.

    Args:
        checkpoint: The model's files.
        settings: Pooling, prefixes, lengths, dtype.
        device: Device of the model.
    """

    def __init__(self, checkpoint: Checkpoint, settings: TextSettings, device: torch.device) -> None:
        self.name = f"embedding {checkpoint.name}"
        self._encoder = TextEncoder(checkpoint, settings, device, _REMEDY)
        self.fingerprint = self._encoder.fingerprint

    def rank(
        self, questions: Sequence[str], passages: Sequence[Sequence[Passage]], top_k: int | None = None
    ) -> list[list[ScoredPassage]]:
        """See `Reranker.rank`."""
        texts = [[passage_text(passage) for passage in candidates] for candidates in passages]
        vectors = self._encoder.encode_queries(questions)
        return rank_by_vectors(vectors, passages, texts, self._encoder.encode_passages, top_k)


class CrossEncoderReranker:
    """Sequence classifier with one label, e.g. BAAI/bge-reranker-v2-m3. Its scores are logits.

    Args:
        checkpoint: The model's files.
        settings: Prefixes, lengths, dtype.
        device: Device of the model.

    Raises:
        UserError: The model has more or fewer labels.
    """

    def __init__(self, checkpoint: Checkpoint, settings: TextSettings, device: torch.device) -> None:
        self.name = f"cross_encoder {checkpoint.name}"
        refuse_dense(checkpoint)
        settings = Modules.of(checkpoint).complete(settings)
        self._prefixes = settings.query_prefix or "", settings.passage_prefix or ""
        self._budget = settings.token_budget
        labels = load_config(checkpoint).num_labels
        if labels != 1:
            raise UserError(
                f"{checkpoint.name} is a classifier of {labels} labels; a cross-encoder for ranking has one, "
                "e.g. BAAI/bge-reranker-v2-m3; for a bi-encoder set `reranker: embedding`"
            )
        dtype = as_dtype(settings.dtype)
        self._model = load_weights(checkpoint, AutoModelForSequenceClassification, dtype=dtype, device=device)
        scores = [layer for layer in self._model.modules() if isinstance(layer, nn.Linear) and layer.out_features == 1]
        for layer in scores[-1:]:
            read_in_float32(layer, [0])
        self._tokenizer = load_tokenizer(checkpoint)
        self._longest = longest_input(self._model, self._tokenizer, settings.max_length or USUAL_LENGTH)
        decisive = dataclasses.replace(settings, token_budget=0)
        self.fingerprint = fingerprint(["cross_encoder", checkpoint.fingerprint, decisive])

    def rank(
        self, questions: Sequence[str], passages: Sequence[Sequence[Passage]], top_k: int | None = None
    ) -> list[list[ScoredPassage]]:
        """See `Reranker.rank`."""
        pairs = [
            (self._prefixes[0] + question, self._prefixes[1] + passage_text(passage))
            for question, candidates in zip(questions, passages, strict=True)
            for passage in candidates
        ]
        scores = iter(self._score(pairs))
        return [best_first(candidates, [next(scores) for _ in candidates], top_k) for candidates in passages]

    @torch.inference_mode()
    def _score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return the logit of each (question, passage). In a pair that is too long the longer text is truncated."""
        if not pairs:
            return []
        questions, passages = map(list, zip(*pairs, strict=True))
        encoded = self._tokenizer(questions, passages, truncation="longest_first", max_length=self._longest)
        parts = []
        for batch, inputs in token_batches(self._model, self._tokenizer, encoded, self._budget):
            parts.append((batch, self._model(**inputs).logits[:, 0].float().cpu()))
        return scatter(parts, len(pairs)).tolist()
