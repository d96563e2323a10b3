"""Evaluations of the same questions are scored as one; those that differ in anything that is asked stay apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from reflectune.core.resumable import ALONE
from reflectune.core.types import Question
from reflectune.formats.dataset import Dataset
from reflectune.inference.comparing.config import Planned
from reflectune.inference.comparing.merge import merged, what_is_read
from reflectune.inference.comparing.run import compared
from reflectune.inference.running.config import EvaluateConfig
from reflectune.inference.scoring.evaluation import evaluate
from reflectune.inference.scoring.scores import Measure
from reflectune.inference.trace import Trace, to_row
from reflectune.inference.trace_files.keeping import TraceForm, TraceStore

SPLITS = ("val_unseen_question", "val_unseen_entity")


@pytest.fixture
def finished(small_world: Path, tmp_path: Path, make: SimpleNamespace) -> Callable[..., tuple[EvaluateConfig, Any]]:
    """Writes the traces of an evaluation: what each pipeline answers to every knowledge-based question."""
    dataset = Dataset(small_world)
    questions = [q for split in SPLITS for q in dataset.questions(split) if q.is_knowledge_based is not False]
    ordered = sorted(questions, key=lambda question: question.id)

    def write(name: str, answers: dict[str, Callable[[Question], str]], **more: Any) -> tuple[EvaluateConfig, Any]:
        config = EvaluateConfig(dataset=str(small_world), output=str(tmp_path / name), splits=list(SPLITS), **more)
        traces: dict[str, dict[str, Trace]] = {}
        for pipeline, say in answers.items():
            traces[pipeline] = {q.id: make.trace(int(q.id[1:]), pipeline, answer=say(q)) for q in questions}
            rows = {key: to_row(trace) for key, trace in traces[pipeline].items()}
            store = TraceStore(tmp_path / name / "traces", pipeline, "f", config.traces)
            store.fill(ordered, lambda batch, rows=rows: [(q.id, rows[q.id]) for q in batch], 8, ALONE)
        metrics = evaluate(questions, traces, measure=Measure("infoseek"), gamma=0.5, seed=more.get("seed", 0))
        return config, json.loads(json.dumps(metrics))

    return write


def right(question: Question) -> str:
    return question.answers[0]


def wrong(question: Question) -> str:
    return "nonsense"


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_pipelines_that_were_run_apart_are_paired_with_one_best_baseline(finished: Any, form: TraceForm) -> None:
    first, baselines = finished("a", {"closed_book": right, "naive_rag_article": wrong}, traces=form)
    second, iterative = finished("b", {"pmsr": wrong, "pmsr_fixed": right})
    assert not any("best_baseline" in name for name in iterative["comparisons"])
    told = merged({"a": first, "b": second}, {"a": baselines, "b": iterative})
    assert list(told) == ["a + b"]
    content = told["a + b"]
    assert content["best_baseline"] == "closed_book"
    assert content["comparisons"]["pmsr - best_baseline"]["value"] == -1.0
    assert content["comparisons"]["pmsr_fixed - best_baseline"]["value"] == 0.0
    assert content["stop_rule"] is None  # no trajectory has a record
    for name, alone in {**baselines["pipelines"], **iterative["pipelines"]}.items():
        if name != "best_baseline":
            assert content["pipelines"][name] == alone
    assert compared(told)["pipelines"]["pmsr"]["standing"] == "behind in 1 of 1"


def test_budgets_of_pipelines_that_were_run_apart_stand_together(finished: Any) -> None:
    runs = {name: finished(name, {name: right}) for name in ("closed_book", "mi_rag", "pmsr")}
    metrics = {name: content for name, (_, content) in runs.items()}
    metrics["mi_rag"]["budgets"] = {"mi_rag": {"iterations": 2}}
    metrics["pmsr"]["budgets"] = {"pmsr": {"iterations": 4}}
    told = compared(merged({name: config for name, (config, _) in runs.items()}, metrics))
    assert told["budgets"] == {"mi_rag": {"iterations": [2]}, "pmsr": {"iterations": [4]}}


def test_seeds_variants_and_finished_folders_stay_apart(finished: Any) -> None:
    runs = {
        "seed 0": finished("a", {"closed_book": right}),
        "seed 1": finished("b", {"closed_book": wrong}, seed=1),
        "noise": finished("c", {"closed_book": wrong}),
        "more of seed 1": finished("d", {"pmsr": right}, seed=1),
    }
    folder = finished("e", {"pmsr": wrong})[1]
    metrics = {"folder": folder, **{name: content for name, (_, content) in runs.items()}}
    told = merged({name: config for name, (config, _) in runs.items()}, metrics)
    assert list(told) == ["folder", "seed 0", "noise", "seed 1 + more of seed 1"]
    assert told["folder"] is folder
    assert told["noise"] == metrics["noise"]
    record = compared(told)
    assert [score["value"] for score in record["pipelines"]["closed_book"]["score"]] == [1.0, 0.0, 0.0]
    assert record["pipelines"]["pmsr"]["lead"][1]["value"] == 1.0


@pytest.fixture
def indexes(tmp_path: Path) -> list[str]:
    """Two folders whose manifests differ."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(name)
    return [str(tmp_path / "one"), str(tmp_path / "other")]


