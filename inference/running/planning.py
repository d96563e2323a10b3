"""Plan an evaluation: its questions, and the pipelines that run on them with their models."""

from __future__ import annotations

import random
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectune.core.config import Settings
from reflectune.core.devices import find_device
from reflectune.core.errors import UserError
from reflectune.core.types import Metric, Question
from reflectune.formats.dataset import Dataset
from reflectune.formats.questions import check_one_image
from reflectune.formats.reflection_data import read_manifest, stream_ids
from reflectune.inference.config import ModelSettings, TextIndexSettings
from reflectune.inference.pipelines.oracle import has_gold
from reflectune.inference.pipelines.recipe import ModelUse, Recipe
from reflectune.inference.pipelines.registry import find_recipe, stages_for
from reflectune.inference.running.config import EvaluateConfig
from reflectune.inference.running.costs import describe_cost
from reflectune.inference.running.loading import calibration_for, require_models, require_tuned
from reflectune.inference.scoring.scores import TraceScorer, check_scorable
from reflectune.inference.scoring.seeds import record_of
from reflectune.models.remote.endpoint import RemoteConfig
from reflectune.models.schemes.calibration import Calibration
from reflectune.retrieval.config import RetrieverConfig


@dataclass(frozen=True)
class PlannedPipeline:
    """A pipeline or stage to run.

    Attributes:
        name: Its name.
        recipe: Its recipe.
        settings: Its settings.
        use: The models that it uses.
        questions: The questions that it takes.
        absent: Number of further questions that are left out since the knowledge base lacks their gold entries.
    """

    name: str
    recipe: Recipe[Any]
    settings: Settings
    use: ModelUse
    questions: Sequence[Question]
    absent: int = 0


Plan = Mapping[str, PlannedPipeline]
"""The pipelines and stages to run, by name, in order."""


@dataclass(frozen=True)
class PlannedRun:
    """Questions and pipelines of an evaluation, after all checks that need no model.

    Attributes:
        dataset: The data set.
        questions: The questions.
        metric: Name of the metric.
        calibration: Scalings of the gates.
        planned: The pipelines and stages.
    """

    dataset: Dataset
    questions: Sequence[Question]
    metric: Metric
    calibration: Calibration
    planned: Plan


def select(
    dataset: Dataset, splits: Sequence[str], limit: int | None, seed: int, leave_out: str = "", skip: Sequence[int] = ()
) -> list[Question]:
    """Return the questions of the splits; at most `limit` of each, drawn at random.

    Args:
        leave_out: Folder of reflection data whose questions are left out; "" for none.
        skip: Limits of earlier runs. The questions that those runs drew by this seed are left out first, whether they
            were run with `leave_out` or without.

    Raises:
        UserError: The splits have no questions, or `leave_out` has none of their questions.
    """
    chosen: list[Question] = []
    trained = (
        {i for split in read_manifest(leave_out).fingerprints for i in stream_ids(leave_out, split)}
        if leave_out
        else ()
    )
    left_out = 0
    for split in splits:
        all_questions, key = list(dataset.questions(split)), f"{seed} {split}"
        questions = [question for question in all_questions if question.id not in trained]
        skipped = {q.id for size in skip for pool in (all_questions, questions) for q in _sample(pool, size, key)}
        chosen += _sample([q for q in questions if q.id not in skipped], limit, key)
        left_out += len(all_questions) - len(questions)
    if leave_out and not left_out:
        raise UserError(
            f"`leave_out`: {leave_out} has no question of {', '.join(splits)}; was it built from another data set?"
        )
    if not chosen:
        raise UserError(
            f"{dataset.root}: no questions in {', '.join(splits) or 'any split'}; name splits that the data set has"
        )
    return chosen


def _sample(questions: list[Question], limit: int | None, seed: str) -> list[Question]:
    return questions if limit is None or len(questions) <= limit else random.Random(seed).sample(questions, limit)


