"""Run a tables command: build, answer, compare, and write `tables.json` and `tables.md`."""

from __future__ import annotations

import gc
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reflectune.core.devices import find_device
from reflectune.core.durable import read_json, write_atomically, write_json
from reflectune.core.hashing import file_fingerprint, fingerprint
from reflectune.core.launching import launch_processes, launch_state
from reflectune.examples.miniature.tables import mmkb, mr2ag
from reflectune.examples.miniature.tables.claims import measure
from reflectune.examples.miniature.tables.config import TablesConfig
from reflectune.examples.miniature.tables.layout import markdown
from reflectune.examples.miniature.tables.stages import Answering, TablesPlan, build
from reflectune.formats.dataset import Dataset
from reflectune.inference.config import ModelRole
from reflectune.inference.running.planning import select
from reflectune.inference.scoring.scores import TraceScorer, check_scorable
from reflectune.inference.sweeps.grid import GridRun, run_grid
from reflectune.inference.sweeps.outcomes import GridOutcomes
from reflectune.inference.sweeps.runner import GridRunner

FOLDERS = ("--output", "--runs")
"""Options that change no number."""
PLANS = {"mr2ag": mr2ag.plan, "mmkb_rag": mmkb.plan}


def run(config: TablesConfig) -> dict[str, Any]:
    """Do the unfinished work, and write `tables.json` and `tables.md` into the config's output folder.

    The first process of a launch builds and writes while the others wait. All of them answer questions.

    Returns:
        The content of tables.json.
    """
    state, processes = launch_state(), launch_processes()
    find_device(config.device)  # before anything is trained
    plan = PLANS[config.paper](config)
    if state.is_main_process:
        print(describe(config), flush=True)
        build(plan.stages, Path(config.output))
    processes.wait()
    outcomes: dict[str, list[GridOutcomes]] = {}
    for answering in plan.answering:
        outcomes.setdefault(answering.model, []).append(answer(config, answering))
    if state.is_main_process:
        record = _record(config, plan, outcomes)
        write_json(Path(config.output, "tables.json"), record)
        write_atomically(Path(config.output, "tables.md"), markdown(record))
    processes.wait()
    tables: dict[str, Any] = read_json(Path(config.output, "tables.json"), "the tables")
    return tables


def describe(config: TablesConfig) -> str:
    """Describe a run, for `--dry_run`."""
    find_device(config.device)
    plan = PLANS[config.paper](config)
    stages = [f"  {stage.name}: into {stage.folder}" for stage in plan.stages]
    answering = [f"  answering with {answering.model}, seed {answering.seed}" for answering in plan.answering]
    return "\n".join([plan.title, *stages, *answering])


def answer(config: TablesConfig, answering: Answering) -> GridOutcomes:
    """Answer the unfinished questions at all points with one model."""
    reading = config.reading(answering.world, answering.index, answering.checkpoint, answering.plain)
    dataset = Dataset(answering.world)
    questions = select(dataset, config.splits, config.limit, config.seed)
    metric = config.scored_by(str(answering.world))
    check_scorable(questions, metric)
    measured = TraceScorer(metric, config.open_bem(config.device))
    runner = GridRunner(reading, dataset, config.paper)
    tuned_plainly: list[ModelRole] = ["plain_model"] if answering.plain else []
    key = {
        "settings": reading.hashed(),
        "points": [(point.name, repr(point.run_key), point.ranking) for point in answering.points],
        "dataset": dataset.fingerprint,
        "metric": [measured.metric, measured.bem.fingerprint if measured.bem is not None else None],
        "index": file_fingerprint(answering.index / "manifest.json"),
        "models": runner.fingerprints(["model", "base_model", *tuned_plainly], answering.points),
    }
    grid_run = GridRun(
        points=answering.points,
        measure=measured,
        judge=lambda question, traces, measure: [],
        image_root=dataset.root,
        path=Path(config.output, "answers", f"{answering.model.replace(' ', '_')}-{answering.seed}", "questions.jsonl"),
        fingerprint=fingerprint(key),
        source=dataset.fingerprint,
        batch_questions=config.batch_questions,
    )
    outcomes, stats = run_grid(grid_run, questions, runner)
    if launch_state().is_main_process:
        work = f"{stats.done} forward passes made, {stats.saved} saved"
        print(f"== answered with {answering.model}, seed {answering.seed}: {work}", flush=True)
    del runner
    gc.collect()
    return outcomes


def command_line(arguments: Sequence[str]) -> str:
    """Return the command that made the tables, without options that name folders."""
    kept: list[str] = []
    is_folder = False
    for word in arguments:
        is_folder = word.split("=")[0] in FOLDERS if word.startswith("--") else is_folder
        kept += [] if is_folder else [word]
    return shlex.join(["python", "-m", "reflectune.examples.miniature.papers_tables", *kept])


def _record(config: TablesConfig, plan: TablesPlan, outcomes: Mapping[str, Sequence[GridOutcomes]]) -> dict[str, Any]:
    """Return the content of tables.json."""
    seeds = len(config.seeds)
    return {
        "title": plan.title,
        "command": command_line(sys.argv[1:]),
        "lead": f"{seeds} seed{'s' if seeds > 1 else ''}, mean ± standard deviation in per cent; {config.base_model}, "
        "full fine-tuning. Miniature numbers: read their order. The paper's is a column of ranks; its "
        "numbers, of other models and questions, are in docs/paper_numbers.md. A claim holds if the 95 % interval of "
        "every lead it rests on, over seeds and entities, is above 0; it does not hold if one is below 0; else it is "
        "within noise, and a tie is not a lead.",
        "config": config.model_dump(),
        "tables": [measure(table, outcomes, config.seed) for table in plan.tables],
    }
