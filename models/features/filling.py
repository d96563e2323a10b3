"""Compute missing features with the vision tower before training or answering; processes share the work."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.core.images import load_image
from reflectune.core.launching import Processes
from reflectune.core.paths import Roots
from reflectune.core.progress import progress_bar
from reflectune.models.features.cache import FeatureCache, image_key
from reflectune.models.features.tower import move_tower, read_features, read_image, tower_fingerprint
from reflectune.models.loading import Loaded
from reflectune.models.rendering.image_fitting import images_fingerprint


@dataclass(frozen=True)
class Image:
    """An image whose features are needed.

    Attributes:
        path: Path as in the data.
        roots: Folders that may contain it.
        needed_by: Origin, for messages.
    """

    path: str
    roots: Roots
    needed_by: str


def open_cache(folder: str, loaded: Loaded, *, autocast: str) -> FeatureCache:
    """Open the cache of a model's tower.

    Args:
        folder: Folder of the features.
        loaded: The model.
        autocast: Precision of forward passes: `float32` or `bfloat16`.
    """
    parts = [tower_fingerprint(loaded.model), images_fingerprint(loaded.processor), autocast]
    parts.append(torch.get_float32_matmul_precision())
    return FeatureCache(folder, fingerprint(parts))


def fill(
    cache: FeatureCache,
    loaded: Loaded,
    images: Sequence[Image],
    *,
    device: torch.device,
    autocast: str,
    processes: Processes,
    say: Callable[[str], None],
) -> None:
    """Compute the features that a cache lacks, in all processes.

    Images are read one by one, so features depend neither on other images nor on the number of processes.

    Args:
        loaded: The model; its tower is moved to the device.
        images: Images, each once.
        device: Device of the tower.
        autocast: Precision of forward passes.
        processes: Processes of the launch.
        say: Prints a progress line in the first process.

    Raises:
        UserError: A process doesn't see the files of another process.
    """
    move_tower(loaded.model, device)
    sizes: list[int] = []
    share = images[processes.index :: processes.count]
    with progress_bar(share, desc="features", unit="image", disable=processes.index > 0) as bar:
        for image in bar:
            vision = _vision(loaded, image)
            key = image_key(vision)
            if key not in cache:
                sizes.append(cache.put(key, _read(loaded, vision, device, autocast)))
    processes.wait()
    for image in images[: processes.count] if processes.count > 1 else ():  # the first image of each process
        if image_key(_vision(loaded, image)) not in cache:
            raise UserError(
                f"process {processes.index} doesn't find the features of {image.path} in {cache.folder}; "
                "`cache_features` must lie on a file system that all machines of the launch share"
            )
    size = f", {sum(sizes) / len(sizes) / 2**20:.2f} MiB each" if sizes else ""
    read = f"{len(sizes):,} read now{' by the first process' if processes.count > 1 else ''}{size}"
    free = shutil.disk_usage(cache.folder).free / 2**30 if cache.folder.exists() else 0.0
    say(f"features of {len(images):,} images: {read}; in {cache.folder}, {free:,.1f} GiB free")


def _vision(loaded: Loaded, image: Image) -> dict[str, Tensor]:
    return loaded.renderer.vision(load_image(image.path, root=image.roots, needed_by=image.needed_by))


def use_cache(cache: FeatureCache, loaded: Loaded) -> None:
    """Let a model's renderer render cached features in place of pixels, and let the model read them."""
    read_features(loaded.model)
    loaded.renderer.features = cache


def _read(loaded: Loaded, vision: dict[str, Tensor], device: torch.device, autocast: str) -> Tensor:
    training = loaded.model.training
    loaded.model.eval()
    try:
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast == "bfloat16"):
            return read_image(loaded.model, vision)
    finally:
        loaded.model.train(training)
