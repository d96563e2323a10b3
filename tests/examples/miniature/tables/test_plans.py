"""The plans of the tables: stages fit their commands, and every row and claim is answered."""

from pathlib import Path

import pytest

from reflectune.core.config import find_problems
from reflectune.core.durable import write_json
from reflectune.data_builders.mmkb.config import DeriveConfig
from reflectune.data_builders.mr2ag.config import BuildConfig
from reflectune.data_builders.mr2ag.plain_config import PlainConfig
from reflectune.data_builders.probing.config import ProbeConfig
from reflectune.examples.miniature.build_world import WorldConfig
from reflectune.examples.miniature.tables import mmkb as tables_mmkb
from reflectune.examples.miniature.tables import mr2ag as tables_mr2ag
from reflectune.examples.miniature.tables.claims import Claim, PaperTable, TableRow, ahead, measure
from reflectune.examples.miniature.tables.config import TablesConfig
from reflectune.examples.miniature.tables.layout import claims
from reflectune.examples.miniature.tables.mmkb_stages import MODEL, STRING, srt_labels, steps
from reflectune.examples.miniature.tables.mr2ag import tuning
from reflectune.inference.scoring.evaluation import baselines
from reflectune.inference.scoring.scores import TraceScorer
from reflectune.inference.sweeps.outcomes import GridOutcomes, PointOutcome, to_row
from reflectune.retrieval.build_index import IndexConfig
from reflectune.train.settings.sft import SftConfig

KINDS = {
    "examples.miniature.build_world": WorldConfig,
    "retrieval.build_index": IndexConfig,
    "data_builders.build_mr2ag": BuildConfig,
    "data_builders.build_plain": PlainConfig,
    "data_builders.probe": ProbeConfig,
    "data_builders.derive_labels": DeriveConfig,
    "train.sft": SftConfig,
}
MMKB = TablesConfig(paper="mmkb_rag", output="out")
PLANS = [tables_mr2ag.plan(TablesConfig(output="out")), tables_mmkb.plan(MMKB)]
each_plan = pytest.mark.parametrize("plan", PLANS)


@each_plan
def test_every_stage_sets_keys_that_its_entry_point_has(plan) -> None:
    for stage in plan.stages:
        assert set(stage.settings) <= set(KINDS[stage.module].model_fields), stage.name


@each_plan
def test_every_row_and_claim_is_answered_by_every_seed(plan) -> None:
    answered = {(each.model, each.seed): {point.name for point in each.points} for each in plan.answering}
    sums = [weights for table in plan.tables for claim in table.claims for weights in claim.sums]
    assert all(sum(weights.values()) == 0 for weights in sums)  # as much is added as taken away
    cells = {row.cell for table in plan.tables for row in table.rows}.union(*sums)
    for model, point in cells:
        for seed in (0, 1, 2):
            assert point in answered[model, seed]


def test_stages_come_before_what_needs_them_and_fill_folders_of_their_own() -> None:
    stages = tables_mmkb.plan(MMKB).stages
    folders = [stage.folder for stage in stages]
    assert len(set(folders)) == len(folders)
    for number, stage in enumerate(stages):
        if stage.module == "train.sft":
            assert stage.settings["train_data"] in folders[:number]


def test_the_baselines_model_is_tuned_on_the_same_questions_and_filter() -> None:
    config = TablesConfig(output="out", top_n=3, passages=2, reranker="embedding", reranker_model="miniature/text")
    plan = tables_mr2ag.plan(config)
    folders = [stage.folder for stage in plan.stages]
    data = [stage for stage in plan.stages if stage.module == "data_builders.build_plain"]
    assert len(data) == 3
    for stage, answering in zip(data, plan.answering, strict=True):
        assert {stage.settings[name] for name in ("dataset", "index", "reflection")} <= set(folders)
        assert (stage.settings["dataset"], stage.settings["index"]) == (answering.world, answering.index)
        reading = config.reading(answering.world, answering.index, answering.checkpoint, answering.plain)
        for name in ("top_n", "passages", "reranker", "reranker_model"):
            assert stage.settings[name] == getattr(reading, name)
        assert answering.plain in folders
        assert reading.plain_model == str(answering.plain)


def test_finished_runs_are_not_made_again(tmp_path) -> None:
    run = tmp_path / "first"
    config = TablesConfig(output="out", runs=[str(run)])
    assert config.problems() == [f"`runs`: {run} has no finished checkpoint (checkpoint/scheme.json)"]
    for name in ("checkpoint", "plain_checkpoint"):
        write_json(run / name / "scheme.json", {})
    plan = tables_mr2ag.plan(config)
    assert config.problems() == []
    assert {stage.folder.parent.name for stage in plan.stages} == {"seed-1", "seed-2"}
    assert (plan.answering[0].checkpoint, plan.answering[0].plain) == (run / "checkpoint", run / "plain_checkpoint")


def test_a_run_without_the_baselines_model_gets_one_elsewhere(tmp_path) -> None:
    run = tmp_path / "first"
    config = TablesConfig(output="out", seeds=[7], runs=[str(run)])
    write_json(run / "checkpoint" / "scheme.json", {})
    (issue,) = config.problems()
    assert "neither a plain_checkpoint nor the data to train one on" in issue
    write_json(run / "reflection" / "reflection.json", {})
    assert config.problems() == []
    plan = tables_mr2ag.plan(config)
    assert [stage.folder for stage in plan.stages] == [Path("out/seed-7/plain"), Path("out/seed-7/plain_checkpoint")]
    assert plan.stages[0].settings["reflection"] == run / "reflection"
    assert plan.answering[0].plain == Path("out/seed-7/plain_checkpoint")


