"""lmms-eval's own runner scores the miniature task through our adapter, if `examples/lmms_eval/run.sh` installed it."""

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from reflectune.core.config import find_problems
from reflectune.core.rows import from_row, to_row
from reflectune.core.types import Question
from reflectune.examples.lmms_eval.config import MODES, BenchmarkConfig
from reflectune.examples.lmms_eval.documents import subset, write_documents
from reflectune.examples.lmms_eval.table import read_runs
from reflectune.formats.dataset import Dataset
from reflectune.metrics.official.infoseek import percent_report, score_one
from reflectune.metrics.scoring.registry import answer_metric
from tests.inference.families import ONE_FAMILY

ROOT = Path(__file__).parents[3]
TASK = ROOT / "examples/lmms_eval/task"
CONFIGS = sorted((ROOT / "configs/examples/lmms_eval").glob("*.yaml"))
DOCUMENTS = 6


@pytest.fixture(scope="module")
def python() -> str:
    """An interpreter that has lmms-eval."""
    if importlib.util.find_spec("lmms_eval"):
        return sys.executable
    if path := os.environ.get("LMMS_EVAL_PYTHON"):
        return path
    path = ROOT / ".venv-lmms/bin/python"
    if (ROOT / ".venv-lmms.lock").exists():
        subprocess.run(["bash", "examples/lmms_eval/run.sh", "true"], cwd=ROOT, check=True)  # waits for an installation
    elif not path.is_file():
        pytest.skip("lmms-eval has an environment of its own, which `bash examples/lmms_eval/run.sh true` makes")
    return str(path)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, make) -> Path:
    """Two entries, found for the image of every question of the task."""
    folder = tmp_path_factory.mktemp("world")
    make.data_set(folder, [make.entry(0), make.entry(1)], [], metric="exact_match")
    rankings = []
    for number, row in enumerate(pq.read_table(TASK / "questions.parquet").to_pylist()):
        (folder / f"{number}.jpg").write_bytes(row["image"]["bytes"])
        rankings.append({"image": f"{number}.jpg", "entities": ["e1", "e0"]})
    (folder / "ranked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rankings))
    return folder


def run(python: str, config: Path, runs: list[dict[str, Any]], folder: Path) -> str:
    """Return the output of `lmms-eval --config` with these runs."""
    (folder / "runs.yaml").write_text(yaml.safe_dump(runs))
    settings = {"HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [python, "-m", "lmms_eval", "--config", str(folder / "runs.yaml")]
    ended = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **settings}, capture_output=True, text=True, check=True
    )
    return ended.stdout


