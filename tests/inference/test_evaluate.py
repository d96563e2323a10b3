"""From a config to a report, with tiny random models: what runs, what is kept, what resumes, what is refused."""

import dataclasses
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from markupsafe import escape
from PIL import Image
from transformers import BertConfig, BertForSequenceClassification

from reflectune.core.durable import read_rows
from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.core.rejected import ROWS_LEFT_OUT
from reflectune.core.types import Entry, Section
from reflectune.formats.dataset import Dataset, write_questions
from reflectune.formats.knowledge_base import write_knowledge_base
from reflectune.inference.evaluate import evaluate, summary
from reflectune.inference.pipelines.mr2ag import Mr2agSettings, decide_again
from reflectune.inference.pipelines.relevance_gate import SUPPORTED
from reflectune.inference.report.tables import number
from reflectune.inference.report.words import explain
from reflectune.inference.running import experiment, planning, single
from reflectune.inference.running.config import AnswerConfig, EvaluateConfig
from reflectune.inference.running.loading import saved_weights
from reflectune.inference.serving.config import ServeConfig
from reflectune.inference.serving.service import AnswerService
from reflectune.inference.trace import to_row
from reflectune.inference.trace_files.reading import read_traces, trace_files
from reflectune.metrics.judging.bem import RECORD
from reflectune.models.loading import load, save_checkpoint
from reflectune.models.schemes.calibration import Calibration, GateScaling, load_calibration
from reflectune.models.schemes.plain import SCHEME as PLAIN
from reflectune.models.schemes.registry import load_scheme
from reflectune.models.weights import spreading
from tests.inference.alike import assert_alike
from tests.inference.families import ONE_FAMILY, QWEN

SPLITS = ("val_unseen_question", "val_unseen_entity")
MMKB: dict[str, Any] = {"gamma": 0.0, "k": 3, "mct": "rerank", "max_reply_tokens": 6}
"""Everything is looked up, and three of six documents are kept, so that every step is taken."""


@pytest.fixture
def config(world, checkpoints, tmp_path, make) -> Callable[..., EvaluateConfig]:
    def build(models: Any = checkpoints, **more: Any) -> EvaluateConfig:
        values = make.keys(world, models, **{"output": str(tmp_path), "batch_questions": 2, **more})
        made = EvaluateConfig(**values)
        assert made.problems() == []
        return made

    return build


def kept(folder: Path) -> dict[str, list[dict]]:
    """All traces of a run, without their timings."""
    return {
        path.name: [{key: value for key, value in row.items() if key != "seconds"} for row in rows_in(path)]
        for path in trace_files(folder / "traces").values()
    }


def rows_in(path: Path) -> Iterator[dict]:
    """The rows of a file of traces, with their ids."""
    if path.suffix == ".jsonl":
        return read_rows(path)
    return ({"id": trace.question_id, **json.loads(json.dumps(to_row(trace)))} for trace in read_traces(path))


@ONE_FAMILY
def test_each_context_is_read_by_the_reader_that_was_tuned_on_it(config, checkpoints, tmp_path) -> None:
    loaded, other = load(checkpoints.plain), str(tmp_path / "other")
    loaded.model.get_output_embeddings().weight.data.neg_()
    trained = {"evidence": ["passages", "gold"]}
    save_checkpoint(other, loaded.model, loaded.processor, PLAIN, {"base_model": loaded.name, "training": trained})
    readers = {"none": checkpoints.plain, "article": other, "passage": other, "passages": checkpoints.plain}
    short: dict[str, Any] = {"pipelines": ["tuned_baselines"], "limit": 1}
    metrics = experiment.run(config(plain_model=readers, output=str(tmp_path / "several"), **short))
    read_by = {name: (facts["model"], facts["as_tuned"]) for name, facts in metrics["readers"].items()}
    assert read_by == {
        "closed_book_tuned": (checkpoints.plain, None),
        "naive_rag_article_tuned": (other, False),
        "naive_rag_passage_tuned": (other, True),
        "naive_rag_passages_tuned": (checkpoints.plain, None),
        "oracle_article_tuned": (other, False),
    }
    page = (tmp_path / "several" / "report.html").read_text()
    assert "reader tuned on passages, gold; here it reads article" in page
    assert "reader tuned on unknown contexts" in page
    several = kept(tmp_path / "several")
    for name in (checkpoints.plain, other):
        experiment.run(config(plain_model=name, output=str(tmp_path / "one" / name[1:]), **short))
        alone = kept(tmp_path / "one" / name[1:])
        for pipeline, facts in metrics["readers"].items():
            assert (alone[f"{pipeline}.jsonl"] == several[f"{pipeline}.jsonl"]) == (facts["model"] == name)


