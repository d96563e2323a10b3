"""From a config to a report, with tiny random models: what runs, what is kept, what resumes, what is refused."""

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
from PIL import Image

from reflectune.core.config import find_problems
from reflectune.core.durable import read_rows
from reflectune.core.errors import UserError
from reflectune.core.types import Entry, Question, Section
from reflectune.formats.dataset import write_questions
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base
from reflectune.inference.report.words import explain
from reflectune.inference.running import experiment, single
from reflectune.inference.running.config import AnswerConfig, EvaluateConfig
from reflectune.inference.trace import to_row
from reflectune.inference.trace_files.opening import read_traces, trace_files
from reflectune.models.weights import spreading
from reflectune.retrieval.encoders.checkpoints import find_checkpoint
from reflectune.retrieval.encoders.encoder import load_encoder
from reflectune.retrieval.encoders.settings import TextSettings
from reflectune.retrieval.encoders.text_encoder import TextEncoder
from reflectune.retrieval.indexes.building import build_index
from reflectune.retrieval.indexes.text_index import Cutting, build_text_index

SHARED = Path(__file__).parents[3] / "shared/data"
LOOKS = {
    "e0": {"kind": "owl", "colour": "red"},
    "e1": {"kind": "owl", "colour": "blue"},
    "e2": {"kind": "cat", "colour": "red"},
}
SPLITS = ["val_unseen_question", "val_unseen_entity"]
MMKB = {
    "pipelines": ["closed_book", "naive_rag", "mmkb_rag"],
    "gamma": 0.0,
    "k": 3,
    "mct": "rerank",
    "max_reply_tokens": 6,
}
"""Everything is looked up, and three of six documents are kept, so that every step is taken."""


def write_world(
    folder: Path, encoder: str, entries: list[Entry], questions: list[Question], **manifest: object
) -> None:
    """A data set folder with an index, as build_world and build_index leave it."""
    write_knowledge_base(folder / "knowledge", entries, name="kb", image_root="..", shard_size=10)
    for split in {question.split for question in questions}:
        write_questions(folder, split, [question for question in questions if question.split == split])
    record = {"name": "test", "metric": "infoseek", "seed": 0, "fingerprint": "f" * 16, "counts": {}, **manifest}
    (folder / "dataset.json").write_text(json.dumps(record))
    build_index(KnowledgeBase(folder / "knowledge"), load_encoder(encoder), folder / "index")


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory, encoder: str, make: SimpleNamespace) -> Path:
    """Three entries that look alike, and five questions: four to look up, one to answer by looking."""
    folder = tmp_path_factory.mktemp("world")
    (folder / "images").mkdir()
    for name, looks in LOOKS.items():
        Image.new("RGB", (64, 64), looks["colour"]).save(folder / f"images/{name}.png")
    sections = (Section("Diet", "It eats mice."), Section("Home", "It lives in an oak."))
    entries = [
        Entry(id=name, title=f"Title {name}", summary="A drawing.", images=(f"images/{name}.png",), sections=sections)
        for name in LOOKS
    ]
    questions = [
        make.question(
            i,
            SPLITS[i % 2],
            image=f"images/e{i % 3}.png",
            text="What does it eat?",
            entity_ids=(f"e{i % 3}",),
            evidence=make.evidence(f"e{i % 3}", 0),
        )
        for i in range(4)
    ]
    questions.append(make.question(4, SPLITS[0], "red", image="images/e0.png", requires_retrieval=False))
    relations = {name: ["diet", "home"] for name in LOOKS}
    write_world(folder, encoder, entries, questions, looks=LOOKS, relations=relations)
    return folder


def config(world: Path, encoder: str, checkpoints: SimpleNamespace, output: Path, **more: object) -> EvaluateConfig:
    values = {
        "dataset": str(world),
        "index": str(world / "index"),
        "encoder": encoder,
        "model": checkpoints.tuned,
        "base_model": checkpoints.base,
        "output": str(output),
        "max_new_tokens": 4,
        "batch_questions": 2,
        "device": "cpu",
        **more,
    }
    made = EvaluateConfig(**values)
    assert made.problems() == []
    return made


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


