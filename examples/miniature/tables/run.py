"""A tables command from its config to `tables.json` and `tables.md`: build, answer, compare, and time each stage."""

from __future__ import annotations

import gc
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from reflectune.core.devices import find_device
from reflectune.core.durable import read_json, write_atomically, write_json
from reflectune.core.hashing import file_fingerprint, fingerprint
from reflectune.core.resumable import launch_state
from reflectune.examples.miniature.tables import mmkb as tables_mmkb
from reflectune.examples.miniature.tables import mr2ag as tables_mr2ag
from reflectune.examples.miniature.tables import stages
from reflectune.examples.miniature.tables.claims import measure
from reflectune.examples.miniature.tables.config import TablesConfig
from reflectune.examples.miniature.tables.layout import markdown
from reflectune.examples.miniature.tables.stages import Answering, Plan, Spent
from reflectune.formats.dataset import Dataset
from reflectune.inference.config import ModelRole
from reflectune.inference.running.experiment import select
from reflectune.inference.scoring.scores import Measure, check_scorable
from reflectune.inference.sweeps.grid import GridRun, run_grid
from reflectune.inference.sweeps.outcomes import Results
from reflectune.inference.sweeps.runner import GridRunner

ELSEWHERE = frozenset("dataset index ranked_entities model plain_model device device_map".split())
"""Settings that do not decide a question's row, or whose content is hashed."""

FOLDERS = ("--output", "--runs", "--world", "--index", "--probes")
"""Options that change no number."""

PLANS = {"mr2ag": tables_mr2ag.plan, "mmkb_rag": tables_mmkb.plan}


def run(config: TablesConfig) -> dict[str, Any]:
    """Do what isn't done, then write `tables.json` and `tables.md` into the config's output folder.

    Of several processes the first one builds and writes, while the others wait; questions are shared out among all.

    Returns:
        The content of tables.json.

    Raises:
        UserError: A stage failed, or the folder was filled with other settings.
    """
    state = launch_state()
    find_device(config.device)  # before anything is trained
    planned = PLANS[config.paper](config)
    spent: list[Spent] = []
    if state.is_main_process:
        print("\n".join(_describe(planned)), flush=True)
        spent += stages.run_stages(planned.stages)
    state.wait_for_everyone()
    results_by_model: dict[str, list[Results]] = {}
    for answering in planned.answering:
        results, minutes = answer(config, answering)
        results_by_model.setdefault(answering.model, []).append(results)
        spent.append(minutes)
    if state.is_main_process:
        record = _record(config, planned, results_by_model, spent)
        write_json(Path(config.output, "tables.json"), record)
        write_atomically(Path(config.output, "tables.md"), markdown(record))
    state.wait_for_everyone()
    tables: dict[str, Any] = read_json(Path(config.output, "tables.json"), "the tables")
    return tables


def _record(
    config: TablesConfig, planned: Plan, results_by_model: Mapping[str, Sequence[Results]], spent: Sequence[Spent]
) -> dict[str, Any]:
    """The content of tables.json."""
    seeds = len(config.seeds)
    return {
        "title": planned.title,
        "command": command_line(sys.argv[1:]),
        "lead": f"{seeds} seed{'s' if seeds > 1 else ''}, mean ± standard deviation in per cent; {config.base_model}, "
        f"{config.method} fine-tuning. Miniature numbers: read their order. The paper's is a column of ranks; its "
        "numbers, of other models and questions, are in docs/paper_numbers.md. A claim holds if the 95 % interval of "
        "every lead it rests on, over seeds and questions, is above 0; it does not hold if one is below 0; else it is "
        "within noise, and a tie is no lead.",
        "config": config.model_dump(),
        "tables": [measure(table, results_by_model, config.seed) for table in planned.tables],
        "minutes": [asdict(each) for each in spent],
    }


def command_line(arguments: Sequence[str]) -> str:
    """The command that tables were made by, but for options that say where something lies."""
    kept: list[str] = []
    is_folder = False
    for word in arguments:
        is_folder = word.split("=")[0] in FOLDERS if word.startswith("--") else is_folder
        kept += [] if is_folder else [word]
    return shlex.join(["python", "-m", "reflectune.examples.miniature.papers_tables", *kept])


def answer(config: TablesConfig, answering: Answering) -> tuple[Results, Spent]:
    """Take the questions through all points of one model, those that are not finished."""
    is_main = launch_state().is_main_process
    reading = config.reading(answering.world, answering.index, answering.checkpoint, answering.plain)
    dataset = Dataset(answering.world)
    questions = select(dataset, config.splits, config.limit, config.seed)
    metric = config.scored_by(str(answering.world))
    check_scorable(questions, metric)
    measure = Measure(metric, config.open_bem(config.device))
    folder = Path(config.output, "answers", f"{answering.model.replace(' ', '_')}-{answering.seed}")
    runner = GridRunner(reading, dataset, config.paper, config.seed)
    tuned_plainly: list[ModelRole] = ["plain_model"] if answering.plain else []
    roles: list[ModelRole] = ["model", "base_model", *tuned_plainly]
    used = reading.as_used(asdict(reading))
    key = {
        "settings": {name: str(value) for name, value in used.items() if name not in ELSEWHERE},
        "points": [(point.name, repr(point.run_key), point.ranking) for point in answering.points],
        "dataset": dataset.fingerprint,
        "metric": [measure.metric, measure.bem.fingerprint if measure.bem is not None else None],
        "index": file_fingerprint(answering.index / "manifest.json"),
        "models": runner.fingerprints(roles, answering.points),
    }
    start, name = time.monotonic(), f"answering, {answering.model}, seed {answering.seed}"
    if is_main:
        about = f"about {answering.estimate:g} min, {len(questions)} questions, {len(answering.points)} points"
        print(f"\n== {name}: {about}", flush=True)
    grid_run = GridRun(
        answering.points,
        measure,
        lambda question, traces, measure: [],
        dataset.root,
        folder / "questions.jsonl",
        fingerprint(key),
        dataset.fingerprint,
        config.batch_questions,
    )
    grid_results = run_grid(grid_run, questions, runner)
    minutes = _minutes(folder / "minutes.json", (time.monotonic() - start) / 60 if grid_results.answered else 0.0)
    if is_main:
        stats = grid_results.stats
        print(f"== {name}: {minutes:.1f} min, {stats.done} forward passes made, {stats.saved} saved", flush=True)
    del runner
    gc.collect()
    return grid_results.results, Spent(name, answering.estimate, round(minutes, 2), reused=not grid_results.answered)


def _minutes(mark: Path, new: float) -> float:
    """The minutes of all runs, with this one's; the first process keeps the sum."""
    before = float(read_json(mark, "the minutes of an earlier run")["minutes"]) if mark.exists() else 0.0
    if launch_state().is_main_process:
        write_json(mark, {"minutes": before + new})
    return before + new


def describe(config: TablesConfig) -> str:
    """What a run would do, for `--dry_run`."""
    find_device(config.device)
    return "\n".join(_describe(PLANS[config.paper](config)))


def _describe(planned: Plan) -> list[str]:
    estimates = [*(stage.estimate for stage in planned.stages), *(stage.estimate for stage in planned.answering)]
    return [
        f"{planned.title}: about {sum(estimates):.0f} min on two idle cores if nothing is finished",
        *stages.describe(planned.stages),
        *(
            f"  answering with {answering.model}, seed {answering.seed}: about {answering.estimate:g} min"
            for answering in planned.answering
        ),
    ]


def show(record: dict[str, Any]) -> str:
    """The tables as printed."""
    return markdown(record)
