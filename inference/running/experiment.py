"""Run an evaluation from its config to its report, model by model."""

from __future__ import annotations

import dataclasses
import functools
import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectune.core.config import Settings
from reflectune.core.durable import write_json
from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.core.launching import launch_processes
from reflectune.core.types import Question
from reflectune.formats.dataset import Dataset
from reflectune.inference.config import ModelRole, ModelSettings
from reflectune.inference.operators.budget import was_raised
from reflectune.inference.pipelines.gated import GatedSettings
from reflectune.inference.pipelines.mr2ag import MR2AG, ChoiceSettings, Mr2agSettings
from reflectune.inference.pipelines.recipe import ModelUse, PipelineParts
from reflectune.inference.pipelines.registry import ROLES, build_pipeline
from reflectune.inference.report.page import write_report
from reflectune.inference.running.config import EvaluateConfig
from reflectune.inference.running.facts import budgets, data_set_name, minutes, peak_gib, reader_facts, run_facts
from reflectune.inference.running.loading import (
    open_engine,
    open_model,
    open_plain,
    saved_weights,
    tuned_on,
)
from reflectune.inference.running.parts import hash_parts, open_parts, open_servers, preparers
from reflectune.inference.running.planning import (
    Plan,
    PlannedPipeline,
    absent_sentences,
    batch_size,
    prepare,
)
from reflectune.inference.running.runner import RunSettings, run_pipeline
from reflectune.inference.scoring.calibration import GATE_NAMES, fitted_scalings
from reflectune.inference.scoring.evaluation import evaluate
from reflectune.inference.scoring.losses import counted, outcomes
from reflectune.inference.scoring.mentions import entity_names
from reflectune.inference.scoring.notices import ModelFacts, notices
from reflectune.inference.scoring.scores import Traces, TraceScorer
from reflectune.inference.scoring.seeds import RECORD, record_of
from reflectune.inference.trace_files.columns import StoredTraces
from reflectune.models.loading import Loaded
from reflectune.models.prefix.interface import Engine
from reflectune.models.schemes.calibration import CALIBRATION_FILE, Calibration
from reflectune.models.schemes.decision import set_temperatures
from reflectune.models.schemes.registry import load_scheme


@dataclass(frozen=True)
class CompletedRun:
    """Traces of a run, and everything that their scores and the report need.

    Attributes:
        dataset: The data set.
        questions: The questions.
        planned: The pipelines and stages.
        measure: Scorer of answers.
        calibration: Scalings of the gates.
        parts: Parts of the pipelines.
        loaded: The models that were loaded.
        traces: The traces.
    """

    dataset: Dataset
    questions: Sequence[Question]
    planned: Plan
    measure: TraceScorer
    calibration: Calibration
    parts: PipelineParts
    loaded: Sequence[ModelFacts]
    traces: Traces

    @property
    def settings(self) -> dict[str, Settings]:
        """The settings of each pipeline and stage, by name."""
        return {name: pipeline.settings for name, pipeline in self.planned.items()}


def run(config: EvaluateConfig) -> dict[str, Any]:
    """Run all pipelines of a config, then write `metrics.json` and `report.html` into its output folder.

    Returns:
        The content of metrics.json on the main process, which alone scores the answers; {} on the others.

    Raises:
        UserError: A question can't be answered or can't be scored, all questions failed, the folder holds traces of
            other settings, or the machines of the launch don't share it.
    """
    is_first = launch_processes(config.output).index == 0
    answered = _answer(config, is_first=is_first)
    if not is_first:
        return {}
    metrics = _score(config, answered)
    if config.fit_calibration:
        _fit_calibration(config, answered.dataset, metrics["calibration"])
    _report(config, answered, metrics)
    return metrics


def _answer(config: EvaluateConfig, *, is_first: bool) -> CompletedRun:
    """Check the questions, open the parts, and run the pipelines; BEM is opened in the first process alone."""
    ready, models = prepare(config), ModelSettings.of(config)
    dataset, planned = ready.dataset, ready.planned
    measure = TraceScorer(ready.metric, config.open_bem(config.device) if is_first else None)
    recipes = [pipeline.recipe for pipeline in planned.values()]
    remote, pages = any(it.use.is_served for it in planned.values()), any(it.needs("pages") for it in recipes)
    parts = open_parts(config, dataset, recipes, device=config.device, seed=config.seed)
    hashes = hash_parts(config, dataset, parts, remote=remote, seed=config.seed)
    with open_servers(config, parts, Path(config.output), remote=remote, pages=pages) as served:
        traces, loaded = _run_planned(dataset, served, planned, models, RunSettings.of(config), hashes)
    return CompletedRun(dataset, ready.questions, planned, measure, ready.calibration, parts, loaded, traces)


