"""Two models side by side, `pair:IMAGE+TEXT`: an image tower and a text encoder, each with a space of its own.

MI-RAG (arXiv 2509.00798) and PMSR compare images with images and texts with texts: their score is the weighted sum of
both cosines, which is the inner product of the concatenated vectors. Weights stay on the query's side. Prefixes,
pooling and length of the text encoder are those of its card (`presets.py`); queries and entries' texts have one each.

`mixture:IMAGE+TEXT` mixes each entry's image with its text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.retrieval.encoders.base import (
    ImageModel,
    Prepared,
    PreparingEncoder,
    Vectors,
    load_image_processor,
    projected,
    with_dtype,
)
from reflectune.retrieval.encoders.checkpoints import Checkpoint, find_checkpoint, load_config, load_weights
from reflectune.retrieval.encoders.presets import text_settings
from reflectune.retrieval.encoders.text_encoder import TextEncoder

_REMEDY = "name a text encoder that declares its pooling, or one of presets.py"


class SideBySideEncoder:
    """An image tower and a text encoder without a common space.

    Args:
        name: Name of the encoder, as given.
        tower: The image tower.
        text: Name of the text encoder, which has the tower's precision.
        device: Device of both.
    """

    def __init__(self, name: str, tower: ImageTower | PreparingEncoder, text: str, device: torch.device) -> None:
        self._tower = tower
        settings = text_settings(text, similarity="cosine", dtype=tower.precision)
        self._texts = TextEncoder(find_checkpoint(text), settings, device, _REMEDY)
        self.name, self.precision = name, self._tower.precision
        self.revision = "+".join(filter(None, (self._tower.revision, self._texts.revision)))
        self.fingerprint = fingerprint([name.partition(":")[0], self._tower.fingerprint, self._texts.fingerprint])
        self.dimensions, self.title_dimensions = self._tower.dimensions, self._texts.dimensions
        self.longest = self._texts.longest
        self.prepare, self.join = self._tower.prepare, self._tower.join
        self.encode_prepared, self.encode_images = self._tower.encode_prepared, self._tower.encode_images
        if isinstance(tower, ImageModel):
            self.prepare_ahead = tower.prepare_ahead
        self.encode_texts, self.encode_entry_texts = self._texts.encode_queries, self._texts.encode_passages
        self.too_long = self._texts.too_long


class MixtureEncoder(SideBySideEncoder):
    """Two models side by side, in which an entry's image is mixed with its text: RA-CM3's (arXiv 2211.12561).

    MI-RAG's large retriever (§6.2, appendix D) compares a question's image with the mean of both vectors of a pair by
    the image tower, a whole CLIP or SigLIP.
    """

    def __init__(self, name: str, whole: PreparingEncoder, text: str, device: torch.device) -> None:
        super().__init__(name, whole, text, device)
        self._whole = whole

    def mix(self, images: Vectors, texts: Sequence[str]) -> Vectors:
        """Average images' vectors with those of a text each, by the tower: unit length, shape (n, dimensions).

        A text is cut to the tower's length.
        """
        mixed = images + self._whole.encode_texts(texts)
        return mixed / np.maximum(np.linalg.norm(mixed, axis=1, keepdims=True), 1e-12)


class ImageTower(ImageModel):
    """The image side of a CLIP, a SigLIP or a model like them: the whole model's, or a checkpoint of the tower alone.

    Attributes:
        revision: Commit on the hub; "" for a folder.
        fingerprint: Hash of its files and its precision.

    Raises:
        UserError: The checkpoint is of a different kind of model.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        from transformers import MODEL_MAPPING, AutoModel, CLIPVisionModelWithProjection

        config: Any = load_config(checkpoint)
        is_whole = hasattr(MODEL_MAPPING.get(type(config), None), "get_image_features")
        if not is_whole and config.model_type not in _TOWERS:
            raise UserError(
                f"{checkpoint.name} is a `{config.model_type}`; an image tower is a {', a '.join(_TOWERS)}, or a whole "
                "CLIP or SigLIP"
            )
        kind: Any = CLIPVisionModelWithProjection if config.model_type == "clip_vision_model" else AutoModel
        model: Any = load_weights(checkpoint, kind, dtype=dtype, device=device)
        if is_whole:
            model.text_model = None  # nothing reads it
        self._compute: Any = model.get_image_features if is_whole else model
        self.revision, self.fingerprint = checkpoint.revision, with_dtype(checkpoint.fingerprint, dtype)
        super().__init__(checkpoint.name, load_image_processor(checkpoint), device, dtype)
        self.dimensions = int(
            getattr(config, "projection_dim", 0) or getattr(config, "vision_config", config).hidden_size
        )

    def features(self, inputs: Prepared) -> torch.Tensor:
        """Compute the vectors of images, projected if the model projects them, shape (n, dimensions)."""
        return projected(self._compute(**inputs))


_TOWERS = ("clip_vision_model", "siglip_vision_model", "siglip2_vision_model")
"""Model types of image towers."""