def test_every_claim_of_a_lead_is_over_each_baseline_of_evaluate_at_that_depth() -> None:
    config = TablesConfig(output="out", top_n=4)
    settings = {point.name: point.settings for point in tables_mr2ag.points(config)}
    for count in (1, 3, 4, 5, 10):
        cells = [point for _, point in tables_mr2ag.baselines(count)]
        read = {(settings[name]["pipeline"], settings[name].get("top_n")) for name in cells}
        expected = set()
        for name in baselines():
            plain = name.replace("naive_rag_article_tuned", "naive_rag_articles_tuned")
            if name in ("naive_rag_article", "naive_rag_article_tuned"):  # one entry whole, at whatever depth
                expected.add((plain if name.endswith("_tuned") else "naive_rag_articles", 1))
            else:
                expected.add((name, None if name.startswith("closed_book") else count))
        assert read == expected
    first, _, sixth, _ = tables_mr2ag.tables(config)
    (claim,) = [claim for claim in first.claims if "same retrieval" in claim.text]
    behind = {cell for weights in claim.sums for cell, weight in weights.items() if weight < 0}
    assert behind == set(tables_mr2ag.baselines(4))
    texts = [f"At {count}, mR²AG is ahead of the best baseline" for count in (1, 3, 4, 5, 10)]
    assert [claim.text for claim in sixth.claims][:5] == texts
    assert len(sixth.rows) == 5 * 7


def test_the_best_baseline_decides_and_a_tie_with_it_is_no_lead(make) -> None:
    """mR²AG beats the weak baseline by far and ties with the strong one."""
    questions = [make.question(i, ("val_unseen_question", "val_unseen_entity")[i % 2]) for i in range(40)]
    right = {"start": 20, "weak": 4, "strong": 20}
    rows = {
        q.id: to_row({name: PointOutcome(float(i < right[name]), True, 1, "") for name in right}, [])
        for i, q in enumerate(questions)
    }
    claim = Claim("ahead of the best", ahead(("m", "start"), ("m", "weak"), ("m", "strong")))
    table = PaperTable("T", [TableRow("mR²AG", ("m", "start"))], [claim])
    measured = measure(table, {"m": [GridOutcomes(questions, rows, TraceScorer("infoseek"))]}, seed=0)
    assert measured["claims"][0]["verdict"] == "within noise"
    (line,) = [line for line in claims(measured["claims"]) if line.startswith("| ahead of the best |")]
    assert "+0.0 (+0.0 to +0.0), the smallest of 2: start over strong" in line


def test_the_caption_says_how_long_both_were_tuned(tmp_path) -> None:
    run = tmp_path / "run"
    for name, step, epoch, tokens in (("checkpoint", 1472, 8.0, 6_120_000), ("plain_checkpoint", 184, 1.0, 0)):
        record = {"global_step": step, "epoch": epoch, "num_input_tokens_seen": tokens}
        write_json(run / name / "trainer_state.json", record)
        write_json(run / name / "scheme.json", {})
    config = TablesConfig(output="out", seeds=[0, 1], runs=[str(run)] * 2, reranker="words")
    note = tables_mr2ag.plan(config).tables[0].note
    assert callable(note)
    caption = note()
    assert "mR²AG for 1,472 steps, 8.0 passes over the questions, 6.1 million tokens;" in caption
    assert "for 184 steps, 1.0 passes over the questions." in caption  # this training didn't count its tokens
    for words in ("same instruction", "same index", "tuned on the same questions", "a reranker (words)"):
        assert words in caption
    assert tuning([tmp_path]) == "a number of steps that is not recorded"


def test_sizes_are_shares_of_the_own_labels(tmp_path) -> None:
    config = MMKB.model_copy(update={"output": str(tmp_path), "min_steps": 30})
    stages = {stage.name: stage for stage in tables_mmkb.plan(config).stages}
    whole, tenth = (stages[f"labels: {name}"] for name in (MODEL, "own labels 10%"))
    write_json(whole.folder / "statistics.json", {"train": {"examples": 90, "taken": {"srt": {"examples": 200}}}})
    write_json(tenth.folder / "statistics.json", {"train": {"examples": 18, "taken": {"srt": {"examples": 20}}}})
    assert srt_labels(config, 0.1) == 20
    assert stages["labels: own labels 10%"].settings["srt_limit"]() == 20
    assert stages[f"labels: {STRING}"].settings["srt_limit"]() == 200
    assert steps(config, "own labels 10%") == 30
    assert steps(config.model_copy(update={"epochs": 100.0}), "own labels 10%") == 300


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"equal_at": 0.3}, "`equal_at`"),
        ({"seeds": [1, 1]}, "`seeds`"),
        ({"output": ""}, "`output`"),
        ({"splits": ["val"]}, "`splits`: a world has no split val"),
        ({"splits": []}, "`splits` is empty"),
    ],
)
def test_problems_name_their_key(settings, key) -> None:
    (issue,) = find_problems(TablesConfig, {**MMKB.model_dump(), **settings})
    assert issue.startswith(key)