def _score(config: EvaluateConfig, run: CompletedRun) -> dict[str, Any]:
    """Score a run's traces, write metrics.json and the record that `compare` reads, and return the metrics."""
    questions, traces, measure, settings = run.questions, run.traces, run.measure, run.settings
    failed = _count_failed(traces)
    is_iterative = any(pipeline.recipe.is_iterative for pipeline in run.planned.values())
    scores = evaluate(
        questions,
        traces,
        measure=measure,
        gamma=GatedSettings.of(config).gamma,
        seed=config.seed,
        groups=config.groups,
        scalings=run.calibration.gates,
        names=entity_names(questions, run.dataset.knowledge) if is_iterative else {},
    )
    uses = {name: pipeline.use for name, pipeline in run.planned.items()}
    answered = {name: traces[name] for name in traces if name in scores["pipelines"]}
    official = measure.official(questions)
    lost = {name: outcomes(official, made, measure) for name, made in answered.items()}
    metrics = {
        **scores,
        "readers": reader_facts(uses, ModelSettings.of(config), run.loaded),
        "budgets": budgets(settings, run.parts),
        "failed": failed,
        "minutes": minutes(traces),
        "peak_gib": peak_gib(Path(config.output)),
        "names": {name: run.planned[name].recipe.plain_name(settings[name]) for name in answered},
        "losses": {name: counted(keys) for name, keys in lost.items()},
    }
    write_json(Path(config.output, "metrics.json"), metrics)
    record = {**record_of(official, answered, config.groups, measure), "outcomes": lost}
    write_json(Path(config.output, RECORD), record)
    return metrics


def _report(config: EvaluateConfig, run: CompletedRun, metrics: Mapping[str, Any]) -> None:
    """Write report.html."""
    settings = run.settings
    reflecting = Mr2agSettings.of(settings[MR2AG.name]) if MR2AG.name in settings else None
    write_report(
        Path(config.output, "report.html"),
        dataset=run.dataset,
        questions=run.questions,
        traces=run.traces,
        metrics=metrics,
        title=f"reflectune on {data_set_name(run.dataset)}",
        facts=run_facts(config, run.dataset, run.loaded, settings),
        notices=[
            *absent_sentences(run.planned),
            *notices(run.questions, run.traces, metrics, run.dataset.manifest, run.loaded, run.measure),
        ],
        measure=run.measure,
        gamma=GatedSettings.of(config).gamma,
        choice=ChoiceSettings.of(reflecting) if reflecting and reflecting.fallback == "best_product" else None,
        seed=config.seed,
    )


def _count_failed(traces: Traces) -> dict[str, int]:
    """Count the questions that failed, by the name of each pipeline or stage with one.

    Raises:
        UserError: All of them failed, in all pipelines.
    """
    errors = {name: [trace.error for trace in stored.values() if trace.error] for name, stored in traces.items()}
    if all(len(errors[name]) == len(stored) for name, stored in traces.items()):
        raise UserError(f"all questions failed, in all pipelines; the first error: {next(iter(errors.values()))[0]}")
    return {name: len(found) for name, found in errors.items() if found}