@pytest.fixture
def scaled_run(config, tmp_path) -> Callable[..., list[dict]]:
    """Evaluate a copy of a checkpoint, with a calibration if scalings are given; return the traces that were judged."""

    def run(models: Any, pipeline: str, stage: str, **more: Any) -> list[dict]:
        copy = SimpleNamespace(tuned=str(tmp_path / "model"), base=models.base)
        shutil.copytree(models.tuned, copy.tuned, dirs_exist_ok=True)
        made = config(copy, pipelines=[pipeline], gamma=0.0, **more)
        experiment.run(made)
        return kept(Path(made.output))[f"{stage}.jsonl"]

    return run


@pytest.mark.parametrize(
    ("family", "scheme"),
    [("llava", "mr2ag"), pytest.param("qwen2_vl", "mmkb_rag", marks=pytest.mark.slow)],
    indirect=["family"],
    scope="session",
)
def test_gates_are_scaled_by_the_checkpoints_calibration(
    scheme: str, checkpoints, prompted, scaled_run, world, tmp_path
) -> None:
    models, names = (checkpoints, ("retrieve", "relevance")) if scheme == "mr2ag" else (prompted, ("ret", "srt"))
    gate, passage = GateScaling(0.5, 0.2, 0.3), GateScaling(2.0, 1.0, -1.0)

    def run(name: str, **more: Any) -> list[dict]:
        short: dict[str, Any] = {"limit": 1, "max_reply_tokens": 6, "diagnose": False}
        return scaled_run(models, scheme, scheme, output=str(tmp_path / name), **short, **more)

    with pytest.raises(UserError, match=r"has no calibration\.json; fit one with"):
        run("none", calibrated=True)
    plain = run("plain")
    assert len(plain) == len(SPLITS)
    assert {*kept(tmp_path / "plain")} == {f"{scheme}.jsonl", "retrieval.jsonl"}  # without a diagnosis
    metrics = json.loads((tmp_path / "plain/metrics.json").read_text())
    assert metrics["pipelines"][scheme]["overall"] is not None
    assert (tmp_path / "plain/report.html").is_file()
    folder = tmp_path / "model"
    scalings = dict(zip(names, (gate, passage), strict=True))
    saved = Calibration(scalings, saved_weights(folder), Dataset(world).fingerprint, ["train"])
    saved.save(folder, load_scheme(folder))
    assert run("again") == plain
    rows = run("scaled", calibrated=True)
    for row, before in zip(rows, plain, strict=True):
        assert row["gate"] == pytest.approx(gate.apply(before["gate"]))
        scores = [p["s_rel"] for p in before["passages"]]
        assert [p["s_rel"] for p in row["passages"]] == pytest.approx(passage.apply(scores))
        assert [p["s_irr"] for p in row["passages"]] == pytest.approx([1 - p["s_rel"] for p in row["passages"]])
    with pytest.raises(UserError, match="other settings"):
        run("plain", calibrated=True)
    dataclasses.replace(saved, splits=SPLITS[:1]).save(folder, load_scheme(folder))
    with pytest.raises(UserError, match=f"was calibrated on {SPLITS[0]}; evaluate on other splits"):
        run("same", calibrated=True)
    dataclasses.replace(saved, weights="0").save(folder, load_scheme(folder))
    with pytest.raises(UserError, match="fitted for other weights"):
        run("weights", calibrated=True)


