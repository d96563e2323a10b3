"""An image-text encoder as a reranker: similarity of a question with its image to each passage.

mRAG (arXiv 2505.24073, §4.1) ranks passages by the dot product of MM-Embed's embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.core.types import Passage
from reflectune.models.rendering.turns import passage_text
from reflectune.retrieval.encoders.base import Vectors
from reflectune.retrieval.encoders.encoder import load_encoder
from reflectune.retrieval.encoders.settings import TextSettings
from reflectune.retrieval.rerankers.base import ImageReranker, ScoredPassage, rank_by_vectors

WORDS: Final = 512
"""Words after which a passage is truncated, as by EchoSight's Q-Former."""
_BATCH: Final = 64
"""Passages encoded together."""


class EncoderReranker(ImageReranker):
    """Image-text encoder that compares the vector of a question and its image with those of passages.

    A multimodal language model reads the question and the image together; CLIP's vector is the sum of both.

    Args:
        model: Name of the encoder; see `load_encoder`.
        settings: Precision of the weights; the rest is the encoder's own.
        device: Device of the model.

    Raises:
        UserError: The encoder is missing, or has no common space of images and texts.
    """

    def __init__(self, model: str, settings: TextSettings, device: str) -> None:
        self.name = f"encoder {model}"
        self._encoder = load_encoder(model, device=device, dtype=settings.dtype)
        if self._encoder.text_space != "shared":
            raise UserError(
                f"the encoder {model} has a separate space for texts, which images can't be compared with; use one "
                "with a common space, such as CLIP"
            )
        self.fingerprint = fingerprint(["encoder", self._encoder.fingerprint])

    def rank_with_images(
        self,
        questions: Sequence[str],
        images: Sequence[Image.Image],
        passages: Sequence[Sequence[Passage]],
        entry_scores: Sequence[Mapping[str, float]],
        top_k: int | None = None,
    ) -> list[list[ScoredPassage]]:
        """See `ImageReranker.rank_with_images`. Entries' scores are not used."""
        texts = [[" ".join(passage_text(p).split()[:WORDS]) for p in candidates] for candidates in passages]
        vectors = self._encoder.encode_pairs(images, questions)
        return rank_by_vectors(vectors, passages, texts, self._encode, top_k)

    def _encode(self, texts: list[str]) -> Vectors:
        batches = [texts[start : start + _BATCH] for start in range(0, len(texts), _BATCH)]
        return np.concatenate([self._encoder.encode_texts(batch) for batch in batches])