def _fit_calibration(config: EvaluateConfig, dataset: Dataset, measured: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the scalings that were fitted to this run's gates into the checkpoint's folder."""
    if not measured:
        raise UserError("`fit_calibration`: no gate has both positive and negative outcomes here; use more questions")
    folder, scalings = Path(config.model), fitted_scalings(measured)
    scheme = load_scheme(folder)
    Calibration(scalings, saved_weights(folder), dataset.fingerprint, config.splits).save(folder, scheme)
    set_temperatures(folder, scheme, {GATE_NAMES[name]: numbers["temperature"] for name, numbers in measured.items()})
    print(f"calibration of {', '.join(scalings)}: {folder / CALIBRATION_FILE}")


def _run_planned(
    dataset: Dataset,
    parts: PipelineParts,
    planned: Plan,
    models: ModelSettings,
    running: RunSettings,
    hashes: Mapping[str, Any],
) -> tuple[Traces, list[ModelFacts]]:
    """Run planned pipelines, grouped by model, so that only the models in use are in memory."""
    traces: dict[str, StoredTraces] = {}
    loaded: list[ModelFacts] = []

    def engine(role: str, model: Loaded, contexts: tuple[str, ...] = ()) -> Engine:
        loaded.append(ModelFacts(role, model.name, model.fingerprint, model.model.num_parameters(), contexts))
        return open_engine(models, model)

    base_stays = any(pipeline.use.base_answers for pipeline in planned.values())
    for role, name in _readers(planned, models, base_stays=base_stays):
        pipelines = [it for it in planned.values() if (it.use.reader, it.use.checkpoint(models)) == (role, name)]
        ready = parts
        if role:
            reads = pipelines[0].use.reads if pipelines else ""
            contexts = tuned_on(name) if role == "plain_model" else ()
            ready = dataclasses.replace(parts, engine=engine(role, open_model(models, role, reads), contexts))
        if role == "base_model" and base_stays:
            parts = dataclasses.replace(parts, base=ready.engine)
        if second := next(filter(None, (pipeline.use.second_model(models) for pipeline in pipelines)), ""):
            ready = dataclasses.replace(ready, answerer=engine("answerer", open_plain(models, second)))
        if any(pipeline.use.judges for pipeline in pipelines):
            ready = dataclasses.replace(ready, gate=engine("model", open_model(models, "model")))
        for pipeline in pipelines:
            size = batch_size(pipeline.use, models, running.batch_questions)
            key = _fingerprint(pipeline, dataset, models, loaded, hashes, size)
            _run(pipeline, ready, dataset, running, size, key, traces)
        del ready
        gc.collect()
    return {name: traces[name] for name in planned}, loaded


def _readers(planned: Plan, models: ModelSettings, *, base_stays: bool) -> list[tuple[ModelRole | None, str]]:
    """Return role and name of each reader, in the order of running. The role `plain_model` may have several."""
    uses = [pipeline.use for pipeline in planned.values()] + [ModelUse("base_model")] * base_stays
    readers = dict.fromkeys((use.reader, use.checkpoint(models)) for use in uses)
    return sorted(readers, key=lambda reader: ROLES.index(reader[0]))


def _run(
    pipeline: PlannedPipeline,
    parts: PipelineParts,
    dataset: Dataset,
    running: RunSettings,
    batch_questions: int | None,
    key: str,
    traces: dict[str, StoredTraces],
) -> None:
    if batch_questions is None and not pipeline.recipe.is_iterative and parts.remote is not None:
        batch_questions = 4 * parts.remote.endpoint.concurrency  # so that threads are rarely idle at a batch's end
    ready = dataclasses.replace(parts, use=pipeline.use, batch_questions=running.batch_questions, earlier=traces)
    traces[pipeline.name] = run_pipeline(
        pipeline.name,
        functools.partial(build_pipeline, pipeline.name, pipeline.settings, ready),
        pipeline.questions,
        image_root=dataset.root,
        folder=Path(running.output, "traces"),
        fingerprint=key,
        batch_questions=batch_questions,
        on_error=running.on_error,
        form=running.traces,
        reopen=functools.partial(was_raised, now=parts.budget.limits),
        takes_images=pipeline.recipe.takes_images,
        prepare=functools.partial(preparers, parts, pipeline.recipe),
    )


def _fingerprint(
    pipeline: PlannedPipeline,
    dataset: Dataset,
    models: ModelSettings,
    loaded: Sequence[ModelFacts],
    part_hashes: Mapping[str, Any],
    batch_questions: int | None,
) -> str:
    """Hash everything that a pipeline's traces depend on; the number of questions is not part of it."""
    use = pipeline.use
    by_role = {model.role: model.fingerprint for model in loaded}  # the current model of a role was loaded last
    roles = (use.reader, *(["base_model"] * use.base_answers), *(["model"] * use.judges))
    hashes: dict[str, Any] = {role: by_role[role] for role in roles if role}
    if answerer := use.other_answerer(models):
        hashes["answerer"] = by_role.get("answerer", answerer)
    if use.reader or use.second_model(models) or use.judges:
        hashes |= {"dtype": models.precision, "token_budget": models.token_budget, "compile": models.compile}
    parts = {requirement.name for requirement in pipeline.recipe.requires} | ({"remote"} if use.is_served else set())
    return fingerprint(
        {
            "pipeline": pipeline.name,
            "dataset": dataset.fingerprint,
            "batch_questions": batch_questions,
            "models": hashes,
            "parts": {name: part_hashes[name] for name in parts},
            "settings": pipeline.settings.hashed(),
        }
    )