@ONE_FAMILY
def test_a_calibration_is_fitted_to_a_runs_gates(checkpoints, scaled_run, tmp_path) -> None:
    folder = tmp_path / "model"
    scaled_run(checkpoints, "mr2ag", "relevance", fit_calibration=True, model=str(folder))
    gate = json.loads((tmp_path / "metrics.json").read_text())["calibration"]["relevance"]
    saved = json.loads((folder / "calibration.json").read_text())
    tokens = {"yes": "[Relevant]", "no": "[Irrelevant]"}
    scaling = {key: gate[key] for key in ("scale_no", "scale_yes", "bias")}
    assert saved["gates"] == {"relevance": {**tokens, **scaling}}
    assert saved["splits"] == sorted(SPLITS)
    temperatures = json.loads((folder / "decision.json").read_text())["temperature"]
    assert temperatures == {"noul": 1.0, "choice": gate["temperature"]}
    loaded = load_calibration(folder, saved_weights(folder))
    assert loaded.gates == {"relevance": GateScaling(**scaling)}
    with pytest.raises(UserError, match="no gate has both positive and negative outcomes"):
        scaled_run(checkpoints, "mr2ag", "mr2ag", fit_calibration=True, model=str(folder), splits=[SPLITS[1]], limit=1)
    (folder / "calibration.json").write_text('{"gates": {"relevance": {"scale_no": 1}}}')
    with pytest.raises(UserError, match=r"is damaged: KeyError\('scale_yes'\)"):
        load_calibration(folder, "")


@ONE_FAMILY
def test_a_run_ends_in_traces_metrics_and_a_report(config, checkpoints, tmp_path) -> None:
    metrics = experiment.run(config())
    assert json.loads((tmp_path / "metrics.json").read_text()) == json.loads(json.dumps(metrics))
    assert {name: len(rows) for name, rows in kept(tmp_path).items()} == {
        "closed_book.jsonl": 5,
        "mr2ag.jsonl": 5,
        "naive_rag_article.jsonl": 4,
        "naive_rag_articles.jsonl": 4,
        "naive_rag_passage.jsonl": 4,
        "naive_rag_passages.jsonl": 4,
        "oracle_article.jsonl": 4,
        "oracle_articles.jsonl": 4,
        "oracle_passage.jsonl": 4,
        "relevance.jsonl": 4,
        "retrieval.jsonl": 4,
    }
    table = metrics["pipelines"]["mr2ag"]["overall"]
    assert set(table) == {"value", "low", "high", "n"}
    assert table["n"] == 4
    assert metrics["gate"]["accuracy"]["n"] == 5
    assert set(metrics["relevance"]["by_attribute"]) == {"colour", "kind"}
    assert metrics["minutes"]["evaluate"] >= metrics["minutes"]["evaluate/mr2ag"] > 0
    assert metrics["peak_gib"] > 0
    report = (tmp_path / "report.html").read_text()
    assert report.count("data:image/webp;base64,") == 6  # each image once as a question's, and once as an entry's
    assert checkpoints.tuned in report


@ONE_FAMILY
def test_controls_read_with_mr2ags_checkpoint_and_scores_stand_next_to_their_compute(config, tmp_path) -> None:
    metrics = experiment.run(config(pipelines=["mr2ag", "controls"], gamma=0.0, traces="parquet"))
    traces = {name: list(read_traces(path)) for name, path in trace_files(tmp_path / "traces").items()}
    unjudged, mr2ag = traces["mr2ag_unjudged"], traces["mr2ag"]
    assert [decide_again(trace, Mr2agSettings()).answer for trace in unjudged] == [trace.answer for trace in mr2ag]
    assert all(len(t.passages) == 6 and all(p.answer is not None for p in t.passages) for t in unjudged)
    assert all(len(trace.passages) == 1 for trace in traces["mr2ag_first_passage"])
    assert all(sum(p.s_rel for p in t.passages) == pytest.approx(1.0) for t in traces["mr2ag_text_scored"])
    experiment.run(config(pipelines=["mr2ag_text_scored"], gamma=0.0, output=str(tmp_path / "alone")))
    alone = read_traces(tmp_path / "alone/traces/mr2ag_text_scored.jsonl")
    assert [t.passages for t in alone] == [t.passages for t in traces["mr2ag_text_scored"]]
    assert {f"mr2ag - {name}" for name in traces if name.startswith("mr2ag_")} <= metrics["comparisons"].keys()
    (row,) = [line.split() for line in summary(metrics).splitlines() if line.startswith("mr2ag_first_passage")]
    costs = metrics["costs"]["mr2ag_first_passage"]
    assert row[-3:] == [number(costs[name]) for name in ("calls", "read", "computed")]
    assert costs["calls"] == 2.0  # the gate and the passage