def test_a_run_ends_in_traces_metrics_and_a_report(world, encoder, checkpoints, tmp_path) -> None:
    metrics = experiment.run(config(world, encoder, checkpoints, tmp_path))
    assert json.loads((tmp_path / "metrics.json").read_text()) == json.loads(json.dumps(metrics))
    assert {name: len(rows) for name, rows in kept(tmp_path).items()} == {
        "closed_book.jsonl": 5,
        "mr2ag.jsonl": 5,
        "naive_rag_article.jsonl": 4,
        "naive_rag_articles.jsonl": 4,
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
    assert report.count("data:image/webp;base64,") == 3  # each image once
    assert checkpoints.tuned in report


@pytest.mark.slow
def test_models_whose_layers_lie_on_two_devices_answer_the_same(
    world, encoder, checkpoints, tmp_path, pretended, monkeypatch
) -> None:
    """Both models; and a run may go on with another map than it began with."""
    settings = {"pipelines": ["closed_book", "mr2ag"], "keep_images": 2}
    one, two = (config(world, encoder, checkpoints, tmp_path / name, **settings) for name in ("one", "two"))
    experiment.run(one)
    halves = pretended.halves
    monkeypatch.setattr(spreading, "find_places", lambda model, *_: halves(model, "cpu:1", "cpu:2"))
    with pretended.PretendDevices() as devices:
        experiment.run(two.model_copy(update={"device_map": "auto"}))
    assert {torch.device("cpu:1"), torch.device("cpu:2")} <= devices.seen
    assert kept(tmp_path / "two") == kept(tmp_path / "one")
    before = [path.stat().st_mtime_ns for path in trace_files(tmp_path / "two/traces").values()]
    experiment.run(two)
    assert [path.stat().st_mtime_ns for path in trace_files(tmp_path / "two/traces").values()] == before


def test_a_text_knowledge_base_is_searched_by_the_question(world, encoder, checkpoints, tmp_path) -> None:
    """An index of its own, next to the data set's; a different index starts the traces again."""
    texts = [Entry("t0", "Diets", summary="Owls eat mice. Cats eat fish."), Entry("t1", "Homes", summary="In an oak.")]
    kb = write_knowledge_base(tmp_path / "texts", texts, name="texts")
    reading = TextEncoder(find_checkpoint("miniature/text"), TextSettings(), torch.device("cpu"), "")
    build_text_index(kb, reading, tmp_path / "index", Cutting())
    settings = {
        "pipelines": ["text_rag"],
        "text_index": str(tmp_path / "index"),
        "text_knowledge": str(tmp_path / "texts"),
        "passages": 1,
    }
    metrics = experiment.run(config(world, encoder, checkpoints, tmp_path / "out", index="", **settings))
    (rows,) = kept(tmp_path / "out").values()
    assert len(rows) == 4
    assert {hit["kb"] for row in rows for hit in row["hits"]} == {"texts"}
    assert {passage["passage"]["entry_id"] for row in rows for passage in row["passages"]} <= {"t0", "t1"}
    assert metrics["pipelines"]["text_rag"]["overall"]["n"] == 4
    assert "text index" in (tmp_path / "out/report.html").read_text()
    with pytest.raises(UserError, match="other settings"):
        experiment.run(config(world, encoder, checkpoints, tmp_path / "out", index="", **settings | {"passages": 2}))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "`text_index` is needed by text_rag: build one with `reflectune build_index --rows passages`"),
        ({"text_index": "nowhere"}, "`text_index`: nowhere has no manifest.json"),
        ({"text_knowledge": "nowhere"}, "`text_knowledge`: nowhere has no kb.json"),
    ],
)
def test_a_pipeline_over_texts_needs_their_index(world, checkpoints, tmp_path, more, said) -> None:
    values = {"dataset": str(world), "base_model": checkpoints.base, "output": str(tmp_path), **more}
    assert said in find_problems(EvaluateConfig, dict(pipelines=["text_rag"], **values))


