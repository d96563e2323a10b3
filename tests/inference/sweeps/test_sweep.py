"""A sweep from its config to its files, with tiny random models."""

import json
import shutil
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from reflectune.core.config import find_problems
from reflectune.core.durable import RowLog, read_rows, write_rows
from reflectune.core.errors import UserError
from reflectune.core.rejected import ROWS_LEFT_OUT
from reflectune.formats.dataset import Dataset
from reflectune.inference.pipelines.mr2ag import ChoiceSettings
from reflectune.inference.pipelines.registry import find_recipe
from reflectune.inference.running.loading import saved_weights
from reflectune.inference.running.planning import select
from reflectune.inference.scoring.scores import TraceScorer
from reflectune.inference.sweep import summary
from reflectune.inference.sweep import sweep as sweep_command
from reflectune.inference.sweeps import run as sweep_run
from reflectune.inference.sweeps.config import SweepConfig
from reflectune.inference.sweeps.judging import CLOSED_BOOK, REFLECTION, RELIABILITY_CHECKS
from reflectune.inference.sweeps.stored import fit_exponents
from reflectune.inference.trace import to_row
from reflectune.inference.trace_files.layout import write_traces
from reflectune.models.schemes.calibration import Calibration, GateScaling
from reflectune.models.schemes.registry import load_scheme
from tests.inference.families import ONE_FAMILY


@pytest.fixture
def sweep(world, tmp_path, make):
    def build(models, pipeline: str, grid: dict, **more) -> SweepConfig:
        keys = {"output": str(tmp_path / "out"), "batch_questions": 2, "max_reply_tokens": 6, **more}
        config = SweepConfig(pipeline=pipeline, grid=grid, **make.keys(world, models, **keys))
        assert config.problems() == []
        return config

    return build


@ONE_FAMILY
def test_mmkb_rag_ends_in_scores_and_plots(sweep, prompted) -> None:
    config = sweep(prompted, "mmkb_rag", {"gamma": [0.0, 0.5, 1.0], "k": ["auto", 1, 3], "mct": ["none", "merge"]})
    record = sweep_run.run(config)
    output = Path(config.output)
    assert json.loads((output / "sweep.json").read_text()) == json.loads(json.dumps(record))
    names = [point["name"] for point in record["points"]]
    assert names == ["start", "gamma=0.0", "gamma=1.0", "k=1", "k=3", "mct=none", "mct=merge"]
    by_name = dict(zip(names, record["points"], strict=True))
    assert by_name["gamma=0.0"]["retrieval_rate"] == 1.0
    assert by_name["gamma=1.0"]["retrieval_rate"] == by_name["gamma=1.0"]["passages_read"] == 0.0
    assert by_name["start"]["accuracy"]["n"] == 4
    assert record["resampled"] == "3 entities"  # the visual question is in no interval of a score
    assert record["start"] == {"gamma": 0.5, "k": "auto", "mct": "filter"}
    passes = record["forward_passes"]
    assert passes["asked"] == passes["made"] + passes["saved"]
    assert passes["saved"] > 0
    drawn = {path.stem for path in output.glob("*.svg")}
    assert {"gamma", "k", "mct", "reliability_relevance"} <= drawn
    for path in output.glob("*.svg"):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
    assert "served from memory" in (output / "sweep.html").read_text()
    assert "forward passes" in summary(record)


@ONE_FAMILY
def test_mr2ag_has_rankings_and_both_reliability_diagrams(sweep, checkpoints) -> None:
    config = sweep(checkpoints, "mr2ag", {"ranking": ["random", "full"], "top_n": [1, 3]}, gamma=0.0)
    record = sweep_run.run(config)
    assert [point["name"] for point in record["points"]] == ["start", "ranking=random", "top_n=1", "top_n=3"]
    assert record["points"][2]["passages_read"] == 2.0
    drawn = {path.stem for path in Path(config.output).glob("*.svg")}
    assert drawn == {"ranking", "top_n", "reliability_gate", "reliability_relevance"}