@ONE_FAMILY
@pytest.mark.slow
def test_models_whose_layers_lie_on_two_devices_answer_the_same(config, tmp_path, pretended, monkeypatch) -> None:
    """Both models; and a run may go on with another map than it began with."""
    settings = {"pipelines": ["closed_book", "mr2ag"], "limit": 1, "diagnose": False}
    one, two = (config(output=str(tmp_path / name), **settings) for name in ("one", "two"))
    experiment.run(one)
    halves = pretended.halves
    monkeypatch.setattr(spreading, "plan_device_map", lambda model, *_: halves(model, "cpu:1", "cpu:2"))
    with pretended.PretendDevices() as devices:
        experiment.run(two.model_copy(update={"device_map": "auto"}))
    assert {torch.device("cpu:1"), torch.device("cpu:2")} <= devices.seen
    assert kept(tmp_path / "two") == kept(tmp_path / "one")
    before = [path.stat().st_mtime_ns for path in trace_files(tmp_path / "two/traces").values()]
    experiment.run(two)
    assert [path.stat().st_mtime_ns for path in trace_files(tmp_path / "two/traces").values()] == before


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*will be slower")
@pytest.mark.parametrize(("family", "compile_layers"), [("qwen2_vl", "auto"), ("llava", "off")], indirect=["family"])
def test_a_simulated_gpu_answers_as_the_cpu_does(config, tmp_path, pretended, compile_layers) -> None:
    settings = {"pipelines": ["naive_rag", "mr2ag"], "gamma": 0.0, "limit": 1, "dtype": "float32"}
    experiment.run(config(output=str(tmp_path / "cpu"), **settings))
    with pretended.gpus() as machine:
        experiment.run(config(output=str(tmp_path / "gpu"), device="cuda", compile=compile_layers, **settings))
    assert bool(machine.graphs) == (compile_layers == "auto")
    assert_alike(kept(tmp_path / "gpu"), kept(tmp_path / "cpu"))


@ONE_FAMILY
def test_a_gated_run_resumes_and_its_traces_keep_each_judgement(config, tmp_path) -> None:
    def run(folder: str, least: float, **more: Any) -> list[dict]:
        settings = {"pipelines": ["mi_rag"], "iterations": 1, "pair_passages": 3, "max_record_tokens": 8}
        settings |= {"gate_filter": least, "gate_stop": 1e-9, "batch_questions": 1, "output": str(tmp_path / folder)}
        experiment.run(config(**settings, **more))
        return kept(tmp_path / folder)["mi_rag.jsonl"]

    def first_judged(row: dict) -> list[float]:
        return next(step["each"] for step in row["steps"] if step["operator"] == "judge")

    least = sorted(value for row in run("all kept", 1e-9) for value in first_judged(row))[4]
    whole = run("whole", least)
    assert len(run("parts", least, limit=1)) < len(whole)
    assert run("parts", least) == whole
    for row in whole:
        judged = first_judged(row)
        assert [read["s_rel"] for read in row["passages"]][:3] == judged
        kept_here = sum(value >= least for value in judged) or 1
        assert next(step["shown"] for step in row["steps"] if step["operator"] == "reason") == 1 + kept_here
        if row["ended"] == SUPPORTED:
            assert len(row["used"]) == kept_here
    assert {sum(value >= least for value in first_judged(row)) for row in whole} > {3}
    assert SUPPORTED in {row["ended"] for row in whole}
    with pytest.raises(UserError, match="other settings"):
        run("parts", least / 2)


