"""Before training: what a frozen vision tower says of every picture of the data is read, once, and kept."""

from __future__ import annotations

from collections.abc import Sequence

from accelerate import PartialState
from transformers import TrainingArguments

from reflectune.core.paths import Roots
from reflectune.core.resumable import Processes
from reflectune.models.features.filling import Picture, fill, open_cache, use_cache
from reflectune.models.features.tower import refuse_features
from reflectune.models.loading import Loaded
from reflectune.models.schemes.examples import TrainingExample
from reflectune.train.settings.sft import SftConfig


def cache_features(
    config: SftConfig,
    loaded: Loaded,
    data: Sequence[tuple[Sequence[TrainingExample], Roots]],
    args: TrainingArguments,
) -> None:
    """Fill the cache with the data's pictures, and have the model read them from there. A dry run fills nothing.

    Args:
        config: The run's.
        loaded: Its model, before adapters.
        data: Examples, and the folders that their image paths may lead into: to train on, and to validate on.
        args: The trainer's.

    Raises:
        UserError: The model's features can't be cached, a picture is bad, or the disk is full.
    """
    refuse_features(loaded.model, config.trained_towers)
    needed = pictures(data)
    first = args.process_index == 0
    if config.dry_run:
        if first:
            print(f"features: those of {len(needed):,} pictures would be kept in {config.cache_features}", flush=True)
        return
    cache = open_cache(config.cache_features, loaded, autocast=config.dtype, dtype=config.cache_dtype)
    fill(
        cache,
        loaded,
        needed,
        device=args.device,
        autocast=config.dtype,
        processes=Processes(args.process_index, args.world_size, PartialState().wait_for_everyone),
        say=lambda line: print(line, flush=True) if first else None,
    )
    use_cache(cache, loaded)


def pictures(data: Sequence[tuple[Sequence[TrainingExample], Roots]]) -> list[Picture]:
    """The pictures of the data, each path once, in order of their first appearance."""
    by_path: dict[tuple[str, str], Picture] = {}
    for examples, roots in data:
        for example in examples:
            picture = Picture(example.image, roots, f"training example {example.id}")
            by_path.setdefault((example.image, str(roots)), picture)
    return list(by_path.values())