@pytest.mark.parametrize(
    "change",
    [
        {"top_n": 10},
        {"index": 1},
        {"title_weight": 0.0},
        {"summary_share": 0.5},
        {"lead": "none"},
        {"passages": 3},
        {"reranker": "embedding", "reranker_model": "miniature/text"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_those_that_search_otherwise_or_read_more_stay_apart(
    finished: Any, indexes: list[str], change: dict[str, Any]
) -> None:
    usual = {"index": indexes[0]}
    changed = {**usual, **change, **({"index": indexes[1]} if "index" in change else {})}
    baselines = finished("a", {"naive_rag_passages": wrong}, **usual)
    tuned = finished("b", {"naive_rag_passages_tuned": right}, **changed)
    runs = {"a": baselines, "b": tuned}
    told = merged({name: run[0] for name, run in runs.items()}, {name: run[1] for name, run in runs.items()})
    assert list(told) == ["a", "b"]
    again = finished("c", {"naive_rag_passages_tuned": right}, **usual)
    runs = {"a": baselines, "c": again}
    told = merged({name: run[0] for name, run in runs.items()}, {name: run[1] for name, run in runs.items()})
    assert list(told) == ["a + c"]


def test_keys_that_none_of_an_evaluations_pipelines_reads_keep_it_from_no_other(
    finished: Any, indexes: list[str]
) -> None:
    usual = {"index": indexes[0], "reranker": "embedding", "reranker_model": "miniature/text"}
    runs = {
        "baselines": finished("a", {"naive_rag_passages": wrong}, **usual),
        "without an index": finished("b", {"closed_book": right}),
        "another reranker": finished("c", {"reflectiva": right}, index=indexes[0]),
        "a depth of its own": finished(
            "d", {"pmsr": right}, index=indexes[0], top_n=3, title_weight=0.0, text_passages=7, pair_passages=2
        ),
        "another depth": finished("e", {"mr2ag": right}, index=indexes[0], top_n=3),
        "that one's baselines": finished("f", {"naive_rag_article": wrong}, index=indexes[0], top_n=3),
    }
    told = merged({name: run[0] for name, run in runs.items()}, {name: run[1] for name, run in runs.items()})
    assert list(told) == [
        "baselines + without an index + another reranker + a depth of its own",
        "another depth + that one's baselines",
    ]


def test_what_is_compared_on_the_miniature_is_one_evaluation_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[3]
    compared_there = yaml.safe_load((root / "configs/compare/miniature.yaml").read_text(encoding="utf-8"))
    monkeypatch.setattr(EvaluateConfig, "finder_fingerprint", lambda config: config.index)
    readings: dict[str, list[dict[str, object]]] = {}
    for name in compared_there["evaluations"]:
        planned = Planned.of(name)
        values = yaml.safe_load((root / planned.path).read_text(encoding="utf-8"))
        changes = {key: yaml.safe_load(value) for key, value in planned.changes.items()}
        if isinstance(changes.get("pipelines"), str):
            changes["pipelines"] = changes["pipelines"].split(",")
        config = EvaluateConfig(**{**values, **changes})
        readings.setdefault(config.dataset, []).append(what_is_read(config, config.forms()))
    assert [len(each) for each in readings.values()] == [4, 2, 2]
    for each in readings.values():
        for reading in each:
            assert reading["top_n"] == 5
            assert reading.items() <= each[0].items()