@ONE_FAMILY
def test_a_text_knowledge_base_is_searched_by_the_question(config, make, tmp_path) -> None:
    """An index of its own, next to the data set's; a different index starts the traces again."""
    texts = [Entry("t0", "Diets", summary="Owls eat mice. Cats eat fish."), Entry("t1", "Homes", summary="In an oak.")]
    make.text_index(write_knowledge_base(tmp_path / "texts", texts, name="texts"), tmp_path / "index")
    where = {"text_index": str(tmp_path / "index"), "text_knowledge": str(tmp_path / "texts"), "index": ""}
    settings = {"pipelines": ["text_rag"], "output": str(tmp_path / "out"), **where}
    metrics = experiment.run(config(**settings, passages=1))
    (rows,) = kept(tmp_path / "out").values()
    assert len(rows) == 4
    assert {hit["kb"] for row in rows for hit in row["hits"]} == {"texts"}
    assert {passage["passage"]["entry_id"] for row in rows for passage in row["passages"]} <= {"t0", "t1"}
    assert metrics["pipelines"]["text_rag"]["overall"]["n"] == 4
    assert "text index" in (tmp_path / "out/report.html").read_text()
    with pytest.raises(UserError, match="other settings"):
        experiment.run(config(**settings, passages=2))


@ONE_FAMILY
def test_a_model_that_is_not_fine_tuned_is_refused(config, checkpoints) -> None:
    with pytest.raises(UserError, match="not fine-tuned"):
        experiment.run(config(model=checkpoints.base, pipelines=["mr2ag"]))


@ONE_FAMILY
def test_a_data_set_that_says_little_and_has_its_images_elsewhere_runs(make, config, encoder, tmp_path) -> None:
    folder = tmp_path / "data"
    for path in (folder / "a.png", tmp_path / "asked.png"):
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (64, 64), "red").save(path)
    entry = Entry(id="e0", title="Title", images=("a.png",), sections=(Section("", "A red thing."),))
    question = make.question(0, image=str(tmp_path / "asked.png"), requires_retrieval=None)
    make.data_set(folder, [entry], [question], encoder, image_root=str(tmp_path))
    where = {"dataset": str(folder), "index": str(folder / "index"), "output": str(tmp_path / "out")}
    metrics = experiment.run(config(**where, splits=["val_unseen_entity"]))
    assert metrics["relevance"] == {"within_article": None, "look_alikes": None, "by_attribute": {}}
    assert metrics["pipelines"]["mr2ag"]["unseen_entity"]["n"] == 1
    report = (tmp_path / "out/report.html").read_text()
    assert "not expected to be right" in re.sub(r"\s+", " ", report)
    assert "no gold evidence" in report


@pytest.fixture
def bem(tmp_path: Path) -> str:
    """A tiny BEM that says of everything what its random weights say."""
    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertForSequenceClassification(BertConfig(vocab_size=8, type_vocab_size=3, **small)).save_pretrained(
        tmp_path / "bem"
    )
    (tmp_path / "bem/vocab.txt").write_text("\n".join("[PAD] [UNK] [CLS] [SEP] [MASK] the oak is".split()) + "\n")
    (tmp_path / "bem" / RECORD).write_text('{"mask_padding": true, "checked_on": 1}')
    return str(tmp_path / "bem")


