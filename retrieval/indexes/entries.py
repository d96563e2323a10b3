"""Build an index of entries' images and titles from its settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from reflectune.core.config import cross_check, setting
from reflectune.core.errors import UserError
from reflectune.core.rejected import REJECTED
from reflectune.core.values import InputFile, SplitName
from reflectune.retrieval.indexes.settings import IndexSettings

if TYPE_CHECKING:  # slow to import
    from reflectune.core.launching import Processes
    from reflectune.formats.knowledge_base import KnowledgeBase
    from reflectune.retrieval.encoders.base import ImageTextEncoder
    from reflectune.retrieval.indexes.near_duplicates import Omission

SHARD: Final = 4096
"""Default number of entries per shard."""


class EntryIndexSettings(IndexSettings):
    """Settings of an index of images and titles."""

    summaries: bool = setting(
        False, "encode entries' summaries too (else first passages), so that `summary_share` can weigh them"
    )
    captions: InputFile = setting(
        "", "captions of entries' images to encode in place of summaries: `reflectune caption` writes them"
    )
    leave_out: InputFile = setting("", "images to leave out: a near_duplicates.jsonl that `test_images` wrote")
    test_images: str = setting("", "data set whose images' near-duplicates are left out, and listed in `output`")
    test_splits: list[SplitName] = setting([], "splits of `test_images`; if unset, all but train")
    distance: int = setting(0, "bits of 64 in which near-duplicates' hashes may differ; PMSR: 0", ge=0, le=64)
    batch_size: int = setting(64, "entries encoded together", ge=1)
    workers: int = setting(4, "threads in each process that read images ahead of the model; 0: none", ge=0, le=256)
    on_error: Literal["stop", "skip"] = setting("stop", "at a bad image: stop, or leave it out, list and count it")
    verify: bool = setting(False, "compare a finished index's large files whole with their checksums")

    @property
    def encodes_texts(self) -> bool:
        """True if summaries or captions are encoded."""
        return self.summaries or bool(self.captions)

    @cross_check
    def caption_problems(self) -> Iterator[str]:
        """Yield the problem of captions next to summaries."""
        if self.captions and self.summaries:
            yield "`captions` take the place of `summaries`; give one of the two"

    @cross_check
    def test_image_problems(self) -> Iterator[str]:
        """Yield the problems of `test_images` and its splits."""
        from reflectune.formats.dataset import split_issues  # slow to import

        if self.test_images and self.leave_out:
            yield "`leave_out` is a list that `test_images` makes; give one of the two"
        if self.test_images and not Path(self.test_images, "dataset.json").is_file():
            yield f"`test_images`: {self.test_images} has no dataset.json; give a data set's folder"
        yield from split_issues("test_splits", self.test_images, self.test_splits)


def build_entries(config: EntryIndexSettings, *, sections: bool = False) -> int:
    """Build the index, or with `dry_run` describe it.

    Args:
        config: The settings.
        sections: Index sections instead of images; see `reflectune.retrieval.indexes.building.build_index`.

    Returns:
        The number of bad images and of entries without a title that are left out.

    Raises:
        UserError: See `reflectune.retrieval.indexes.building.build_index`.
    """
    from reflectune.core.launching import launch_processes  # slow to import, like the following
    from reflectune.formats.dataset import Dataset, held_out_splits
    from reflectune.formats.knowledge_base import KnowledgeBase
    from reflectune.retrieval.encoders.encoder import load_encoder
    from reflectune.retrieval.indexes.building import build_index
    from reflectune.retrieval.indexes.captions import CaptionedKnowledge
    from reflectune.retrieval.indexes.entry_index import left_out
    from reflectune.retrieval.indexes.near_duplicates import LIST, NOTHING, list_near_duplicates, read_omission

    processes = launch_processes("" if config.dry_run else config.output)
    kb = KnowledgeBase(config.knowledge)
    if config.test_images and not config.dry_run:
        with processes.main_process_first():
            if not processes.index:
                dataset = Dataset(Path(config.test_images))
                splits = config.test_splits or held_out_splits(dataset.root)
                list_near_duplicates(kb, dataset, splits, Path(config.output), config.distance)
        config = config.model_copy(update={"leave_out": str(Path(config.output, LIST))})
    leave_out = read_omission(config.leave_out, kb) if config.leave_out else NOTHING
    encoder = load_encoder(config.encoder, device=config.device, dtype=config.dtype)
    kb = CaptionedKnowledge(kb, config.captions) if config.captions else kb
    if config.dry_run:
        return 0 if processes.index else _describe(config, kb, encoder, leave_out, processes, sections=sections)
    index = build_index(
        kb,
        encoder,
        config.output,
        store=config.store,
        summaries=config.encodes_texts,
        sections=sections,
        leave_out=leave_out,
        batch_size=config.batch_size,
        shard_rows=config.shard_entries or SHARD,
        on_error=config.on_error,
        verify=config.verify,
        progress=True,
        workers=config.workers,
        processes=processes,
    )
    if processes.index:
        return 0
    _print_contents(config, kb.name, index.manifest, sections=sections)
    return left_out(index.manifest)


def _describe(
    config: EntryIndexSettings,
    kb: KnowledgeBase,
    encoder: ImageTextEncoder,
    leave_out: Omission,
    processes: Processes,
    *,
    sections: bool,
) -> int:
    """Print what would be built, and return the number of missing images."""
    from reflectune.retrieval.indexes.planning import check_room, describe_plan, missing_images, plan_index
    from reflectune.retrieval.indexes.sections import SectionKnowledge
    from reflectune.retrieval.indexes.trial import describe_time, try_entries

    if missing := missing_images(kb):
        problem = f"{len(missing):,} of {sum(kb.image_counts()):,} images are missing, e.g. {'; '.join(missing[:3])}"
        if config.on_error == "stop":
            raise UserError(f"{problem}; fix them, or leave them out with `on_error: skip`")
        print(f"{problem}; they would be left out")
    kb = SectionKnowledge(kb, leave_out) if sections else kb
    plan = plan_index(kb, encoder, config.store, summaries=config.encodes_texts)
    if config.test_images:
        print(f"without the near-duplicates of the images of {config.test_images}")
    if leave_out.images:
        print(f"without {len(leave_out.images):,} near-duplicates of test images, listed in {config.leave_out}")
    print(*describe_plan(kb, encoder, plan), f"into {config.output}; nothing was written", sep="\n")
    check_room(Path(config.output), plan)
    parts = try_entries(
        kb, encoder, batch_size=config.batch_size, workers=config.workers, summaries=config.encodes_texts
    )
    if time := describe_time(parts, processes):
        print(f"  {time}")
    return len(missing)


def _print_contents(config: EntryIndexSettings, name: str, manifest: Mapping[str, Any], *, sections: bool) -> None:
    """Print the contents of a finished index, and the number of rows left out."""
    from reflectune.retrieval.indexes.entry_index import NEAR_DUPLICATES, recall_of

    if sections:
        content = f"sections, {manifest['images']:,} with an image,"
    else:
        texts = ""
        if config.encodes_texts:
            texts = f", as many {'captions' if config.captions else 'summaries'}"
        content = f"titles{texts} and {manifest['images']:,} images"
    print(f"{config.output}: {manifest['entries']:,} {content} of {name}")
    print(f"  searched by {manifest['store']}{recall_of(manifest)}")
    if config.leave_out:
        print(f"  left out: {manifest[NEAR_DUPLICATES]:,} near-duplicates of test images, listed in {config.leave_out}")
    for reason, count in manifest.get("left_out", {}).items():
        print(f"  left out: {count:,} × {reason}, listed in {config.output}/{REJECTED}")
