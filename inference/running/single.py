"""One question, one image, one answer, with the pipeline of the checkpoint's scheme."""

from __future__ import annotations

from pathlib import Path

from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.formats.dataset import Dataset
from reflectune.inference.pipelines import base
from reflectune.inference.pipelines.recipe import PipelineParts
from reflectune.inference.pipelines.registry import build_pipeline, find_recipe, reflecting
from reflectune.inference.reading.collaborators import open_engine, open_plain, open_retriever, open_tuned
from reflectune.inference.report.words import explain
from reflectune.inference.running.config import AnswerConfig
from reflectune.inference.trace import Trace

__all__ = ["answer", "describe", "explain"]


def answer(config: AnswerConfig) -> Trace:
    """Answer the config's question with the pipeline of the checkpoint's scheme.

    Raises:
        UserError: The image, the checkpoint or the index is bad, or a base model is needed and none is given.
    """
    image = load_image(config.image)
    knowledge = Dataset(Path(config.dataset)).knowledge
    tuned = open_tuned(config)
    name = tuned.scheme.name if tuned.scheme else ""  # a fine-tuned model has one
    if name not in reflecting():
        raise UserError(
            f"`model`: {config.model} was fine-tuned with the scheme {name}, which doesn't reflect; `answer` shows how "
            f"a model of {' or '.join(reflecting())} decides"
        )
    with_base = find_recipe(name).answered_by_base(config)
    if with_base and not config.base_model:
        raise UserError(
            f"`base_model` is needed: {config.model} only reflects (answer_model: base); name the plain model that is "
            "to answer, or set answer_model: tuned"
        )
    parts = PipelineParts(
        config,
        knowledge,
        engine=open_engine(config, tuned),
        base=open_engine(config, open_plain(config, config.base_model)) if with_base else None,
        retriever=open_retriever(config, knowledge),
    )
    return base.answer(build_pipeline(name, parts), config.question, image)


def describe(config: AnswerConfig) -> str:
    """What would be done, for `--dry_run`."""
    told = f"the index {config.index}" if config.index else f"the ranked entities {config.ranked_entities}"
    return (
        f"would ask {config.model} “{config.question}” about {config.image}, looking up at most {config.top_n} "
        f"entries of {config.dataset} through {told}"
    )
