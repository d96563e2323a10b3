"""Write ProMSA's trajectories of a scripted teacher: `python -m reflectune.examples.lessons.teach_agent --config FILE`.

The teacher knows the evidence of a question, but names only entities that a search has returned. Its calls search the
indexes. The traces are those of `evaluate`; `keep_trajectories` chooses the right ones for SFT. A run that was
cut off resumes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from reflectune.core.command import command
from reflectune.core.config import cross_check, setting
from reflectune.core.values import Device, output_of
from reflectune.examples.lessons.config import TeacherSettings
from reflectune.inference.config import TextIndexSettings
from reflectune.inference.pipelines.registry import find_recipe
from reflectune.inference.pipelines.requirements import LISTED_ENTRIES
from reflectune.retrieval.config import RetrieverConfig
from reflectune.train.answer_rewards.agent_config import PromsaKeys


class TeachingConfig(TeacherSettings, RetrieverConfig, TextIndexSettings, PromsaKeys):
    """Write the trajectories of a scripted teacher of ProMSA, with real searches, as traces of an evaluation."""

    output: Annotated[str, output_of("traces")] = setting("", "folder for traces/promsa.jsonl", needed="")
    device: Device = setting("auto", "device of the encoders")

    @cross_check
    def index_problems(self) -> Iterator[str]:
        """Yield the problem of a missing index."""
        yield from LISTED_ENTRIES.missing(self, "the teacher")


@command(TeachingConfig, writes="output")
def teach_agent(config: TeachingConfig) -> None:
    """Write a scripted teacher's trajectories."""
    # slow to import: after the config is right
    from reflectune.core.hashing import fingerprint
    from reflectune.core.launching import launch_processes
    from reflectune.examples.lessons.agent_model import ScriptedAgent
    from reflectune.examples.lessons.teacher import teacher_of
    from reflectune.examples.lessons.writing import drawn
    from reflectune.formats.dataset import Dataset
    from reflectune.inference.operators.trajectory import Tools, TrajectoryPipeline
    from reflectune.inference.pipelines.promsa import Promsa
    from reflectune.inference.running.agent_search import agent_search
    from reflectune.inference.running.runner import run_pipeline

    dataset, settings = Dataset(Path(config.dataset)), find_recipe("promsa").settings_of(config)
    retriever, texts = RetrieverConfig.of(config), TextIndexSettings.of(config)
    questions = dataset.questions(config.split)
    teachers = {it.id: teacher_of(it, dataset.knowledge, config.query_forms) for it in questions}
    agent = ScriptedAgent({name: teacher for name, teacher in teachers.items() if teacher})
    questions = drawn([it for it in questions if teachers[it.id]], config)
    if config.dry_run:
        print(f"{len(questions):,} questions of {config.split} can be taught")
        return
    launch_processes(config.output)

    def build() -> TrajectoryPipeline:
        search, base = agent_search(dataset, settings, retriever, texts, config.device)
        return TrajectoryPipeline("promsa", Promsa(settings, base), Tools({"reader": agent}, search)).guided(
            agent.named
        )

    key = fingerprint(
        {
            "settings": settings.hashed(),
            "query_forms": config.query_forms,
            "dataset": dataset.fingerprint,
            "index": retriever.finder_fingerprint(),
            "weights": [retriever.title_weight, retriever.summary_share],
            "text_index": texts.texts_fingerprint(),
        }
    )
    run_pipeline(
        "promsa",
        build,
        questions,
        image_root=dataset.root,
        folder=Path(config.output, "traces"),
        fingerprint=key,
        batch_questions=config.batch_questions,
        on_error="stop",
    )


if __name__ == "__main__":
    teach_agent.main()
