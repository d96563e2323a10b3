"""An encoder of images and texts as a reranker: similarity of a question with its image and each passage.

mRAG (arXiv 2505.24073, §4.1) ranks pointwise by the dot product of both embeddings of MM-Embed.
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
from reflectune.retrieval.encoders.encoder import load_encoder
from reflectune.retrieval.encoders.settings import TextSettings
from reflectune.retrieval.rerankers.base import ImageReranker, ScoredPassage, best_first, places_of
from reflectune.retrieval.stores.base import inner

WORDS: Final = 512
"""Words of a passage that are read, as by EchoSight's Q-Former."""
_BLOCK: Final = 64
"""Passages encoded at once."""


class EncoderReranker(ImageReranker):
    """Image-text encoder whose vector of a question and its image is compared with the passages' vectors.

    A multimodal language model reads the question and the image together. Of a CLIP the vector is the sum of both.

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
                f"the encoder {model} has a space of its own for texts, in which no image can be compared with them; "
                "take an encoder of one space"
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
        """See `ImageReranker.rank_with_images`. Entries' scores are not used. Each distinct passage is read once."""
        texts = [[" ".join(passage_text(one).split()[:WORDS]) for one in choice] for choice in passages]
        distinct = places_of(texts)
        if not distinct:
            return [[] for _ in questions]
        read = list(distinct)
        blocks = [read[start : start + _BLOCK] for start in range(0, len(read), _BLOCK)]
        of_passages = np.concatenate([self._encoder.encode_texts(block) for block in blocks])
        of_questions = self._encoder.encode_pairs(images, questions)
        ranked = []
        for vector, choice, own_texts in zip(of_questions, passages, texts, strict=True):
            scores = inner(of_passages[[distinct[text] for text in own_texts]], vector).tolist()
            ranked.append(best_first(choice, scores, top_k))
        return ranked