@ONE_FAMILY
def test_a_cut_off_sweep_resumes_to_the_same_scores(sweep, checkpoints) -> None:
    config = sweep(checkpoints, "mr2ag", {"gamma": [0.0, 1.0]})
    straight = sweep_run.run(config)
    log = config.log()
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:3]) + lines[3][:20])  # the first batch, and a part of a row
    assert sweep_run.run(config) == straight
    assert sorted(row["id"] for row in read_rows(log)) == [f"q{i:03d}" for i in range(5)]


@ONE_FAMILY
def test_a_question_whose_image_was_damaged_or_that_was_edited_is_asked_again(
    sweep, checkpoints, world, monkeypatch
) -> None:
    config = sweep(checkpoints, "mr2ag", {"gamma": [0.0, 1.0]}, on_error="skip")
    image = world / "images/e2.png"
    content = image.read_bytes()
    try:
        image.write_bytes(b"")
        assert sweep_command(config) == ROWS_LEFT_OUT
    finally:
        image.write_bytes(content)
    assert [row["id"] for row in read_rows(config.log()) if "error" in row] == ["q002"]
    assert not sweep_command(config)
    rows = {row["id"]: row for row in read_rows(config.log())}
    assert not [row["id"] for row in rows.values() if "error" in row]
    asked = [replace(q, text="Who?") if q.id == "q001" else q for q in select(Dataset(world), config.splits, None, 0)]
    monkeypatch.setattr(sweep_run, "select", lambda *arguments: asked)
    sweep_run.run(config)
    assert [row["id"] for row in read_rows(config.log()) if row != rows[row["id"]]] == ["q001"]


@ONE_FAMILY
def test_splits_that_the_calibration_was_fitted_on_are_refused(sweep, checkpoints, world, tmp_path) -> None:
    tuned = tmp_path / "model"
    shutil.copytree(checkpoints.tuned, tuned)
    config = sweep(SimpleNamespace(tuned=str(tuned), base=checkpoints.base), "mr2ag", {"gamma": [0.0]}, calibrated=True)
    gates = {"retrieve": GateScaling(1.0, 0.0, 0.0)}
    fitted_on = (Dataset(world).fingerprint, config.splits[:1])
    Calibration(gates, saved_weights(tuned), *fitted_on).save(tuned, load_scheme(tuned))
    for command in (sweep_run.describe, sweep_run.run):
        with pytest.raises(UserError, match=f"was calibrated on {config.splits[0]}; evaluate on other splits"):
            command(config)


@ONE_FAMILY
def test_an_untuned_model_is_told_before_a_model_is_loaded(sweep, checkpoints, monkeypatch) -> None:
    tuned = sweep(checkpoints, "mr2ag", {"gamma": [0.0]})
    monkeypatch.setattr(sweep_run, "GridRunner", None)
    for command in (sweep_run.describe, sweep_run.run):
        with pytest.raises(UserError, match=f"`model`: {checkpoints.base} is not fine-tuned"):
            command(tuned.model_copy(update={"model": checkpoints.base}))


@ONE_FAMILY
def test_another_grid_does_not_mix(sweep, checkpoints) -> None:
    sweep_run.run(sweep(checkpoints, "mr2ag", {"gamma": [0.0]}))
    with pytest.raises(UserError, match="other settings"):
        sweep_run.run(sweep(checkpoints, "mr2ag", {"gamma": [0.1]}))


@pytest.mark.slow
@ONE_FAMILY  # the questions are divided in the same way for every family
def test_two_processes_make_the_sweep_of_one(sweep, checkpoints, tmp_path, start_program, start_launch) -> None:
    made = []
    for processes in (1, 2):
        config = sweep(checkpoints, "mr2ag", {"top_n": [1, 3]}, gamma=0.0, output=str(tmp_path / f"out{processes}"))
        names = ("dataset", "index", "model", "output", "gamma", "max_new_tokens", "batch_questions", "device")
        flags = [word for name in names for word in (f"--{name}", str(getattr(config, name)))]
        flags += ["--grid", json.dumps(config.grid)]
        if processes == 1:
            program = start_program(["-m", "reflectune", "sweep", *flags])
        else:
            program = start_launch("inference/sweep.py", flags)
        assert program.wait(timeout=580) == 0, program.stderr[-3000:]
        assert not Path(config.output, "parts").exists()
        record = json.loads(Path(config.output, "sweep.json").read_text())
        made.append((record["points"], list(read_rows(config.log()))))
    assert made[0] == made[1]
    assert len(made[0][1]) == 5


