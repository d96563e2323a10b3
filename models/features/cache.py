"""Cached image features on disk: one file per image, written atomically."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from reflectune.core.durable import write_atomically
from reflectune.core.errors import UserError
from reflectune.models.attention.images import FEATURES, content_key

_NAME = "features"


class FeatureCache:
    """Read and write image features, in `FOLDER/FINGERPRINT/xx/KEY.safetensors`.

    The key is a hash of the processor's output, so equal images in different files are stored once.

    Args:
        folder: Root folder; several caches may share it.
        fingerprint: Hash of the tower and its settings.
    """

    def __init__(self, folder: str | Path, fingerprint: str) -> None:
        self.folder = Path(folder, fingerprint)

    def __contains__(self, key: str) -> bool:
        return self._path(key).is_file()

    def get(self, key: str) -> Tensor:
        """Return the features of an image.

        Raises:
            UserError: The features are missing or damaged.
        """
        path = self._path(key)
        try:
            return safetensors.torch.load_file(path)[_NAME]
        except FileNotFoundError as error:
            raise UserError(
                f"the image's features are not in {self.folder}: the image changed after the run began, or the file "
                "was deleted; run the same command again to compute them"
            ) from error
        except (SafetensorError, KeyError, OSError) as error:
            raise UserError(f"{path} is damaged ({error}); delete it, and give the same command again") from error

    def put(self, key: str, features: Tensor) -> int:
        """Write the features of an image atomically.

        Returns:
            Size in bytes.
        """
        stored = features.detach().cpu().contiguous()
        write_atomically(self._path(key), safetensors.torch.save({_NAME: stored}))
        return stored.nbytes

    def with_features(self, vision: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the processor's output for an image, with features in place of pixels."""
        others = {name: value for name, value in vision.items() if name != "pixel_values"}
        return {**others, FEATURES: self.get(image_key(vision))}

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.safetensors"


def image_key(vision: Mapping[str, Tensor]) -> str:
    """Return the key of an image from the processor's output."""
    return content_key(vision).hex()
