"""Encode questions and passages, each with its prefix, by a bi-encoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.models.weights.pretrained import as_dtype
from reflectune.retrieval.encoders.base import Vectors, no_vectors
from reflectune.retrieval.encoders.checkpoints import Checkpoint
from reflectune.retrieval.encoders.modules import Modules, declared_pooling
from reflectune.retrieval.encoders.settings import USUAL_LENGTH, TextSettings
from reflectune.retrieval.encoders.texts import TextModel


class TextEncoder:
    """Encode texts as vectors whose inner product is their similarity.

    Args:
        checkpoint: The model's files.
        settings: Pooling, prefixes, lengths, dtype.
        device: Device of the model.
        remedy: Advice in an error if the repository doesn't declare its pooling.

    Attributes:
        name: Name as given by the user.
        revision: Commit on the hub; "" for a folder.
        settings: Settings in use, including those that the repository declares.
        dimensions: Length of a vector.
        longest: Tokens after which a text is truncated: the setting, or the model's limit if that is less.
        fingerprint: Hash of its files and of the settings that determine its vectors.
    """

    def __init__(self, checkpoint: Checkpoint, settings: TextSettings, device: torch.device, remedy: str) -> None:
        self.name, self.revision = checkpoint.name, checkpoint.revision
        modules = Modules.of(checkpoint)
        pooling = settings.pooling if settings.pooling != "auto" else declared_pooling(checkpoint, remedy)
        self.settings = dataclasses.replace(modules.complete(settings), pooling=pooling)
        self._prefixes = self.settings.query_prefix or "", self.settings.passage_prefix or ""
        self._scales = self.settings.similarity == "cosine" or modules.scales
        self._model = TextModel(
            checkpoint,
            device,
            pooling=pooling,
            max_length=self.settings.max_length or USUAL_LENGTH,
            token_budget=settings.token_budget,
            dtype=as_dtype(settings.dtype),
        )
        self.dimensions, self.longest = self._model.dimensions, self._model.longest
        decisive = dataclasses.replace(self.settings, token_budget=0)
        self.fingerprint = fingerprint(["embedding", checkpoint.fingerprint, decisive, *modules.fingerprints])

    @property
    def cut(self) -> int:
        """Number of texts that were truncated so far."""
        return self._model.cut

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        """Return vectors of questions, shape (n, dimensions), of length 1 if the similarity is the cosine."""
        return self._encode([self._prefixes[0] + text for text in texts])

    def encode_passages(self, texts: Sequence[str]) -> Vectors:
        """Return vectors of passages, shape (n, dimensions), of length 1 if the similarity is the cosine."""
        return self._encode([self._prefixes[1] + text for text in texts])

    def too_long(self, texts: Sequence[str]) -> list[bool]:
        """Return True for each question that is truncated, prefix included."""
        return self._model.too_long([self._prefixes[0] + text for text in texts])

    def _encode(self, texts: Sequence[str]) -> Vectors:
        if not texts:
            return no_vectors(self.dimensions)
        vectors = self._model.encode(texts)
        if not bool(vectors.isfinite().all()):
            raise UserError(
                f"the encoder {self.name} computes vectors that are not finite: replace its weights, which are damaged"
            )
        if self._scales:
            vectors = torch.nn.functional.normalize(vectors, dim=-1)
        return vectors.numpy()
