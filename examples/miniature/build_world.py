"""Build the miniature world.

python -m reflectune.examples.miniature.build_world --output runs/quickstart/world
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from reflectune.core.command import command
from reflectune.core.config import Settings, setting
from reflectune.core.values import Seed, output_of


class WorldConfig(Settings):
    """Settings of a world."""

    output: Annotated[str, output_of("dataset.json")] = setting(
        "", "data set folder to write", needed="the folder to write the world into"
    )
    size: Literal["tiny", "default"] = setting("default", "tiny (tests) or default (quick start)")
    seed: Seed = setting(0, "seed of everything in the world but the famous entities")
    traffic: int = setting(0, "questions of a further split, traffic, two in five about famous entities; 0: none", ge=0)
    two_hop: int = setting(0, "questions of a further split, two_hop_train, about a neighbour's facts; 0: none", ge=0)
    neighbours: float | None = setting(
        None, "share of the articles that name a neighbour of their entity; unset: one of seven", ge=0, le=1
    )
    dry_run: bool = setting(False, "say what would be built, and stop")


@command(WorldConfig, writes="output")
def build_world(config: WorldConfig) -> None:
    """Build the miniature world."""
    from reflectune.examples.miniature.world.build import build_world, describe_world
    from reflectune.examples.miniature.world.population import NEIGHBOURS

    if config.dry_run:
        print(describe_world(config.size, config.traffic, config.two_hop))
        return
    manifest = build_world(
        Path(config.output),
        size=config.size,
        seed=config.seed,
        traffic=config.traffic,
        two_hop=config.two_hop,
        neighbours=NEIGHBOURS if config.neighbours is None else config.neighbours,
    )
    print(f"{manifest['name']} in {config.output}: {manifest['entries']} entries; questions:")
    for split, counts in manifest["counts"].items():
        print(f"  {split}: {', '.join(f'{number} {kind}' for kind, number in counts.items())}")


if __name__ == "__main__":
    build_world.main()