def test_a_second_run_answers_nothing_anew(world, encoder, checkpoints, tmp_path) -> None:
    first = experiment.run(config(world, encoder, checkpoints, tmp_path, pipelines=["mr2ag"]))
    files = {path: path.read_bytes() for path in (tmp_path / "traces").iterdir()}
    second = experiment.run(config(world, encoder, checkpoints, tmp_path, pipelines=["mr2ag"]))
    assert {path: path.read_bytes() for path in (tmp_path / "traces").iterdir()} == files
    assert {**second, "peak_gib": 0} == {**first, "peak_gib": 0}


def test_a_run_in_parquet_has_the_same_traces_scores_and_report(world, encoder, checkpoints, tmp_path) -> None:
    metrics, pages = [], []
    for form in ("jsonl", "parquet"):
        folder = tmp_path / form
        wanted = config(world, encoder, checkpoints, folder, pipelines=["closed_book", "mr2ag"], traces=form)
        made = experiment.run(wanted)
        metrics.append({**made, "minutes": 0, "peak_gib": 0, "costs": made["costs"]["mr2ag"]["passages"]})
        page = (folder / "report.html").read_text()
        (data,) = re.findall(r"<script[^>]*application/json[^>]*>(.*?)</script>", page, re.DOTALL)
        pages.append(json.loads(data))
    assert metrics[0] == metrics[1]
    assert pages[0] == pages[1]
    by_name = [{Path(name).stem: rows for name, rows in kept(tmp_path / form).items()} for form in ("jsonl", "parquet")]
    assert by_name[0] == by_name[1]
    assert {path.suffix for path in (tmp_path / "parquet/traces").iterdir()} == {".parquet"}


def test_other_settings_do_not_mix(world, encoder, checkpoints, tmp_path) -> None:
    experiment.run(config(world, encoder, checkpoints, tmp_path, pipelines=["mr2ag"], gamma=0.5))
    with pytest.raises(UserError, match="other settings"):
        experiment.run(config(world, encoder, checkpoints, tmp_path, pipelines=["mr2ag"], gamma=0.9))


def test_a_base_model_cannot_stand_for_a_tuned_one(world, encoder, checkpoints, tmp_path) -> None:
    with pytest.raises(UserError, match="not fine-tuned"):
        experiment.run(config(world, encoder, checkpoints, tmp_path, model=checkpoints.base, pipelines=["mr2ag"]))


def test_an_index_of_another_knowledge_base_is_refused(world, encoder, checkpoints, tmp_path) -> None:
    other = tmp_path / "other"
    shutil.copytree(world, other)
    entries = [Entry(id="x", title="X", images=("images/e0.png",))]
    shutil.rmtree(other / "knowledge")
    write_knowledge_base(other / "knowledge", entries, name="kb", image_root="..", shard_size=10)
    with pytest.raises(UserError):
        experiment.run(config(other, encoder, checkpoints, tmp_path / "out", pipelines=["mr2ag"]))


def test_a_data_set_that_says_little_runs_to_the_report(make, encoder, checkpoints, tmp_path) -> None:
    folder = tmp_path / "data"
    (folder / "images").mkdir(parents=True)
    Image.new("RGB", (64, 64), "red").save(folder / "images/a.png")
    entry = Entry(id="e0", title="Title", images=("images/a.png",), sections=(Section("", "A red thing."),))
    question = make.question(0, requires_retrieval=None)
    write_world(folder, encoder, [entry], [question])
    metrics = experiment.run(config(folder, encoder, checkpoints, tmp_path / "out", splits=["val_unseen_entity"]))
    assert metrics["relevance"] == {"within_article": None, "look_alikes": None, "by_attribute": {}}
    report = (tmp_path / "out/report.html").read_text()
    assert "not expected to be right" in re.sub(r"\s+", " ", report)
    assert "no evidence" in report


