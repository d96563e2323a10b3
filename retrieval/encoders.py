"""Encoders that put images and texts into one space: CLIP, SigLIP and their like, loaded by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from reflectune.core.devices import find_device
from reflectune.core.errors import UserError
from reflectune.core.hashing import file_fingerprint

Vectors = npt.NDArray[np.float32]

_MINIATURE = "miniature/"
_FILES = ("*.json", "*.safetensors", "*.txt", "*.model")
_PADDED_WHOLE = ("siglip", "siglip2")
"""Model types that were trained on texts padded to full length and read them differently otherwise."""


class ImageTextEncoder(Protocol):
    """Turns images and texts into vectors whose inner product is their cosine similarity.

    Attributes:
        name: As it was asked for.
        dimensions: Length of a vector.
        fingerprint: A hash of its files; vectors of encoders that differ in it must not be compared.
    """

    name: str
    dimensions: int
    fingerprint: str

    def encode_images(self, images: Sequence[Image.Image]) -> Vectors:
        """Vectors of length 1, shape (n, dimensions)."""
        ...

    def encode_texts(self, texts: Sequence[str]) -> Vectors:
        """Vectors of length 1, shape (n, dimensions); a text too long for the model is cut."""
        ...


def load_encoder(name: str, *, device: str = "cpu") -> ImageTextEncoder:
    """Load an encoder.

    Args:
        name: `miniature/clip`, a folder, or a hub id, e.g. `openai/clip-vit-large-patch14`.
        device: `cpu`, `cuda`, …; `auto` takes an accelerator if there is one.

    Raises:
        UserError: There is no such encoder, its files are damaged or of another model, it does not encode both images
            and texts, or there is no such device.
    """
    from safetensors import SafetensorError

    folder = _resolve(name)
    files = sorted(path for pattern in _FILES for path in folder.glob(pattern))
    if not any(path.suffix == ".safetensors" for path in files):
        raise UserError(f"{name} has no weights in safetensors format ({folder}); only those are loaded")
    place = find_device(device)
    try:
        return _TransformersEncoder(name, folder, file_fingerprint(*files), place)
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"the encoder {name} cannot be loaded from {folder}: {error}; check or replace it") from error


class _TransformersEncoder:
    """A transformers model with `get_image_features` and `get_text_features`, in fp32, with PIL preprocessing.

    Preprocessing is PIL's wherever it runs: torchvision resizes a little differently, and vectors of an index and of
    a query must come from the same pixels.
    """

    def __init__(self, name: str, folder: Path, fingerprint: str, device: torch.device) -> None:
        from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

        self.name, self.fingerprint = name, fingerprint
        model, weights = AutoModel.from_pretrained(
            folder, dtype=torch.float32, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
        config = model.config
        if not (hasattr(model, "get_image_features") and hasattr(model, "get_text_features")):
            raise UserError(
                f"{name} is a `{config.model_type}`, which does not encode images and texts into one space; "
                "give a model like CLIP or SigLIP"
            )
        if missing := sorted(weights["missing_keys"]):  # transformers would leave them random and go on
            raise UserError(
                f"{name} lacks {len(missing)} of its weights, e.g. {missing[0]}; replace the files in {folder}"
            )
        self._model = model.requires_grad_(False).eval().to(device)
        self._image_processor = AutoImageProcessor.from_pretrained(folder, backend="pil", trust_remote_code=False)
        self._tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        self._longest = min(self._tokenizer.model_max_length, config.text_config.max_position_embeddings)
        self._padding = "max_length" if config.model_type in _PADDED_WHOLE else "longest"
        self.dimensions = self.encode_texts([name]).shape[1]

    def encode_images(self, images: Sequence[Image.Image]) -> Vectors:
        """Vectors of length 1, shape (n, dimensions)."""
        if not images:
            return np.zeros((0, self.dimensions), dtype=np.float32)
        inputs = self._image_processor(images=[image.convert("RGB") for image in images], return_tensors="pt")
        with torch.inference_mode():
            return _unit(self._model.get_image_features(**inputs.to(self._model.device)))

    def encode_texts(self, texts: Sequence[str]) -> Vectors:
        """Vectors of length 1, shape (n, dimensions); a text too long for the model is cut."""
        if not texts:
            return np.zeros((0, self.dimensions), dtype=np.float32)
        inputs = self._tokenizer(
            list(texts), padding=self._padding, truncation=True, max_length=self._longest, return_tensors="pt"
        )
        inputs.pop("token_type_ids", None)
        with torch.inference_mode():
            return _unit(self._model.get_text_features(**inputs.to(self._model.device)))


def _unit(output: Any) -> Vectors:
    """Rows of a model's output, scaled to length 1."""
    rows = output if isinstance(output, torch.Tensor) else output.pooler_output
    return torch.nn.functional.normalize(rows.float(), dim=-1).cpu().numpy()


def _resolve(name: str) -> Path:
    """The folder that a name stands for; a hub id is downloaded, or taken from the cache."""
    if name.startswith(_MINIATURE):
        from reflectune.models import miniature

        folder = Path(next(iter(miniature.__path__)), name.removeprefix(_MINIATURE))
        if not (folder / "config.json").is_file():
            raise UserError(
                f"no encoder {name}: this installation has no {folder}; `miniature/clip` is the shipped one"
            )
        return folder
    if Path(name).is_dir():
        if not Path(name, "config.json").is_file():
            raise UserError(f"{name} holds no encoder: there is no config.json")
        return Path(name)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise UserError(f"no encoder at {name}: there is no such folder")
    return _download(name)


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=list(_FILES)))
    except (HfHubHTTPError, LocalEntryNotFoundError) as error:
        raise UserError(
            f"the encoder {name} is not in the local cache and could not be downloaded: {error}; "
            "check the name and the network, or give a folder"
        ) from error
