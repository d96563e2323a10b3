"""Cache the features of a frozen vision tower for every image of the data, before training begins."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import TrainingArguments

from reflectune.core.launching import launch_processes
from reflectune.core.paths import Roots
from reflectune.models.features.filling import Image, fill, open_cache, use_cache
from reflectune.models.features.tower import refuse_features
from reflectune.models.loading import Loaded
from reflectune.models.schemes.examples import TrainingExample

DataWithRoots = tuple[Sequence[TrainingExample], Roots]
"""Examples, and the folders that their image paths may lead into."""


def cache_features(
    folder: str,
    loaded: Loaded,
    data: Sequence[DataWithRoots],
    args: TrainingArguments,
    *,
    trained_towers: frozenset[str],
    autocast: str,
    dry_run: bool = False,
) -> None:
    """Compute the missing features of the data's images, and let the model read them. A dry run computes nothing.

    Args:
        folder: Folder of the cache.
        loaded: The model, before it gets adapters.
        data: Training and validation data.
        args: Arguments of the trainer.
        trained_towers: Parts of the model that train.
        autocast: Precision of the forward pass.
        dry_run: Only print the number of images.

    Raises:
        UserError: The model's features can't be cached, an image is bad, or the disk is full.
    """
    refuse_features(loaded.model, trained_towers)
    needed = images(data)
    is_first = args.process_index == 0
    if dry_run:
        if is_first:
            print(f"features: those of {len(needed):,} images would be cached in {folder}", flush=True)
        return
    cache = open_cache(folder, loaded, autocast=autocast)
    fill(
        cache,
        loaded,
        needed,
        device=args.device,
        autocast=autocast,
        processes=launch_processes(),
        say=lambda line: print(line, flush=True) if is_first else None,
    )
    use_cache(cache, loaded)


def images(data: Sequence[DataWithRoots]) -> list[Image]:
    """Return the images of the data, each path once, in order of their first appearance."""
    by_path: dict[tuple[str, str], Image] = {}
    for examples, roots in data:
        for example in examples:
            image = Image(example.image, roots, f"training example {example.id}")
            by_path.setdefault((example.image, str(roots)), image)
    return list(by_path.values())
