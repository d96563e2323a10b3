"""A tables command from its config to `tables.json` and `tables.md`: build, answer, compare, and time each stage."""

from __future__ import annotations

import gc
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from reflectune.core.durable import read_json, write_atomically, write_json
from reflectune.core.hashing import file_fingerprint, fingerprint
from reflectune.data_builders.dataset import Dataset
from reflectune.inference.analysis import stages, tables_mmkb, tables_mr2ag
from reflectune.inference.analysis.claims import measure
from reflectune.inference.analysis.desk import PointDesk
from reflectune.inference.analysis.layout import markdown
from reflectune.inference.analysis.outcomes import Results
from reflectune.inference.analysis.plan import Answering, Plan
from reflectune.inference.analysis.stages import Spent
from reflectune.inference.analysis.tables_config import TablesConfig
from reflectune.inference.analysis.walk import Walk, walk
from reflectune.inference.experiment import select
from reflectune.inference.scores import Measure

PLANS = {"mr2ag": tables_mr2ag.plan, "mmkb_rag": tables_mmkb.plan}


def run(config: TablesConfig) -> dict[str, Any]:
    """Do what isn't done, then write `tables.json` and `tables.md` into the config's output folder.

    Returns:
        The content of tables.json.

    Raises:
        UserError: A stage failed, or the folder was filled with other settings.
    """
    planned = PLANS[config.paper](config)
    print("\n".join(_describe(planned)), flush=True)
    spent = stages.run_stages(planned.stages)
    found: dict[str, list[Results]] = {}
    for own in planned.answering:
        results, minutes = answer(config, own)
        found.setdefault(own.model, []).append(results)
        spent.append(minutes)
    seeds = len(config.seeds)
    record = {
        "title": planned.title,
        "lead": f"{seeds} seed{'s' if seeds > 1 else ''}, mean ± standard deviation in per cent; {config.base_model}, "
        f"{config.method} fine-tuning. Miniature numbers: read their order. The paper's is a column of ranks; its "
        "numbers, of other models and questions, are in docs/paper_numbers.md. A claim holds if the 95 % interval of "
        "every lead it rests on, over seeds and questions, is above 0; it does not hold if one is below 0; else it is "
        "within noise, and a tie is no lead.",
        "config": asdict(config),
        "tables": [measure(table, found, config.seed) for table in planned.tables],
        "minutes": [asdict(each) for each in spent],
    }
    write_json(Path(config.output, "tables.json"), record)
    write_atomically(Path(config.output, "tables.md"), markdown(record))
    return record


def answer(config: TablesConfig, own: Answering) -> tuple[Results, Spent]:
    """Take the questions through all points of one model, those that are not finished."""
    reading = config.reading(own.world, own.index, own.checkpoint)
    dataset = Dataset(own.world)
    questions = select(dataset, config.splits, config.limit, config.seed)
    measure = Measure(config.scored_by(str(own.world)))
    measure.check(questions)
    measure.bem = config.open_bem(config.device)
    folder = Path(config.output, "answers", f"{own.model.replace(' ', '_')}-{own.seed}")
    desk = PointDesk(reading, dataset, config.paper, config.seed)
    settings = {k: str(v) for k, v in asdict(reading).items() if k not in ("dataset", "index", "model", "device")}
    key = {
        "settings": settings,
        "points": [(point.name, repr(point.run_key), point.ranking) for point in own.points],
        "dataset": dataset.fingerprint,
        "metric": [measure.metric, measure.bem.fingerprint if measure.bem is not None else None],
        "index": file_fingerprint(own.index / "manifest.json"),
        "models": desk.fingerprints(["model", "base_model"]),
    }
    start, name = time.monotonic(), f"answering, {own.model}, seed {own.seed}"
    print(f"\n== {name}: about {own.estimate:g} min, {len(questions)} questions, {len(own.points)} points", flush=True)
    asked = Walk(
        own.points,
        measure,
        lambda question, traces, measure: [],
        dataset.root,
        folder / "questions.jsonl",
        fingerprint(key),
        dataset.fingerprint,
        config.batch_questions,
    )
    found = walk(asked, questions, desk)
    mark = folder / "minutes.json"
    before = float(read_json(mark, "the minutes of an earlier run")["minutes"]) if mark.exists() else 0.0
    minutes = before + ((time.monotonic() - start) / 60 if found.answered else 0.0)
    write_json(mark, {"minutes": minutes})
    ledger = found.ledger
    print(f"== {name}: {minutes:.1f} min, {ledger.done} forward passes made, {ledger.saved} saved", flush=True)
    del desk
    gc.collect()
    return found.results, Spent(name, own.estimate, round(minutes, 2), reused=not found.answered)


def describe(config: TablesConfig) -> str:
    """What a run would do, for `--dry_run`."""
    return "\n".join(_describe(PLANS[config.paper](config)))


def _describe(planned: Plan) -> list[str]:
    estimates = [*(own.estimate for own in planned.stages), *(own.estimate for own in planned.answering)]
    return [
        f"{planned.title}: about {sum(estimates):.0f} min on two idle cores if nothing is finished",
        *stages.describe(planned.stages),
        *(f"  answering with {own.model}, seed {own.seed}: about {own.estimate:g} min" for own in planned.answering),
    ]


def show(record: dict[str, Any]) -> str:
    """The tables as printed."""
    return markdown(json.loads(json.dumps(record)))
