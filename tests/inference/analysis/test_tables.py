"""The tables: their plans fit the entry points, and a tiny one runs from finished models to Markdown."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from reflectune.core.durable import write_json
from reflectune.data_builders.build_world import WorldConfig
from reflectune.data_builders.derive_config import DeriveConfig
from reflectune.data_builders.mr2ag_config import BuildConfig
from reflectune.data_builders.probing.config import ProbeConfig
from reflectune.inference.analysis import tables_mmkb, tables_mr2ag, tables_run
from reflectune.inference.analysis.mmkb_stages import MODEL, STRING, srt_labels, steps
from reflectune.inference.analysis.tables_config import TablesConfig
from reflectune.retrieval.build_index import IndexConfig
from reflectune.train.config import SftConfig

KINDS = {
    "data_builders.build_world": WorldConfig,
    "retrieval.build_index": IndexConfig,
    "data_builders.build_mr2ag": BuildConfig,
    "data_builders.probe": ProbeConfig,
    "data_builders.derive_labels": DeriveConfig,
    "train.sft": SftConfig,
}
MMKB = TablesConfig(paper="mmkb_rag", output="out", sizes=[1.0, 0.1])


@pytest.mark.parametrize("plan", [tables_mr2ag.plan(TablesConfig(output="out")), tables_mmkb.plan(MMKB)])
def test_every_stage_sets_keys_that_its_entry_point_has(plan) -> None:
    for stage in plan.stages:
        known = {item.name for item in dataclasses.fields(KINDS[stage.module])}
        assert set(stage.settings) <= known, stage.name


@pytest.mark.parametrize("plan", [tables_mr2ag.plan(TablesConfig(output="out")), tables_mmkb.plan(MMKB)])
def test_every_row_and_claim_is_answered_by_every_seed(plan) -> None:
    answered = {(own.model, own.seed): {point.name for point in own.points} for own in plan.answering}
    cells = {row.cell for table in plan.tables for row in table.rows}
    cells |= {cell for table in plan.tables for claim in table.claims for own in claim.sums for cell in own}
    for model, point in cells:
        for seed in (0, 1, 2):
            assert point in answered[model, seed]


@pytest.mark.parametrize("plan", [tables_mr2ag.plan(TablesConfig(output="out")), tables_mmkb.plan(MMKB)])
def test_every_sum_of_a_claim_compares_equal_weights(plan) -> None:
    for table in plan.tables:
        for claim in table.claims:
            assert all(sum(own.values()) == 0 for own in claim.sums), claim.text


def test_stages_come_before_what_needs_them_and_fill_folders_of_their_own() -> None:
    stages = tables_mmkb.plan(MMKB).stages
    folders = [stage.folder for stage in stages]
    assert len(set(folders)) == len(folders)
    for number, stage in enumerate(stages):
        if stage.module == "train.sft":
            assert stage.settings["train_data"] in folders[:number]


def test_finished_runs_are_not_made_again(tmp_path) -> None:
    config = TablesConfig(output="out", runs=[str(tmp_path / "first")])
    plan = tables_mr2ag.plan(config)
    assert {stage.folder.parent.name for stage in plan.stages} == {"seed-1", "seed-2"}
    assert plan.answering[0].checkpoint == tmp_path / "first" / "checkpoint"
    assert config.problems() == [f"`runs`: {tmp_path / 'first'} has no finished checkpoint (checkpoint/scheme.json)"]


def test_sizes_are_shares_of_the_own_labels(tmp_path) -> None:
    config = dataclasses.replace(MMKB, output=str(tmp_path), least_steps=30)
    stages = {stage.name: stage for stage in tables_mmkb.plan(config).stages}
    own, tenth = (stages[f"labels: {name}"] for name in (MODEL, "own labels 10%"))
    write_json(own.folder / "statistics.json", {"train": {"examples": 90, "taken": {"srt": {"examples": 200}}}})
    write_json(tenth.folder / "statistics.json", {"train": {"examples": 18, "taken": {"srt": {"examples": 20}}}})
    assert srt_labels(config, 0.1) == 20
    assert stages["labels: own labels 10%"].settings["srt_limit"]() == 20
    assert stages[f"labels: {STRING}"].settings["srt_limit"]() == 200
    assert steps(config, "own labels 10%") == 30
    assert steps(dataclasses.replace(config, epochs=100.0), "own labels 10%") == 300


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"sizes": [0.5, 1.0]}, "`sizes`"),
        ({"equal_at": 0.3}, "`equal_at`"),
        ({"k": [50]}, "`k`"),
        ({"seeds": [1, 1]}, "`seeds`"),
        ({"index": "somewhere"}, "`world`"),
        ({"output": ""}, "`output`"),
    ],
)
def test_problems_name_their_key(settings, told) -> None:
    (issue,) = dataclasses.replace(MMKB, **settings).problems()
    assert issue.startswith(told)


@pytest.mark.slow
def test_mr2ags_tables_from_finished_runs(small_world, encoder, checkpoints, tmp_path) -> None:
    run = tmp_path / "run"
    shutil.copytree(small_world, run / "world")
    shutil.copytree(small_world / "index", run / "index")
    shutil.copytree(checkpoints.tuned, run / "checkpoint")
    config = TablesConfig(
        base_model=checkpoints.base,
        encoder=encoder,
        seeds=[0, 1],
        runs=[str(run)] * 2,
        output=str(tmp_path / "out"),
        max_new_tokens=4,
    )
    assert config.problems() == []
    record = tables_run.run(config)
    assert [len(table["rows"]) for table in record["tables"]] == [6, 8, 4, 4]
    assert all(claim["verdict"] for table in record["tables"] for claim in table["claims"])
    text = Path(config.output, "tables.md").read_text()
    assert text == tables_run.show(json.loads(Path(config.output, "tables.json").read_text()))
    assert "| Relevance-Reflection finds the evidence | **" in text
    again = tables_run.run(config)
    assert again["tables"] == record["tables"]
    assert all(stage["reused"] for stage in again["minutes"])
