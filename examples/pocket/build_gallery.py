"""Build the gallery.

python -m reflectune.examples.pocket.build_gallery --output runs/pocket/gallery --captions runs/pocket/captions"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from reflectune.core.command import command
from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.values import Seed, Share, output_of
from reflectune.examples.pocket.gallery.sources.packages import SOURCES
from reflectune.examples.pocket.models.cache import user_cache


class GalleryConfig(Settings):
    """Settings of a gallery."""

    output: Annotated[str, output_of("dataset.json")] = setting(
        "", "data set folder to write", needed="the folder to write the gallery into"
    )
    captions: Annotated[str, output_of("dataset.json")] = setting(
        "",
        "data set folder for what stage 1 learns from: captions and visual questions; empty: none",
    )
    sources: list[str] = setting(list(SOURCES), f"packages to build from, of {', '.join(SOURCES)}")
    seed: Seed = setting(0, "seed of every draw")
    flags: Share = setting(
        1.0, "most share of flags among the knowledge questions of each split; the rest is drawn out"
    )
    limit: int = setting(0, "maximum number of entities of each kind; 0: all", ge=0)
    dry_run: bool = setting(False, "say what would be fetched and built, and stop")

    @cross_check
    def gallery_problems(self) -> Iterator[str]:
        """Yield the problems of keys that must fit each other."""
        if self.captions and Path(self.captions).resolve() == Path(self.output).resolve():
            yield "`captions` must be another folder than `output`"
        if unknown := [name for name in self.sources if name not in SOURCES]:
            yield f"`sources`: {', '.join(unknown)} unknown; there are {', '.join(SOURCES)}"


@command(GalleryConfig, writes=("output", "captions"))
def build_gallery(config: GalleryConfig) -> None:
    """Build pocket's gallery data set."""
    from reflectune.examples.pocket.gallery.build import GallerySettings, build_gallery
    from reflectune.examples.pocket.gallery.caption_set import build_captions
    from reflectune.examples.pocket.gallery.collecting import collect_sources

    cache = user_cache("gallery")
    if config.dry_run:
        captions = f", captions in {config.captions}" if config.captions else ""
        print(f"a gallery in {config.output}{captions}, of packages unpacked in {cache}:")
        for name in config.sources:
            print(f"  {SOURCES[name].package}: {SOURCES[name].holds} ({SOURCES[name].package.licence})")
        return
    sources = collect_sources(config.sources, cache)
    settings = GallerySettings(config.seed, config.limit)
    manifest = build_gallery(Path(config.output), sources, settings, flags=config.flags)
    entities = ", ".join(f"{count} {role}" for role, count in manifest["entities"].items())
    print(f"{manifest['name']} in {config.output}: {manifest['entries']:,} entries, entities: {entities}; questions:")
    for split, counts in manifest["counts"].items():
        print(f"  {split}: {', '.join(f'{number} {kind}' for kind, number in counts.items())}")
    if config.captions:
        written = build_captions(Path(config.captions), Path(config.output), sources, settings)
        print(f"{written['name']} in {config.captions}:")
        for split, counts in written["counts"].items():
            print(f"  {split}: {sum(counts.values()):,} questions about {written['images'][split]:,} images")


if __name__ == "__main__":
    build_gallery.main()
