"""Run a sweep, and write `sweep.json`, a page and charts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from reflectune.core.devices import find_device
from reflectune.core.durable import write_json, write_rows
from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.core.launching import launch_processes, launch_state
from reflectune.core.types import Question
from reflectune.formats.dataset import Dataset
from reflectune.inference.config import ModelSettings
from reflectune.inference.pipelines.mr2ag import ChoiceSettings, decide_again
from reflectune.inference.pipelines.registry import find_recipe
from reflectune.inference.running.loading import calibration_for, require_models, require_tuned
from reflectune.inference.running.opening import is_current
from reflectune.inference.running.planning import select
from reflectune.inference.scoring.scores import TraceScorer, check_scorable
from reflectune.inference.scoring.seeds import RECORD, record_of
from reflectune.inference.sweeps.caching import CacheStats
from reflectune.inference.sweeps.config import SweepConfig
from reflectune.inference.sweeps.grid import GridRun, run_grid
from reflectune.inference.sweeps.judging import RELIABILITY_CHECKS
from reflectune.inference.sweeps.outcomes import GridOutcomes, over_start, point_scores
from reflectune.inference.sweeps.page import write_page
from reflectune.inference.sweeps.points import Point
from reflectune.inference.sweeps.runner import GridRunner
from reflectune.inference.sweeps.stored import FittedExponents, decide_row, fit_exponents
from reflectune.inference.trace import Trace, to_row
from reflectune.inference.trace_files.columns import StoredTraces, open_traces, whole_traces
from reflectune.metrics.reporting.intervals import units
from reflectune.retrieval.config import RetrieverConfig


def run(config: SweepConfig) -> dict[str, Any]:
    """Run all points, and write `sweep.json`, `sweep.html` and an SVG per chart into the config's output folder.

    With `fit`, also write `fitted.jsonl`, the traces as decided at the point `fitted`, and their `scored.json`.

    Returns:
        The content of sweep.json in the first process, {} in the others.

    Raises:
        UserError: A question can't be answered or can't be scored, all failed, or the folder holds other settings.
    """
    is_first = launch_processes(config.output).index == 0
    dataset = Dataset(Path(config.dataset))
    questions = select(dataset, config.splits, None if config.traces else config.limit, config.seed)
    points = config.points()
    config.metric = config.scored_by(config.dataset)
    _check(config, dataset, questions, points)
    measure = TraceScorer(config.metric, config.open_bem(config.device))
    fitted, stats = None, CacheStats()
    if config.traces:
        outcomes, fitted = _decide_again(config, dataset, questions, points, measure)
        questions = list(outcomes.questions)
        if fitted:
            points.append(Point("fitted"))
    else:
        outcomes, stats = _ask(config, dataset, questions, points, measure)
    if not is_first:
        return {}
    errors = [row["error"] for row in outcomes.rows.values() if "error" in row]
    if len(errors) == len(questions):
        raise UserError(f"all questions failed; the first error: {errors[0]}")
    scored = measure.official(questions)
    record = {
        "pipeline": config.pipeline,
        "model": config.traces or config.model,
        "data_set": {"folder": config.dataset, "fingerprint": dataset.fingerprint},
        "metric": measure.facts(scored),
        "questions": len(questions),
        "failed": len(errors),
        "resampled": units(scored),
        "seed": config.seed,
        "start": config.start(),
        "fitted_exponents": fitted.exponents if fitted else None,
        "forward_passes": {"made": stats.done, "asked": stats.requested, "saved": stats.saved},
        "points": [
            {
                "name": point.name,
                "settings": dict(point.settings),
                **point_scores(outcomes, point.name, config.seed),
                "over_start": over_start(outcomes, point.name, points[0].name, config.seed),
            }
            for point in points
        ],
    }
    write_json(Path(config.output, "sweep.json"), record)
    write_page(Path(config.output), outcomes, record)
    return record


def _check(config: SweepConfig, dataset: Dataset, questions: Sequence[Question], points: Sequence[Point]) -> None:
    """Raise a UserError if a model is missing or untuned, a question unscorable, or a calibration saw these splits."""
    require_models(getattr(config, role) for role in config.roles())
    check_scorable(questions, config.scored_by(config.dataset))
    if config.traces:
        return
    require_tuned(ModelSettings.of(config.reading()))
    for point in points:
        calibration_for(ModelSettings.of(point.config(config.reading())), dataset, config.splits)


def _decide_again(
    config: SweepConfig, dataset: Dataset, questions: Sequence[Question], points: Sequence[Point], measure: TraceScorer
) -> tuple[GridOutcomes, FittedExponents | None]:
    """Decide stored traces again at every point, and with `fit` at the point `fitted`, whose traces are written."""
    stored = open_traces(Path(config.traces))
    if others := {it.pipeline for it in stored.values() if find_recipe(it.pipeline).scheme != config.pipeline}:
        raise UserError(
            f"{config.traces} holds traces of {', '.join(others)}; give traces of mr2ag or of mr2ag_unjudged"
        )
    questions = [question for question in questions if question.id in stored]
    if not questions:
        raise UserError(f"{config.traces} has no trace of these splits' questions; name the splits that were evaluated")
    if edited := [q.id for q in questions if not is_current(stored[q.id], q, dataset.image_roots)]:
        raise UserError(
            f"{len(edited)} questions were edited after {config.traces} was written, the first is {edited[0]}; run "
            "evaluate again, which answers them"
        )
    measure.read(questions, [stored])
    decisions = [(point, ChoiceSettings.of(point.config(config.reading()))) for point in points]
    fitted, apart = None, dict[str, list[tuple[Point, ChoiceSettings]]]()
    if config.fit:
        fitted = fit_exponents(ChoiceSettings.of(config), questions, stored, measure, config.seed)
        apart = {q.id: [(Point("fitted"), fitted.apart[q.id])] for q in questions}
        if launch_state().is_main_process:
            _write_fitted(config, questions, stored, fitted, measure)
    whole = zip(questions, whole_traces(stored, [question.id for question in questions]), strict=True)
    rows = {q.id: decide_row(q, trace, [*decisions, *apart.get(q.id, ())], measure) for q, trace in whole}
    return GridOutcomes(questions, rows, measure), fitted


def _write_fitted(
    config: SweepConfig,
    questions: Sequence[Question],
    stored: StoredTraces,
    fitted: FittedExponents,
    measure: TraceScorer,
) -> None:
    """Write the traces as decided by fitted exponents, and their scores as `compare` reads them."""
    answers: dict[str, Trace] = {}

    def rows() -> Iterator[dict[str, Any]]:
        for trace in whole_traces(stored, [question.id for question in questions]):
            decided = decide_again(trace, fitted.apart[trace.question_id])
            answers[trace.question_id] = dataclasses.replace(decided, passages=())
            yield {"id": trace.question_id, **to_row(decided)}

    write_rows(Path(config.output, "fitted.jsonl"), fingerprint([config.traces, repr(fitted)]), rows())
    name = f"{stored[questions[0].id].pipeline}_fitted"
    write_json(Path(config.output, RECORD), record_of(measure.official(questions), {name: answers}, (), measure))


def _ask(
    config: SweepConfig, dataset: Dataset, questions: Sequence[Question], points: Sequence[Point], measure: TraceScorer
) -> tuple[GridOutcomes, CacheStats]:
    """Answer the questions at every point."""
    runner = GridRunner(config.reading(), dataset, config.pipeline)
    asked = [*points, *RELIABILITY_CHECKS[config.pipeline].points]
    return run_grid(
        GridRun(
            points=asked,
            measure=measure,
            judge=RELIABILITY_CHECKS[config.pipeline].judge,
            image_root=dataset.root,
            path=config.log(),
            fingerprint=_fingerprint(config, dataset, asked, runner, measure),
            batch_questions=config.batch_questions,
            on_error=config.on_error,
        ),
        questions,
        runner,
    )


def describe(config: SweepConfig) -> str:
    """Describe a run, for `--dry_run`, without loading a model."""
    dataset = Dataset(Path(config.dataset))
    questions = select(dataset, config.splits, config.limit, config.seed)
    points = config.points()
    _check(config, dataset, questions, points)
    if config.traces:
        return f"decide the traces of {config.traces} again at {len(points)} points, into {config.output}"
    find_device(config.device)
    runs = len({point.run_key for point in points})
    return "\n".join(
        [
            f"{len(questions)} questions at {len(points)} points of {config.pipeline}: {runs} runs of it over one set",
            f"of forward passes, {config.batch_questions} questions at a time:",
            *(f"  {point.name}" for point in points),
            f"into {config.output}: sweep.json, sweep.html, one SVG a plot",
        ]
    )


def _fingerprint(
    config: SweepConfig, dataset: Dataset, points: Sequence[Point], runner: GridRunner, measure: TraceScorer
) -> str:
    return fingerprint(
        {
            "settings": config.hashed(),
            "points": [(point.name, repr(point.run_key), point.ranking) for point in points],
            "dataset": dataset.fingerprint,
            "bem": measure.bem.fingerprint if measure.bem is not None else None,
            "index": RetrieverConfig.of(config).finder_fingerprint(),
            "models": runner.fingerprints(config.roles(), points),
        }
    )