@pytest.fixture(scope="module")
def knowledge_tasks(world: Path, make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tasks `infoseek` and `encyclopedic_vqa` over documents of two data sets."""
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "functions.py").write_text((TASK / "functions.py").read_text())
    for name, metric in (("infoseek", "infoseek"), ("encyclopedic_vqa", "evqa_exact")):
        splits = ["val_unseen_question", "val_unseen_entity"] * 3
        asked = [make.question(i, split=split, image=str(world / f"{i}.jpg")) for i, split in enumerate(splits)]
        make.data_set(folder / name, [make.entry(0)], asked, metric=metric, image_root=str(world))
        write_documents(
            Dataset(folder / name), ["val_unseen_question", "val_unseen_entity"], 2, folder / f"{name}.parquet"
        )
        task = (TASK / f"{name}.yaml").read_text()
        (folder / f"{name}.yaml").write_text(task.replace("runs/lmms_eval/", f"{folder}/"))
    return folder


def test_a_subset_is_the_questions_with_the_lowest_hashes(make) -> None:
    questions = [make.question(i) for i in range(20)]
    by_hash = sorted(questions, key=lambda question: hashlib.sha256(question.id.encode()).digest())
    assert subset(questions, 5) == by_hash[:5] == subset(questions[::-1], 5)
    assert subset(questions, 0) == questions


@pytest.mark.parametrize(
    ("task", "answers", "scores"),
    [
        ("infoseek", ["Oak.", "elm", "oak"], {"infoseek": 66.67, "unseen_question": 50.0, "unseen_entity": 100.0}),
        ("infoseek", ["elm", "elm", "oak"], {"infoseek": 0.0, "unseen_question": 0.0, "unseen_entity": 100.0}),
        ("encyclopedic_vqa", ["oak", "an elm", "the oak"], {"evqa_exact": 2 / 3}),
    ],
)
def test_a_task_aggregates_scores_as_the_official_code(make, task, answers, scores) -> None:
    spec = importlib.util.spec_from_file_location("functions", TASK / "functions.py")
    functions = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(functions)
    splits = ["val_unseen_question", "val_unseen_question", "val_unseen_entity"]
    documents = [{"reference": json.dumps(to_row(make.question(i, split=split)))} for i, split in enumerate(splits)]
    process = getattr(functions, task)
    rows = [process(document, [answer]) for document, answer in zip(documents, answers, strict=True)]
    aggregate = {"infoseek": functions.infoseek_score, "evqa_exact": lambda values: sum(values) / len(values)}
    aggregate |= {name: getattr(functions, name) for name in ("unseen_question", "unseen_entity")}
    assert {name: aggregate[name]([row[name] for row in rows]) for name in rows[0]} == pytest.approx(scores)


@pytest.fixture(scope="module")
def runs(python, world, checkpoints, knowledge_tasks, tmp_path_factory) -> tuple[Path, str]:
    """The folder of all runs of lmms-eval here, and what it printed."""
    folder = tmp_path_factory.mktemp("lmms")
    config = folder / "config.yaml"
    keys = {"model": checkpoints.tuned, "base_model": checkpoints.base, "dataset": str(world), "device": "cpu"}
    config.write_text(yaml.safe_dump({**keys, "ranked_entities": str(world / "ranked.jsonl"), "gamma": 0.0}))
    common = {"model": "reflectune", "log_samples": True}
    visual = {**common, "include_path": str(TASK), "tasks": "visual_miniature", "limit": DOCUMENTS}
    wanted = [
        {**visual, "model_args": f"config={config},mode={mode}", "output_path": str(folder / "runs" / mode)}
        for mode in MODES
    ]
    knowledge = {"include_path": str(knowledge_tasks), "tasks": "infoseek,encyclopedic_vqa"}
    asked = {**common, **knowledge, "model_args": f"config={config},mode=pipeline"}
    return folder, run(python, config, [*wanted, {**asked, "output_path": str(folder / "knowledge")}], folder)


@pytest.mark.slow
@ONE_FAMILY
def test_its_runner_scores_the_miniature_in_all_modes(runs) -> None:
    folder, printed = runs
    assert printed.count("|visual_miniature|") == len(MODES), printed
    outcomes = {outcome.mode: outcome for outcome in read_runs(folder / "runs")}
    assert outcomes.keys() == set(MODES)
    assert all(outcome.scores.keys() == {"accuracy"} for outcome in outcomes.values())
    assert all(len(outcome.documents) == DOCUMENTS for outcome in outcomes.values())
    assert outcomes["base"].opened == ()
    assert all(outcomes[mode].opened == (True,) * DOCUMENTS for mode in MODES[1:])
    assert outcomes["gate"].unanswered == DOCUMENTS
    samples = next((folder / "runs/pipeline").glob("*_samples_*.jsonl")).read_text().splitlines()
    assert all(json.loads(line)["token_counts"][0]["entries"] == ["e1", "e0"] for line in samples)


@pytest.mark.slow
@ONE_FAMILY
@pytest.mark.parametrize("task", ["infoseek", "encyclopedic_vqa"])
def test_knowledge_tasks_have_the_official_scores_of_the_logged_answers(runs, knowledge_tasks, task) -> None:
    (outcome,) = [run for run in read_runs(runs[0] / "knowledge") if run.task == task]
    documents = pq.read_table(knowledge_tasks / f"{task}.parquet").to_pylist()
    questions = [from_row(Question, json.loads(row["reference"])) for row in documents]
    log = next((runs[0] / "knowledge").rglob(f"*_samples_{task}.jsonl")).read_text().splitlines()
    rows = sorted((json.loads(line) for line in log), key=lambda row: row["doc_id"])
    answers = [
        row["filtered_resps"] if isinstance(row["filtered_resps"], str) else row["filtered_resps"][0] for row in rows
    ]
    assert len(answers) == len(questions) == 4
    assert any(answers)
    if task == "infoseek":
        scored = [(q.split, "string", score_one(answer, q)) for q, answer in zip(questions, answers, strict=True)]
        report = percent_report(scored)
        halves = {key: report[f"{key}_score"]["score"] for key in ("unseen_question", "unseen_entity")}
        assert outcome.scores == pytest.approx({"infoseek": report["final_score"], **halves})
    else:
        exact = answer_metric("evqa_exact")
        values = [exact(answer, question) for question, answer in zip(questions, answers, strict=True)]
        assert outcome.scores == pytest.approx({"evqa_exact": sum(values) / len(values)})


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_is_right_in_every_mode(path: Path, mode: str) -> None:
    problems = find_problems(BenchmarkConfig, {**yaml.safe_load(path.read_text()), "mode": mode})
    missing = re.compile(r"has no [\w.]+\.json|is not a folder")  # folders of a run
    assert [problem for problem in problems if not missing.search(problem)] == []