def test_mmkb_rag_runs_to_metrics_and_a_report(world, encoder, prompted, tmp_path) -> None:
    wanted = config(world, encoder, prompted, tmp_path, **MMKB)
    metrics = experiment.run(wanted)
    assert {name: len(rows) for name, rows in kept(tmp_path).items()} == {
        "closed_book.jsonl": 5,
        "mmkb_rag.jsonl": 5,
        "naive_rag_article.jsonl": 4,
        "naive_rag_articles.jsonl": 4,
        "naive_rag_passages.jsonl": 4,
        "reflection.jsonl": 5,
        "retrieval.jsonl": 4,
    }
    assert metrics["comparisons"]["mmkb_rag - best_baseline"]["n"] == 4
    decisions = metrics["reflection"]
    assert (
        decisions["ret_knowledge"]["overall"]["accuracy"]["n"]
        == decisions["srt"]["overall"]["stating_retrieved"]["n"]
        == 4
    )
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


def test_a_closed_gate_answers_as_the_base_model_does_alone(world, encoder, prompted, tmp_path) -> None:
    settings = {**MMKB, "pipelines": ["closed_book", "mmkb_rag"], "gamma": 1.0}
    experiment.run(config(world, encoder, prompted, tmp_path, **settings))
    rows_by_file = kept(tmp_path)
    answers = {row["id"]: (row["answer"], row["confidence"]) for row in rows_by_file["closed_book.jsonl"]}
    assert {row["id"]: (row["answer"], row["confidence"]) for row in rows_by_file["mmkb_rag.jsonl"]} == answers
    assert not any(row["retrieved"] for row in rows_by_file["mmkb_rag.jsonl"])


def test_the_tuned_model_can_answer_without_a_base_model(world, encoder, prompted, tmp_path) -> None:
    settings = {**MMKB, "pipelines": ["mmkb_rag"], "base_model": "", "answer_model": "tuned"}
    metrics = experiment.run(config(world, encoder, prompted, tmp_path, **settings))
    assert metrics["pipelines"]["mmkb_rag"]["overall"]["n"] == 4
    assert metrics["reflection"]["ret"]["overall"]["accuracy"] is None
    assert "RET is not measured" in (tmp_path / "report.html").read_text()
    with pytest.raises(UserError, match="other settings"):
        experiment.run(config(world, encoder, prompted, tmp_path, **{**settings, "k": 2}))


def test_another_base_model_does_not_mix(world, encoder, prompted, tmp_path) -> None:
    settings = {**MMKB, "pipelines": ["mmkb_rag"]}
    experiment.run(config(world, encoder, prompted, tmp_path, **settings))
    other = tmp_path / "other"
    shutil.copytree(prompted.base, other)
    (other / "config.json").write_text((other / "config.json").read_text() + "\n")
    with pytest.raises(UserError, match="other settings"):
        experiment.run(config(world, encoder, prompted, tmp_path, **{**settings, "base_model": str(other)}))


def test_a_checkpoint_of_another_scheme_is_refused(world, encoder, checkpoints, tmp_path) -> None:
    with pytest.raises(UserError, match="trained with scheme mr2ag, but mmkb_rag is asked for"):
        experiment.run(config(world, encoder, checkpoints, tmp_path, **{**MMKB, "pipelines": ["mmkb_rag"]}))


def test_a_single_question_is_answered_by_the_pipeline_of_the_checkpoint(world, encoder, prompted) -> None:
    settings = {
        "dataset": str(world),
        "index": str(world / "index"),
        "encoder": encoder,
        "model": prompted.tuned,
        "image": str(world / "images/e1.png"),
        "question": "What does it eat?",
        "gamma": 0.0,
        "k": 2,
        "max_new_tokens": 4,
        "device": "cpu",
    }
    trace = single.answer(AnswerConfig(**settings, base_model=prompted.base))
    assert (trace.pipeline, len(trace.passages), len(trace.kept)) == ("mmkb_rag", 6, 2)
    text = explain(trace)
    assert text.startswith("decision: look it up")
    assert text.count("kept ") == 2
    with pytest.raises(UserError, match="`base_model` is needed"):
        single.answer(AnswerConfig(**settings))