def test_problems_are_told_before_anything_is_loaded(world) -> None:
    issues = find_problems(SweepConfig, {"dataset": str(world), "grid": {"gamma": [2.0]}})
    assert any("`gamma` must be between 0 and 1" in issue for issue in issues)
    assert [issue for issue in issues if "needed" in issue]


@pytest.mark.parametrize("pipeline", ["mr2ag", "mmkb_rag"])
def test_every_setting_that_decides_an_answer_can_be_varied_and_no_other(pipeline) -> None:
    decide = {*find_recipe(pipeline).settings.model_fields, "entries", "title_weight", "summary_share", "ranked_scores"}
    varied = set(SweepConfig(pipeline=pipeline).may_vary())
    assert varied - {"relevance", "ranking"} == decide
    hidden = SweepConfig.unread_keys({"pipeline": pipeline})
    assert not hidden & varied
    assert ("srt" in hidden, "exponents" in hidden) == (pipeline == "mr2ag", pipeline == "mmkb_rag")


def test_a_setting_of_another_pipeline_is_refused(world) -> None:
    config = SweepConfig(dataset=str(world), pipeline="mr2ag", grid={"mct": ["merge"], "gamma": [0.1]})
    (issue_of_grid,) = [issue for issue in config.problems() if issue.startswith("`grid`")]
    assert "mct can't be varied for mr2ag" in issue_of_grid


def test_ret_is_held_against_what_its_labels_call_wrong(make) -> None:
    """By VQA's accuracy an answer is worth a part of a point: half of it is right, as in `derive_labels`."""
    question = replace(make.question(0), answers=("oak",) * 6 + ("fir",) * 2 + ("elm",) * 2)
    reflected = make.trace(0, "reflection", "", gate=0.9)
    for answer, wrong in (("oak", False), ("fir", False), ("ash", True)):
        traces = {REFLECTION: reflected, CLOSED_BOOK: make.trace(0, "closed_book", answer)}
        judgements = RELIABILITY_CHECKS["mmkb_rag"].judge(question, traces, TraceScorer("vqa"))
        assert [judgement.true for judgement in judgements] == [wrong]
    assert TraceScorer("vqa").worth("fir", question) == 0.6