@ONE_FAMILY
def test_evqa_is_scored_by_bem_with_its_columns_in_the_report(config, bem, make, tmp_path) -> None:
    Image.new("RGB", (64, 64), "red").save(tmp_path / "a.png")
    answers = {"templated": "oak", "automatic": "1880", "multi_answer": "red&&blue", "2_hop": "Rome"}
    questions = [
        make.question(number, "test", answer, image="a.png", requires_retrieval=None, meta={"question_type": kind})
        for number, (kind, answer) in enumerate(answers.items())
    ]
    make.data_set(tmp_path / "data", [make.entry(0)], questions, metric="evqa", image_root=str(tmp_path))
    made = config(dataset=str(tmp_path / "data"), splits=["test"], pipelines=["closed_book"], index="", bem=bem)
    assert "scored by evqa" in planning.describe(made)
    metrics = experiment.run(made)
    columns = ["overall", "single_hop", "templated", "automatic", "multi_answer", "2_hop"]
    assert list(metrics["metric"]["columns"]) == columns
    assert metrics["pipelines"]["closed_book"]["overall"]["n"] == 4
    page = " ".join((tmp_path / "report.html").read_text().split())
    assert escape(metrics["metric"]["caption"]) in page
    assert summary(metrics).startswith(metrics["metric"]["caption"])
    again = experiment.run(made.model_copy(update={"metric": "evqa_exact"}))
    assert again["metric"]["name"] == "evqa_exact"  # of the same traces
    assert "lower bound" in (tmp_path / "report.html").read_text()


@QWEN
def test_mmkb_rag_runs_to_metrics_and_a_report_and_a_second_run_answers_nothing(config, prompted, tmp_path) -> None:
    wanted = config(prompted, pipelines=["closed_book", "naive_rag", "mmkb_rag"], **MMKB)
    metrics = experiment.run(wanted)
    assert {name: len(rows) for name, rows in kept(tmp_path).items()} == {
        "closed_book.jsonl": 5,
        "mmkb_rag.jsonl": 5,
        "naive_rag_article.jsonl": 4,
        "naive_rag_articles.jsonl": 4,
        "naive_rag_passage.jsonl": 4,
        "naive_rag_passages.jsonl": 4,
        "reflection.jsonl": 5,
        "retrieval.jsonl": 4,
    }
    assert metrics["comparisons"]["mmkb_rag - best_baseline"]["n"] == 4
    decisions = metrics["reflection"]
    assert decisions["ret_knowledge"]["overall"]["accuracy"]["n"] == 4
    assert decisions["srt"]["overall"]["stating_retrieved"]["n"] == 4
    assert decisions["mct"]["replies"] == 5
    for row in kept(tmp_path)["mmkb_rag.jsonl"]:
        assert all(0 < passage["s_rel"] < 1 for passage in row["passages"])
        assert len(row["kept"]) == 3
        assert 0 < row["confidence"] <= 1
        assert row["mct"]["shown"] == 3
    for row, pipeline_row in zip(kept(tmp_path)["reflection.jsonl"], kept(tmp_path)["mmkb_rag.jsonl"], strict=False):
        assert row["gate"] == pytest.approx(pipeline_row["gate"], abs=1e-5)  # the same decision, read in another batch
    report = (tmp_path / "report.html").read_text()
    assert "ret on, srt on, k 3, threshold 0.5, mct rerank, answer_model base" in report
    assert "RET against its threshold" in report or metrics["reflection"]["ret"]["overall"]["auroc"] is None
    files = {path: path.read_bytes() for path in (tmp_path / "traces").iterdir()}
    again = experiment.run(wanted)
    assert {path: path.read_bytes() for path in (tmp_path / "traces").iterdir()} == files
    assert {**again, "peak_gib": 0} == {**metrics, "peak_gib": 0}


@ONE_FAMILY
def test_a_closed_gate_answers_as_the_base_model_does_alone(config, prompted, tmp_path) -> None:
    experiment.run(config(prompted, pipelines=["closed_book", "mmkb_rag"], **{**MMKB, "gamma": 1.0}))
    rows_by_file = kept(tmp_path)
    answers = {row["id"]: (row["answer"], row["confidence"]) for row in rows_by_file["closed_book.jsonl"]}
    assert {row["id"]: (row["answer"], row["confidence"]) for row in rows_by_file["mmkb_rag.jsonl"]} == answers
    assert not any(row["retrieved"] for row in rows_by_file["mmkb_rag.jsonl"])


@ONE_FAMILY
def test_the_tuned_model_can_answer_without_a_base_model(config, prompted, tmp_path) -> None:
    settings = {**MMKB, "pipelines": ["mmkb_rag"], "base_model": "", "answer_model": "tuned"}
    metrics = experiment.run(config(prompted, **settings))
    assert metrics["pipelines"]["mmkb_rag"]["overall"]["n"] == 4
    assert metrics["reflection"]["ret"]["overall"]["accuracy"] is None
    assert "RET is not measured" in (tmp_path / "report.html").read_text()


