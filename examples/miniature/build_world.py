"""Build the miniature world.

python -m reflectune.examples.miniature.build_world --config configs/examples/miniature/world.yaml
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from reflectune.core import checks
from reflectune.core.config import bound_problems, parse_config, setting
from reflectune.core.errors import entry_point
from reflectune.core.outputs import hold


@dataclass
class WorldConfig:
    """Settings of a world."""

    output: str = setting("", "data set folder to write", check=checks.output_of("dataset.json"))
    size: Literal["tiny", "default", "large"] = setting(
        "default", "tiny (tests), default (quick start) or large (about 20,000 entities)"
    )
    seed: int = setting(0, "seed of everything in the world but the famous entities", low=0, high=checks.MOST_SEED)
    traffic: int = setting(
        0, "questions of a further split, traffic, two in five about famous entities; 0: none", low=0
    )
    two_hop: int = setting(0, "questions of a further split, two_hop_train, about a neighbour's facts; 0: none", low=0)
    neighbours: float | None = setting(
        None, "share of the articles that name the entity beside their own; unset: one of seven", low=0, high=1
    )
    dry_run: bool = setting(False, "say what would be built, and stop")

    def problems(self) -> list[str]:
        """What is wrong with the values."""
        issues = [] if self.output else ["`output` is needed: the folder to write the world into"]
        return issues + bound_problems(self, WorldConfig)


@entry_point
def main() -> None:
    """Parse the config and build."""
    (config,) = parse_config(WorldConfig)
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