@pytest.fixture
def stored(make, tmp_path) -> SweepConfig:
    """Return a sweep over stored traces of four questions: S_rel prefers the right candidate, S_ans one of two wrong.

    The wrong ones of the first two questions have equal answers. Each question is about an entity of its own.
    """
    asked = [make.question(i, answer="oak", entity_ids=(f"e{i}",)) for i in range(4)]
    make.data_set(tmp_path / "data", [make.entry(i) for i in range(4)], asked)
    with RowLog(tmp_path / "mr2ag_unjudged.jsonl", "f") as log:
        for number in range(4):
            wrong = [make.read(rel=0.55, answer=("fir", "elm")[number // 2 * i], ans=0.9 - 0.1 * i) for i in range(2)]
            passages = (make.read(rel=0.9 - 0.05 * number, answer="oak", ans=0.7), *wrong)
            trace = make.trace(number, answer="", retrieved=True, gate=0.9, hits=(make.hit("e1", 1),))
            log.append(trace.question_id, to_row(replace(trace, passages=passages)))
    where = {"dataset": str(tmp_path / "data"), "output": str(tmp_path / "out"), "splits": ["val_unseen_entity"]}
    return SweepConfig(traces=str(log.path), fit=True, limit=1, **where)


def test_stored_traces_are_decided_again_and_exponents_fitted_without_a_model(stored) -> None:
    grid = {"exponents": [[1, 1, 1], [0, 0, 1]], "votes": [True], "relevance": [False], "ranking": ["rel"]}
    config = stored.model_copy(update={"grid": grid, "index": "no/such/index"})
    assert config.problems() == []
    record, fitted = sweep_run.run(config), Path(config.output, "fitted.jsonl")
    decided, table = list(read_rows(fitted)), Path(config.traces).with_suffix(".parquet")
    write_traces(table, "f", read_rows(config.traces))
    assert sweep_run.run(config.model_copy(update={"traces": str(table)})) == {**record, "model": str(table)}
    assert list(read_rows(fitted)) == decided
    right = {point["name"]: point["accuracy"]["value"] for point in record["points"]}
    by_ans = ("exponents=[0.0, 0.0, 1.0]", "relevance=off")
    assert right == {"start": 1.0, "votes=on": 0.5, **dict.fromkeys(by_ans, 0.0), "ranking=rel": 1.0, "fitted": 1.0}
    ret, rel, ans = record["fitted_exponents"]
    assert rel == 1.0 > ret > ans == 0.0  # S_ret, equal for all, takes the exponent nearest to 1 before scaling
    assert sweep_run.run(config.model_copy(update={"votes": True}))["fitted_exponents"] == [1.0, 1.0 / ret, 0.0]
    assert "over start" in summary(record)
    assert {point["name"]: point["over_start"] and point["over_start"]["value"] for point in record["points"]} == {
        name: None if name == "start" else value - 1.0 for name, value in right.items()
    }
    assert record["forward_passes"]["made"] == 0
    assert Path(config.output, "sweep.html").is_file()


def test_stored_traces_that_cannot_be_decided_again_are_refused(stored, make) -> None:
    refused = [{"grid": {"gamma": [0.1]}}, {"traces": ""}, {"pipeline": "mmkb_rag"}]
    problems = [" ".join(stored.model_copy(update=changes).problems()) for changes in refused]
    expected = ("gamma can't be varied", "`fit` needs `traces`", "can be decided again for mr2ag alone")
    assert all(words in problem for words, problem in zip(expected, problems, strict=True))
    with RowLog(Path(stored.traces).with_name("empty.jsonl"), "f") as empty, pytest.raises(UserError, match="no trace"):
        sweep_run.run(stored.model_copy(update={"traces": str(empty.path)}))
    of_other_words = [{**row, "question_hash": "of other words"} for row in read_rows(stored.traces)]
    write_rows(edited := Path(stored.traces).with_name("edited.jsonl"), "f", of_other_words)
    with pytest.raises(UserError, match=r"4 questions were edited after .*, the first is q000; run evaluate again"):
        sweep_run.run(stored.model_copy(update={"traces": str(edited)}))
    answered = {"q000": make.trace(0, passages=(make.read(answer="oak", ans=0.5),), hits=(make.hit("e1", 1),))}
    with pytest.raises(UserError, match="a right and a wrong candidate"):
        fit_exponents(ChoiceSettings(), [make.question(0)], answered, TraceScorer("infoseek"), seed=0)


def test_a_question_is_decided_by_exponents_of_other_entities(stored) -> None:
    """Reverse one question's scores: its own exponents would make it right, those of the others make it wrong."""
    rows = list(read_rows(stored.traces))
    for passage in rows[3]["passages"]:
        passage["s_rel"], passage["s_irr"] = passage["s_irr"], passage["s_rel"]
    path = Path(stored.traces).with_name("reversed.jsonl")
    write_rows(path, "f", rows)
    record = sweep_run.run(stored.model_copy(update={"traces": str(path)}))
    assert record["points"][-1]["accuracy"]["value"] == 0.75
    decided = {row["id"]: row["answer"] for row in read_rows(Path(stored.output, "fitted.jsonl"))}
    assert [decided[f"q{number:03d}"] == "oak" for number in range(4)] == [True, True, True, False]
    scored = json.loads(Path(stored.output, "scored.json").read_text())
    assert scored["correct"] == {"mr2ag_fitted": [1.0, 1.0, 1.0, 0.0]}