@ONE_FAMILY
def test_another_base_model_does_not_mix(config, prompted, tmp_path) -> None:
    settings = {**MMKB, "pipelines": ["mmkb_rag"], "limit": 1, "diagnose": False}
    experiment.run(config(prompted, **settings))
    other = shutil.copytree(prompted.base, tmp_path / "other")
    (other / "config.json").write_text((other / "config.json").read_text() + "\n")
    for changed in ({"base_model": str(other)}, {"k": 2}):
        with pytest.raises(UserError, match="other settings"):
            experiment.run(config(prompted, **{**settings, **changed}))


@ONE_FAMILY
def test_a_single_question_is_answered_by_the_pipeline_of_the_checkpoint(make, world, prompted) -> None:
    asked = {"image": str(world / "images/e1.png"), "question": "What does it eat?", "gamma": 0.0, "k": 2}
    settings = make.keys(world, prompted, **asked)
    trace = single.answer(AnswerConfig(**settings))
    assert (trace.pipeline, len(trace.passages), len(trace.kept)) == ("mmkb_rag", 6, 2)
    text = explain(trace)
    assert text.startswith("decision: retrieve")
    assert text.count("kept ") == 2
    with pytest.raises(UserError, match="`base_model` is needed"):
        single.answer(AnswerConfig(**{**settings, "base_model": ""}))


@ONE_FAMILY
def test_a_single_question_is_answered_by_a_named_pipeline_as_a_server_does(make, world, prompted) -> None:
    image, question = str(world / "images/e1.png"), "What does it eat?"
    keys = {**make.keys(world, prompted), "model": ""}
    trace = single.answer(AnswerConfig(**keys, image=image, question=question, pipeline="naive_rag"))
    with AnswerService(ServeConfig(**keys, pipelines=["naive_rag"])) as service:
        served = service.submit(question, load_image(image), "naive_rag").result(60)
    assert trace.pipeline == "naive_rag_article"
    assert trace.passages
    assert (trace.answer, trace.hits, trace.passages) == (served.answer, served.hits, served.passages)


@pytest.mark.slow
@ONE_FAMILY
def test_a_killed_run_resumes_to_the_same_traces(config, tmp_path, start_program) -> None:
    settings = {"pipelines": ["closed_book", "mr2ag"], "batch_questions": 1, "limit": 2}
    straight = experiment.run(config(output=str(tmp_path / "straight"), **settings))
    wanted = config(output=str(tmp_path / "killed"), **settings)
    kill_once_something_is_finished(wanted, start_program)
    resumed = experiment.run(wanted)
    assert kept(tmp_path / "killed") == kept(tmp_path / "straight")
    for name in ("minutes", "peak_gib"):
        straight.pop(name)
        resumed.pop(name)
    for cost in (*straight["costs"].values(), *resumed["costs"].values()):
        cost.pop("seconds")
    assert resumed == straight


def kill_once_something_is_finished(wanted: EvaluateConfig, start_program: Callable[..., Any]) -> None:
    """Start the entry script and `kill -9` it after its first finished row."""
    flags = [f"--{name}" for name in ("dataset", "index", "model", "base_model", "output", "device")]
    values = [getattr(wanted, flag[2:]) for flag in flags]
    numbers = ["--max_new_tokens", "4", "--batch_questions", "1", "--limit", "2"]
    numbers += ["--pipelines", *wanted.pipelines]
    program = start_program(["-m", "reflectune", "evaluate", *sum(zip(flags, values, strict=True), ()), *numbers])
    traces = Path(wanted.output, "traces")
    deadline = time.monotonic() + 120
    while not any(path.read_bytes().count(b"\n") > 1 for path in traces.rglob("*.jsonl")):
        assert program.poll() is None, program.stderr
        assert time.monotonic() < deadline
        time.sleep(0.01)
    program.kill()


