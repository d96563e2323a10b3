"""Write lessons of trajectories: `python -m reflectune.inference.write_lessons --config configs/….yaml`.

Questions whose evidence is known go through an iterative pipeline with a teacher in the model's place. Its prompts and
the teacher's replies are training data of scheme `plain`. Goes on where it stopped.
"""

from __future__ import annotations

from reflectune.core.config import parse_config
from reflectune.core.errors import entry_point
from reflectune.core.outputs import hold
from reflectune.inference.lessons.config import LessonsConfig


@entry_point
def main() -> None:
    """Parse the config, then write."""
    config = parse_config(LessonsConfig)
    hold(config.output, unless=config.dry_run)
    from reflectune.inference.lessons.writing import run  # slow to import: after the config is right

    run(config)


if __name__ == "__main__":
    main()
