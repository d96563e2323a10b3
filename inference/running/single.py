"""Answer one question about one image: with a pipeline by name, or with that of the checkpoint's scheme."""

from __future__ import annotations

import sys
from contextlib import ExitStack, redirect_stdout
from pathlib import Path

from reflectune.core.config import Settings
from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.formats.dataset import Dataset
from reflectune.inference.config import ModelSettings
from reflectune.inference.pipelines import base
from reflectune.inference.pipelines.recipe import PipelineParts
from reflectune.inference.pipelines.registry import build_pipeline, find_recipe, reflecting
from reflectune.inference.pipelines.settings import DepthSettings
from reflectune.inference.running.config import AnswerConfig
from reflectune.inference.running.loading import open_engine, open_entries, open_plain, open_tuned
from reflectune.inference.running.parts import open_pipelines
from reflectune.inference.trace import Trace
from reflectune.retrieval.config import RetrieverConfig
from reflectune.retrieval.retrievers.entry_retriever import Retriever


def answer(config: AnswerConfig) -> Trace:
    """Answer the config's question with its pipeline, or with that of the checkpoint's scheme.

    Raises:
        UserError: The image, the checkpoint or the index can't be used, or a base model is needed and none is given.
    """
    image = load_image(config.image)
    dataset, models = Dataset(Path(config.dataset)), ModelSettings.of(config)
    with ExitStack() as resources:
        if recipes := config.recipes():
            resources.enter_context(redirect_stdout(sys.stderr))  # the summary of a server's replies
            (opened,) = open_pipelines(config, recipes, dataset, resources)[1].items()
        else:
            opened = open_reflecting(config, models, dataset)
        return base.answer(build_pipeline(opened[0], config, opened[1]), config.question, image, config.answer_type)


def open_reflecting(
    config: Settings, models: ModelSettings, dataset: Dataset, retriever: Retriever | None = None
) -> tuple[str, PipelineParts]:
    """Return the pipeline of the checkpoint's scheme, by name, and its parts.

    Args:
        config: Has the settings of the pipeline and the retriever.
        models: The models.
        dataset: Has the entries.
        retriever: Finds entries; opened here if None.

    Raises:
        UserError: The checkpoint or the index can't be used, or a base model is needed and none is given.
    """
    tuned = open_tuned(models)
    name = tuned.scheme.name if tuned.scheme else ""  # a fine-tuned model has one
    if name not in reflecting():
        raise UserError(
            f"`model`: {models.model} was fine-tuned with the scheme {name}, which doesn't reflect; give a "
            f"checkpoint of {' or '.join(reflecting())}"
        )
    with_base = find_recipe(name).models(config).base_answers
    if with_base and not models.base_model:
        raise UserError(
            f"`base_model` is needed: {models.model} only reflects (answer_model: base); name the plain model that "
            "answers, or set answer_model: tuned"
        )
    parts = PipelineParts(
        dataset.knowledge,
        engine=open_engine(models, tuned),
        base=open_engine(models, open_plain(models, models.base_model)) if with_base else None,
        retriever=retriever or open_entries(RetrieverConfig.of(config), dataset, models.device),
    )
    return name, parts


def describe(config: AnswerConfig) -> str:
    """Describe the run, for `--dry_run`."""
    if names := config.names():
        return f"would answer “{config.question}” about {config.image} by {names[0]} over {config.dataset}"
    retriever = RetrieverConfig.of(config)
    found = f"the index {retriever.index}" if retriever.index else f"the ranked entities {retriever.ranked_entities}"
    return (
        f"would ask {config.model} “{config.question}” about {config.image}, retrieving at most "
        f"{DepthSettings.of(config).top_n} entries of {config.dataset} from {found}"
    )