def test_a_single_question_is_answered(world, encoder, checkpoints) -> None:
    wanted = AnswerConfig(
        dataset=str(world),
        index=str(world / "index"),
        encoder=encoder,
        model=checkpoints.tuned,
        image=str(world / "images/e1.png"),
        question="What does it eat?",
        gamma=0.0,
        max_new_tokens=4,
        device="cpu",
    )
    trace = single.answer(wanted)
    assert trace.retrieved
    assert len(trace.passages) == 6
    assert [hit.rank for hit in trace.hits] == sorted(hit.rank for hit in trace.hits)
    assert explain(trace).startswith("decision: look it up")


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llava"], indirect=True)  # the runner is the same for every family
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_killed_run_resumes_to_the_same_traces(
    form: str, world, encoder, checkpoints, tmp_path, start_program
) -> None:
    settings = {"pipelines": ["closed_book", "mr2ag"], "batch_questions": 1, "limit": 2, "traces": form}
    straight = experiment.run(config(world, encoder, checkpoints, tmp_path / "straight", **settings))
    wanted = config(world, encoder, checkpoints, tmp_path / "killed", **settings)
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
    flags = [f"--{name}" for name in ("dataset", "index", "encoder", "model", "base_model", "output", "device")]
    values = [getattr(wanted, flag[2:]) for flag in flags]
    numbers = ["--max_new_tokens", "4", "--batch_questions", "1", "--limit", "2", "--traces", wanted.traces]
    numbers += ["--pipelines", *wanted.pipelines]
    program = start_program(["-m", "reflectune", "evaluate", *sum(zip(flags, values, strict=True), ()), *numbers])
    traces = Path(wanted.output, "traces")
    deadline = time.monotonic() + 120
    while not any(path.read_bytes().count(b"\n") > 1 for path in traces.rglob("*.jsonl")):
        assert program.poll() is None, program.stderr
        assert time.monotonic() < deadline
        time.sleep(0.01)
    program.kill()


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real photographs and Wikipedia rows are not there")
def test_real_photographs_and_articles_run_to_the_report(encoder, checkpoints, tmp_path) -> None:
    gallery, slices = SHARED / "infoseek_gallery", SHARED / "kb_slices"
    rows = [json.loads(line) for line in (gallery / "questions.jsonl").read_text().splitlines()]
    questions = [
        Question(
            id=row["data_id"],
            image=str(gallery / "images" / f"{row['image_id']}.jpg"),
            text=row["question"],
            answers=tuple(row["answer"]),
            split=row["data_split"],
        )
        for row in rows[:4]
    ]
    articles = [json.loads(line) for line in (slices / "wiki6m_10rows.jsonl").read_text().splitlines()]
    entries = [
        Entry(
            id=row["wikidata_id"],
            title=row["wikipedia_title"],
            summary=row["wikipedia_summary"],
            images=("photo.jpg",),
            sections=(Section("", row["wikipedia_content"]),),
        )
        for row in articles
    ]
    folder = tmp_path / "real"
    folder.mkdir()
    shutil.copy(slices / "photo.jpg", folder)
    write_world(folder, encoder, entries, questions, image_root=str(SHARED))
    metrics = experiment.run(
        config(folder, encoder, checkpoints, tmp_path / "out", splits=["val_unseen_entity"], top_n=2)
    )
    assert metrics["pipelines"]["mr2ag"]["unseen_entity"]["n"] == 4
    assert "not expected to be right" in re.sub(r"\s+", " ", (tmp_path / "out/report.html").read_text())
