"""Build the miniature world.

python -m reflectune.examples.miniature.build_world --config configs/examples/miniature/world.yaml
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from reflectune.core.config import Settings, cross_check, parse_config, setting
from reflectune.core.errors import entry_point
from reflectune.core.outputs import hold
from reflectune.core.values import Seed, output_of


class WorldConfig(Settings):
    """Settings of a world."""

    output: Annotated[str, output_of("dataset.json")] = setting(
        "", "data set folder to write", needed="the folder to write the world into"
    )
    size: Literal["tiny", "default", "large"] = setting(
        "default", "tiny (tests), default (quick start) or large (about 20,000 entities)"
    )
    seed: Seed = setting(0, "seed of everything in the world but the famous entities")
    traffic: int = setting(0, "questions of a further split, traffic, two in five about famous entities; 0: none", ge=0)
    two_hop: int = setting(0, "questions of a further split, two_hop_train, about a neighbour's facts; 0: none", ge=0)
    neighbours: float | None = setting(
        None, "share of the articles that name the entity beside their own; unset: one of seven", ge=0, le=1
    )
    dry_run: bool = setting(False, "say what would be built, and stop")

    @cross_check
    def world_problems(self) -> list[str]:
        """Return the problems of keys that must fit each other, and of files that they name."""
        issues: list[str] = []
        return issues


@entry_point
def main() -> None:
    """Parse the config and build."""
    config = parse_config(WorldConfig)
    hold(config.output, unless=config.dry_run)
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
    main()
