"""The encoder `pocket/clip`: an image tower, a text model, and a title map between their spaces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from reflectune.core.errors import UserError
from reflectune.core.hashing import file_fingerprint, fingerprint
from reflectune.examples.pocket.title_map import TitleMap, read_title_map
from reflectune.retrieval.encoders.base import Vectors, no_vectors, unit_rows, with_dtype
from reflectune.retrieval.encoders.checkpoints import Checkpoint, find_checkpoint
from reflectune.retrieval.encoders.clip import ImageTower
from reflectune.retrieval.encoders.decoupled import TowerEncoder
from reflectune.retrieval.encoders.modules import declared_pooling
from reflectune.retrieval.encoders.texts import TextModel


class MappedEncoder(TowerEncoder):
    """An image tower, a text model, and a map from the first's space into the second's."""

    text_space = "mapped"

    def __init__(self, name: str, path: Path, device: torch.device, dtype: torch.dtype) -> None:
        self._map: TitleMap = read_title_map(path)
        vision, text = (find_checkpoint(self._map.record[part]) for part in ("vision", "text"))
        super().__init__(ImageTower(vision, device, dtype))
        self._text = TitleModel(text, device, dtype)
        if self._map.weight.shape != (self.dimensions, self.title_dimensions):
            raise UserError(
                f"{path} maps {self._map.weight.shape[0]} dimensions to {self._map.weight.shape[1]}, but {vision.name} "
                f"has {self.dimensions} and {text.name} {self.title_dimensions}; fit it again"
            )
        files = fingerprint(["title map", vision.fingerprint, text.fingerprint, file_fingerprint(path)])
        self.name, self.fingerprint, self.longest = name, with_dtype(files, dtype), self._text.longest

    @property
    def title_dimensions(self) -> int:
        """Length of a title's vector."""
        return self._text.dimensions

    def encode_texts(self, texts: Sequence[str]) -> Vectors:
        """Encode texts as vectors of length 1, shape (n, title_dimensions); long texts are truncated."""
        return self._text.encode(texts)

    def too_long(self, texts: Sequence[str]) -> list[bool]:
        """Return True for each text that is truncated."""
        return self._text.too_long(texts)

    def to_title_space(self, images: Vectors) -> Vectors:
        """Map vectors of images into the space of texts, at length 1, shape (n, title_dimensions)."""
        return self._map.apply(images)


class TitleModel:
    """A text model that reads titles, pooled as its repository declares."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        pooling = declared_pooling(checkpoint, "write it there as mean, last or cls")
        self._model = TextModel(checkpoint, device, pooling=pooling, dtype=dtype)
        self._name, self.dimensions = checkpoint.name, self._model.dimensions
        self.longest, self.too_long = self._model.longest, self._model.too_long

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Encode titles as vectors of length 1, shape (n, dimensions); long ones are truncated."""
        if not texts:
            return no_vectors(self.dimensions)
        return unit_rows(self._model.encode(texts), self._name)
