"""Write lessons of trajectories: `python -m reflectune.examples.lessons.write_lessons --config configs/….yaml`.

Questions whose evidence is known go through an iterative pipeline with a teacher in the model's place. Its prompts and
the teacher's replies are training data of scheme `plain`. A run that was cut off resumes.
"""

from __future__ import annotations

from reflectune.core.command import command
from reflectune.examples.lessons.config import LessonsConfig, LessonSettings
from reflectune.inference.config import ModelSettings, TextIndexSettings
from reflectune.retrieval.config import RetrieverConfig


@command(LessonsConfig, writes="output")
def write_lessons(config: LessonsConfig) -> None:
    """Write the prompts of an iterative pipeline, with ideal replies, as training data."""
    from reflectune.examples.lessons.writing import run  # slow to import: after the config is right

    run(
        LessonSettings.of(config),
        ModelSettings.of(config),
        RetrieverConfig.of(config),
        TextIndexSettings.of(config),
        config.taught(),
        config.hashed(),
    )


if __name__ == "__main__":
    write_lessons.main()
