"""Encode with CLIP, SigLIP or a model with the same interface, or with its image tower alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.retrieval.encoders.base import (
    ImageModel,
    ImageTextEncoder,
    Prepared,
    Vectors,
    load_image_processor,
    no_vectors,
    projected,
    unit_rows,
    with_dtype,
)
from reflectune.retrieval.encoders.checkpoints import Checkpoint, load_config, load_tokenizer, load_weights
from reflectune.retrieval.encoders.modules import refuse_dense
from reflectune.retrieval.encoders.texts import longer_than, max_positions

_SIGLIP = ("siglip", "siglip2")
"""Model types trained on lower-case texts padded to full length, which encode other texts differently."""
_TOWERS = ("clip_vision_model", "siglip_vision_model", "siglip2_vision_model")
"""Model types of image towers."""


class ClipEncoder(ImageModel, ImageTextEncoder):
    """A transformers model with `get_image_features` and `get_text_features`."""

    longest: int

    def __init__(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> None:
        from transformers import MODEL_MAPPING, AutoModel

        refuse_dense(checkpoint)
        self.revision, self.fingerprint = checkpoint.revision, with_dtype(checkpoint.fingerprint, dtype)
        config: Any = load_config(checkpoint)
        kind = MODEL_MAPPING.get(type(config), None)
        if not (hasattr(kind, "get_image_features") and hasattr(kind, "get_text_features")):
            raise UserError(
                f"{checkpoint.name} is a `{config.model_type}`, which does not encode images and texts into one space; "
                "use a model like CLIP or SigLIP"
            )
        self._model: Any = load_weights(checkpoint, AutoModel, dtype=dtype, device=device)
        self._tokenizer = load_tokenizer(checkpoint)
        super().__init__(checkpoint.name, load_image_processor(checkpoint), device, dtype)
        positions = max_positions(self._model, config.text_config)
        self.longest = min(self._tokenizer.model_max_length, positions or self._tokenizer.model_max_length)
        is_siglip = config.model_type in _SIGLIP
        self._padding = "max_length" if is_siglip else "longest"
        # SigLIP2's repositories name Gemma's tokenizer, which keeps capitals. Can be removed once they name
        # Siglip2Tokenizer:
        # https://huggingface.co/google/siglip2-base-patch16-224/discussions/22
        self._lowers = is_siglip and bool(self._tokenizer("A")["input_ids"] != self._tokenizer("a")["input_ids"])
        if self._lowers:
            self.fingerprint = fingerprint([self.fingerprint, "lower case"])
        self.dimensions = self.encode_texts([self.name]).shape[1]

    def features(self, inputs: Prepared) -> torch.Tensor:
        """Return the projected vectors of images, shape (n, dimensions)."""
        return projected(self._model.get_image_features(**inputs))

    def encode_texts(self, texts: Sequence[str]) -> Vectors:
        """Return vectors of length 1, shape (n, dimensions); a text too long for the model is cut."""
        if not texts:
            return no_vectors(self.dimensions)
        inputs = self._tokenizer(
            [text.lower() if self._lowers else text for text in texts],
            padding=self._padding,
            truncation=True,
            max_length=self.longest,
            return_tensors="pt",
        )
        inputs.pop("token_type_ids", None)
        with torch.inference_mode():
            return unit_rows(projected(self._model.get_text_features(**inputs.to(self._model.device))), self.name)

    def too_long(self, texts: Sequence[str]) -> list[bool]:
        """Return True for each text that is longer than the model reads."""
        return longer_than(self.longest, self._tokenizer, [text.lower() if self._lowers else text for text in texts])


class ImageTower(ImageModel):
    """Image tower of CLIP, SigLIP or a similar model, from the whole model or from a checkpoint of the tower alone.

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
