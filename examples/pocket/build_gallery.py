"""Build the gallery.

python -m reflectune.examples.pocket.build_gallery --config configs/examples/pocket/gallery.yaml"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reflectune.core import checks
from reflectune.core.config import bound_problems, parse_config, setting
from reflectune.core.errors import entry_point
from reflectune.core.outputs import hold
from reflectune.core.paths import user_cache
from reflectune.examples.pocket.gallery.sources.packages import SOURCES


@dataclass
class GalleryConfig:
    """Settings of a gallery."""

    output: str = setting("", "data set folder to write", check=checks.output_of("dataset.json"))
    captions: str = setting(
        "",
        "data set folder for what stage 1 learns from: captions and visual questions; empty: none",
        check=checks.output_of("dataset.json"),
    )
    cache: str = setting(
        "", "folder that the packages are unpacked in; empty: the user's cache", check=checks.output_folder
    )
    sources: list[str] = setting(list(SOURCES), f"packages to build from, of {', '.join(SOURCES)}")
    seed: int = setting(0, "seed of every draw", low=0, high=checks.MOST_SEED)
    facts: int = setting(12, "most facts of an entity that are asked about", low=1)
    repeats: int = setting(4, "how often training asks for the same fact; for a country's, once", low=1)
    visual: int = setting(3, "questions that looking answers, of each entity of training", low=0)
    two_hop: int = setting(2, "most two-hop questions of an entity", low=0)
    limit: int = setting(0, "most entities of each kind of thing; 0: all", low=0)
    dry_run: bool = setting(False, "say what would be fetched and built, and stop")

    def problems(self) -> list[str]:
        """What is wrong with the values."""
        issues = [] if self.output else ["`output` is needed: the folder to write the gallery into"]
        if self.captions and Path(self.captions).resolve() == Path(self.output).resolve():
            issues.append("`captions` must be another folder than `output`")
        unknown = [name for name in self.sources if name not in SOURCES]
        if unknown:
            issues.append(f"`sources`: {', '.join(unknown)} unknown; there are {', '.join(SOURCES)}")
        return issues + bound_problems(self, GalleryConfig)


@entry_point
def main() -> None:
    """Parse the config and build."""
    (config,) = parse_config(GalleryConfig)
    hold(config.output, config.captions, unless=config.dry_run)
    from reflectune.examples.pocket.gallery.build import Settings, build_gallery
    from reflectune.examples.pocket.gallery.caption_set import build_captions
    from reflectune.examples.pocket.gallery.collecting import collect_sources
    from reflectune.examples.pocket.gallery.questions import Amounts

    cache = Path(config.cache).expanduser() if config.cache else user_cache("gallery")
    if config.dry_run:
        beside = f", captions in {config.captions}" if config.captions else ""
        print(f"a gallery in {config.output}{beside}, of packages unpacked in {cache}:")
        for name in config.sources:
            print(f"  {SOURCES[name].package}: {SOURCES[name].holds} ({SOURCES[name].package.licence})")
        return
    amounts = Amounts(config.facts, config.repeats, config.visual, config.two_hop)
    sources = collect_sources(config.sources, cache)
    settings = Settings(config.seed, amounts, config.limit)
    manifest = build_gallery(Path(config.output), sources, settings)
    entities = ", ".join(f"{count} {role}" for role, count in manifest["entities"].items())
    print(f"{manifest['name']} in {config.output}: {manifest['entries']:,} entries, entities: {entities}; questions:")
    for split, counts in manifest["counts"].items():
        print(f"  {split}: {', '.join(f'{number} {kind}' for kind, number in counts.items())}")
    if config.captions:
        written = build_captions(Path(config.captions), Path(config.output), sources, settings)
        print(f"{written['name']} in {config.captions}:")
        for split, counts in written["counts"].items():
            print(f"  {split}: {sum(counts.values()):,} questions about {written['pictures'][split]:,} pictures")


if __name__ == "__main__":
    main()