def plan(config: EvaluateConfig, questions: Sequence[Question], knowledge: Container[str]) -> Plan:
    """Return the pipelines and stages to run, in order, without those that take none of the questions.

    Args:
        config: Names the pipelines.
        questions: The questions.
        knowledge: Ids of the knowledge base's entries.

    Raises:
        UserError: A question has several images, and a pipeline reads one; or no pipeline takes any question.
    """
    planned = {}
    only_texts = bool(TextIndexSettings.of(config).text_index) and not RetrieverConfig.of(config).finds_entries
    for name in stages_for(config.forms(), diagnose=config.diagnose):
        recipe = find_recipe(name)
        suitable = [question for question in questions if recipe.takes(question)]
        taken = [q for q in suitable if not recipe.reads_gold or has_gold(q, knowledge)]
        can_search = recipe.takes_texts or not recipe.needs("entries") or not only_texts
        if not taken or not can_search:
            continue
        if not recipe.takes_images and config.on_error == "stop":
            for question in taken:
                check_one_image(question, f"the pipeline {name}")
        settings, use = recipe.settings_of(config), recipe.models(config)
        planned[name] = PlannedPipeline(name, recipe, settings, use, taken, absent=len(suitable) - len(taken))
    if not planned.keys() & set(config.forms()):
        raise UserError(
            f"no pipeline of {', '.join(config.forms())} can answer any of these {len(questions):,} questions: oracles "
            "need a question's entry in the knowledge base or its evidence, and retrieval knowledge-based questions"
        )
    return planned


def prepare(config: EvaluateConfig) -> PlannedRun:
    """Read the questions, plan the pipelines, and check everything that needs no model.

    Raises:
        UserError: A question can't be scored, a group has no questions, a calibration was fitted on these splits, a
            model is missing, or see `select` and `plan`.
    """
    dataset, models = Dataset(Path(config.dataset)), ModelSettings.of(config)
    questions = select(dataset, config.splits, config.limit, config.seed, config.leave_out, config.skip)
    metric = config.scored_by(config.dataset)
    check_scorable(questions, metric)
    measure = TraceScorer(metric)
    record_of(measure.official(questions), {}, config.groups, measure)  # every group must have questions
    calibration = calibration_for(models, dataset, config.splits)
    planned = plan(config, questions, dataset.knowledge)
    _check_models(planned, models)
    return PlannedRun(dataset, questions, metric, calibration, planned)


def describe(config: EvaluateConfig) -> str:
    """Describe a run, for `--dry_run`: read the questions, and load no model."""
    run, models = prepare(config), ModelSettings.of(config)
    find_device(config.device)
    splits = ", ".join(config.splits)
    lines = [f"{len(run.questions)} questions of {splits} in {config.dataset}, scored by {run.metric}"]
    for name, pipeline in run.planned.items():
        use = pipeline.use
        reader = f" with {use.reader} {use.checkpoint(models)}" if use.reader else ""
        reader += f", answers by base_model {models.base_model}" if use.base_answers else ""
        answerer = use.other_answerer(models)
        reader += f", answers by answerer {answerer}" if answerer else ""
        reader += f", judgements by model {models.model}" if use.judges else ""
        size = batch_size(use, models, config.batch_questions)
        by = f"in batches of {size}" if size else f"by {RemoteConfig.of(config).llm_concurrency} requests at a time"
        lines.append(f"  {name}: {len(pipeline.questions)} questions {by}{reader}")
        lines += describe_cost(config, run.dataset, pipeline.recipe, use, pipeline.questions)
    lines += absent_sentences(run.planned)
    lines.append(f"into {config.output}: traces/, metrics.json, report.html")
    return "\n".join(lines)


def absent_sentences(planned: Plan) -> list[str]:
    """Return the number of questions that the oracles leave out, if there are any."""
    count = max((pipeline.absent for pipeline in planned.values()), default=0)
    left_out = "pipelines that read the right entry leave them out"
    return [f"The knowledge base lacks the entry of {count} questions: {left_out}."] if count else []


def _check_models(planned: Plan, models: ModelSettings) -> None:
    """Raise a UserError if a model that planned pipelines load doesn't exist, or the checkpoint was not fine-tuned."""
    uses = [pipeline.use for pipeline in planned.values()]
    names = [use.checkpoint(models) for use in uses if use.reader]
    names += [models.base_model for use in uses if use.base_answers]
    names += [models.model for use in uses if use.judges]
    require_models([*names, *(use.second_model(models) for use in uses)])
    if any(use.reader == "model" or use.judges for use in uses):
        require_tuned(models)


def batch_size(use: ModelUse, models: ModelSettings, questions: int) -> int | None:
    """Return the number of questions in a batch; None if all models are served, whose replies don't depend on it."""
    return questions if not use.is_served or use.reader or use.second_model(models) or use.judges else None