@ONE_FAMILY
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"text": "Why? " * 5000}, "question q000: .* tokens long"),
        ({"image": "images/strip.png"}, "too narrow: .*q000"),
    ],
)
def test_a_question_that_no_model_takes_is_named_and_left_out(world, config, make, tmp_path, change, problem) -> None:
    shutil.copytree(world, folder := tmp_path / "world")
    Image.new("RGB", (900, 4)).save(folder / "images/strip.png")
    good = {"image": "images/e0.png"}
    questions = [make.question(0, SPLITS[0], **good | change), make.question(1, SPLITS[0], **good)]
    write_questions(folder, SPLITS[0], questions)
    keys = {
        "dataset": str(folder),
        "pipelines": ["closed_book"],
        "splits": [SPLITS[0]],
        "output": str(tmp_path / "out"),
    }
    with pytest.raises(UserError, match=problem):
        experiment.run(config(**keys))
    assert evaluate(config(**keys, on_error="skip")) == ROWS_LEFT_OUT
    errors = {row["id"]: row["error"] for row in kept(tmp_path / "out")["closed_book.jsonl"]}
    assert re.search(problem, errors["q000"])
    assert errors["q001"] == ""
    write_questions(folder, SPLITS[0], questions[:1])
    with pytest.raises(UserError, match=f"all questions failed, in all pipelines; the first error: .*{problem}"):
        evaluate(config(**keys, on_error="skip"))


@ONE_FAMILY
def test_a_servers_refusals_are_in_metrics_report_and_console(config, stub_server, tmp_path, capsys) -> None:
    refuse = {"status": 413, "body": "context too long"}
    server = stub_server(
        lambda text: "mice", lambda text, number: refuse if "Title e1" in text else {}, first_token={"Yes": -0.1}
    )
    evaluate(config(reader="server", llm_url=server.url, llm_model="stub", pipelines=["reag"]))
    counts = json.loads((tmp_path / "metrics.json").read_text())["replies"]["reag"]
    assert counts["replies_refused"] > 0
    warned = f"warning: reag: of {counts['calls']} replies {counts['replies_refused']} were refused by the server"
    assert warned in capsys.readouterr().out
    assert warned in (tmp_path / "report.html").read_text()
    refused = [step["refused"] for row in kept(tmp_path)["reag.jsonl"] for step in row["steps"] if step["refused"]]
    assert refused
    assert all("status 413: `context too long`" in reason for reason in refused)


@ONE_FAMILY
def test_baselines_and_iterative_pipelines_ask_one_server(config, stub_server, tmp_path) -> None:
    server, refused = stub_server(lambda text: "<think>Is it mice?</think> mice"), {"status": 413, "body": "too long"}
    baselines = ["closed_book", "naive_rag_passages", "oracle_article"]
    keys = {"reader": "server", "llm_url": server.url, "llm_model": "stub", "base_model": "", "on_error": "skip"}
    keys |= {"pipelines": [*baselines, "reag"]}
    server.fault = lambda text, number: {} if "What does it eat?" in text else refused
    described = planning.describe(config(**keys, llm_concurrency=2))
    assert "closed_book: 5 questions by 2 requests at a time\n    one request a question; in all 5" in described
    assert evaluate(config(**keys, llm_concurrency=2)) == ROWS_LEFT_OUT
    rows = {name: kept(tmp_path)[f"{name}.jsonl"] for name in baselines}
    errors = {row["id"]: row["error"] for row in rows["closed_book"] if row["error"]}
    assert errors == {"q004": "the server refused to answer (status 413: `too long`); shorten the prompt"}
    assert {row["answer"] for name in baselines for row in rows[name] if not row["error"]} == {"mice"}
    assert all(row["tokens"]["passages_read"] == len(row["passages"]) > 0 for row in rows["oracle_article"])
    server.fault, asked = lambda text, number: {}, len(server.requests)
    evaluate(config(**keys, llm_concurrency=3))
    assert len(server.requests) == asked + 1
    assert {row["answer"] for row in kept(tmp_path)["closed_book.jsonl"]} == {"mice"}
