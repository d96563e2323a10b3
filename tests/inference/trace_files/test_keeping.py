"""Traces in JSONL and in Parquet: what is kept comes back, however often a run is killed, and by how many processes."""

import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from reflectune.core.durable import read_rows
from reflectune.core.errors import UserError
from reflectune.core.launching import ALONE, Processes
from reflectune.core.resumable import Row
from reflectune.core.types import Passage, Question
from reflectune.formats.hits import Hit
from reflectune.inference.reading.document_choice import MctTrace
from reflectune.inference.report import charts
from reflectune.inference.running.facts import minutes
from reflectune.inference.scoring.evaluation import evaluate
from reflectune.inference.scoring.scores import TraceScorer
from reflectune.inference.trace import FoundPassage, PassageTrace, Step, Trace, to_row
from reflectune.inference.trace_files.columns import with_texts
from reflectune.inference.trace_files.keeping import TraceForm, TraceStore
from reflectune.inference.trace_files.reading import read_traces, trace_files

COUNT, BATCH = 23, 4
PIPELINES = ("closed_book", "mr2ag", "relevance", "retrieval", "reflection", "pmsr")
IDS = [f"q{number:03d}" for number in range(COUNT)]
FORMS = ("jsonl", "parquet")


def passage(entry: int, index: int) -> Passage:
    return Passage(f"e{entry}", 1, index, f"Title {entry}", "It is one.", "Diet", f"“It” eats {index} × mice.\n" * 3)


def trace(question_id: str, pipeline: str = "mr2ag") -> Trace:
    """A trace in which most fields are set, and some are missing."""
    drawn = random.Random(f"{question_id} {pipeline}")
    entries = drawn.sample(range(9), 2)
    passages = tuple(
        PassageTrace(
            passage(entry, index),
            s_ret=entry / 7,
            s_rel=float(np.float32(drawn.random())) if index else None,
            s_irr=drawn.random(),
            answer="mice" if drawn.random() < 0.3 else None,
            s_ans=drawn.random() if drawn.random() < 0.3 else None,
            source=("same_article", "gold", "stating")[index % 3],
        )
        for entry in entries
        for index in range(drawn.randrange(4))
    )
    hits = tuple(
        Hit(f"e{entry}", entry / 7, rank + 1, kb="kb", parts={"image": 0.5}) for rank, entry in enumerate(entries)
    )
    found = FoundPassage("e1#1.0", "e1", "texts", 0, 1, 0.25)
    return Trace(
        question_id,
        pipeline,
        answer=drawn.choice(["", "mice", "Mäuse"]),
        confidence=drawn.choice([None, 0.5]),
        gate=drawn.random(),
        retrieved=True,
        hits=hits,
        passages=passages,
        chosen=0 if passages else None,
        kept=(1, 0),
        mct=drawn.choice([None, MctTrace("[1]", 3, keep=(1,), problem="")]),
        steps=drawn.choice([(), (Step("search", 0, queries=("a", "b"), found=(found,), each=(0.5, 0.25)),)]),
        seconds={"read": drawn.random()},
        tokens={"generated": 4},
    )


TRACES = {question_id: trace(question_id) for question_id in IDS}


class Killed(BaseException):
    """Stands for `kill -9`."""


class Answerer:
    """Answers batches with `TRACES`; it is killed before its `dies`-th answer."""

    def __init__(self, dies: int = -1) -> None:
        self.answered: list[str] = []
        self._dies = dies

    def __call__(self, batch: Sequence[Question]) -> Iterator[tuple[str, Row]]:
        for question in batch:
            if len(self.answered) == self._dies:
                raise Killed
            self.answered.append(question.id)
            yield question.id, to_row(TRACES[question.id])


@pytest.fixture
def questions(make) -> list[Question]:
    return [make.question(number) for number in range(COUNT)]


def store(folder: Path, form: TraceForm = "parquet", max_logged: int = 12_000) -> TraceStore:
    return TraceStore(folder, "mr2ag", "f", form, max_logged)


def fill(kept: TraceStore, questions: Sequence[Question], answerer: Answerer | None = None, processes=ALONE):
    return kept.fill(questions, answerer or Answerer(), BATCH, processes)


def whole(folder: Path) -> dict[str, Trace]:
    """Return the rows of the merged file, in order."""
    return {each.question_id: each for each in read_traces(trace_files(folder)["mr2ag"])}


def test_scores_see_all_but_passages_text(questions, tmp_path: Path) -> None:
    traces = fill(store(tmp_path), questions)
    assert list(traces) == IDS
    for key, each in traces.items():
        assert [(p.scores, p.relevant) for p in each.passages] == [(p.scores, p.relevant) for p in TRACES[key].passages]
    with pytest.raises(AttributeError, match="no attribute 'passage'"):
        [read.passage for each in traces.values() for read in each.passages]
    assert with_texts(traces, ["q002", "q001"]) == {key: TRACES[key] for key in ("q002", "q001")}


def test_scores_are_the_same_in_either_form(make, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(charts, "figures", list)  # their data, not drawn
    splits = ("val_unseen_question", "val_unseen_entity")
    about = [{"requires_retrieval": n % 3 > 0, "entity_ids": (f"e{n}",)} for n in range(COUNT)]
    asked = [make.question(n, splits[n % 2], "mice", **each, evidence=make.evidence()) for n, each in enumerate(about)]
    measure = TraceScorer("infoseek")
    metrics = {}
    for form in FORMS:
        traces = {}
        for name in PIPELINES:
            kept = TraceStore(tmp_path / form, name, "f", form, 5000)
            traces[name] = kept.fill(
                asked, lambda batch, name=name: ((q.id, to_row(trace(q.id, name))) for q in batch), BATCH, ALONE
            )
        scores = evaluate(asked[::-1], traces, measure=measure, gamma=0.5, seed=0)
        metrics[form] = [scores, minutes(traces), charts.charts(asked, traces, 0.5, measure)]
    assert metrics["parquet"] == metrics["jsonl"]
    assert len(metrics["jsonl"][2]) == 5
    assert metrics["jsonl"][0]["calibration"].keys() >= {"gate", "relevance", "srt"}
    assert metrics["jsonl"][0]["trajectories"].keys() >= {"pmsr"}


def test_only_the_questions_asked_for_are_there(questions, tmp_path: Path) -> None:
    fill(store(tmp_path), questions)
    some = fill(store(tmp_path), questions[3:5])
    assert list(some) == IDS[3:5]
    assert "q000" not in some
    assert with_texts(some, IDS).keys() == set(IDS[3:5])
    with pytest.raises(KeyError):
        some["q000"]


def test_each_passage_is_written_once(questions, tmp_path: Path) -> None:
    fill(store(tmp_path), questions)
    texts = pq.read_table(tmp_path / "mr2ag.passages.parquet").to_pylist()
    read = {read.passage for each in TRACES.values() for read in each.passages}
    assert len(texts) == len(read)
    assert {Passage(**{name: row[name] for name in row if name != "key"}) for row in texts} == read


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dies", [1, 6, 13, 22])
def test_a_killed_run_ends_as_a_straight_one(form: TraceForm, dies: int, questions, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        fill(store(tmp_path / "killed", form), questions, Answerer(dies))
    resumed = Answerer()
    traces = fill(store(tmp_path / "killed", form), questions, resumed)
    assert resumed.answered == IDS[dies - dies % BATCH :]  # whole batches again, and no finished one
    assert list(traces) == IDS
    assert list(whole(tmp_path / "killed").items()) == list(TRACES.items())
    assert not (tmp_path / "killed/parts").exists()


@pytest.mark.parametrize(
    ("before", "then", "file"),
    [(a, b, n) for a in FORMS for b in FORMS for n in range(3 if a == b == "parquet" else 4)],  # files of the merge
)
def test_a_run_killed_while_it_merges_ends_well(
    before, then, file: int, questions, tmp_path: Path, monkeypatch
) -> None:
    """Kill a merge before it replaces or deletes its `file`-th file."""
    fill(store(tmp_path, before), questions[:6])
    left = [file]

    def dying(do):
        def call(*paths, **options):
            if tmp_path in Path(paths[-1]).parents and Path(paths[-1]).suffix != ".partial":
                left[0] -= 1
                if left[0] < 0:
                    raise Killed
            return do(*paths, **options)

        return call

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", dying(os.replace))
        patched.setattr(Path, "unlink", dying(Path.unlink))
        with pytest.raises(Killed):
            fill(store(tmp_path, then), questions)
    fill(store(tmp_path, then), questions)
    assert list(whole(tmp_path).items()) == list(TRACES.items())


@pytest.mark.parametrize("form", FORMS)
def test_parts_of_other_processes_are_merged(form: TraceForm, questions, tmp_path: Path) -> None:
    for process in (2, 1):
        with pytest.raises(RuntimeError, match="wait"):
            fill(store(tmp_path, form), questions, processes=Processes(process, 3, _second_time_fails()))
    last = Answerer()
    fill(store(tmp_path, form), questions, last)
    assert set(last.answered) == {key for start in range(0, COUNT, 3 * BATCH) for key in IDS[start : start + BATCH]}
    assert list(whole(tmp_path).items()) == list(TRACES.items())


@pytest.mark.parametrize("form", FORMS)
def test_an_answer_replaces_the_failure_that_another_process_logged(form: TraceForm, questions, tmp_path: Path) -> None:
    """Process 1 failed at its questions and was killed; one process alone goes on."""

    def failing(batch):
        return [(question.id, to_row(Trace(question.id, "mr2ag", error="no image"))) for question in batch]

    with pytest.raises(RuntimeError, match="wait"):
        fill(store(tmp_path, form), questions, failing, processes=Processes(1, 2, _second_time_fails()))
    fill(store(tmp_path, form), questions)
    assert list(whole(tmp_path).items()) == list(TRACES.items())


@pytest.mark.parametrize("form", FORMS)
def test_a_higher_budget_keeps_the_cut_short_traces_of_questions_that_are_not_asked(form, questions, tmp_path) -> None:
    cut = {key: replace(each, limit={"run_tokens": 10.0}) for key, each in TRACES.items()}
    fill(store(tmp_path, form), questions, lambda batch: [(q.id, to_row(cut[q.id])) for q in batch])
    store(tmp_path, form).fill(questions[:BATCH], Answerer(), BATCH, ALONE, is_outdated=lambda row: bool(row["limit"]))
    assert whole(tmp_path) == cut | {key: TRACES[key] for key in IDS[:BATCH]}


def _second_time_fails():
    """A wait for others that is cut off behind one's own work."""
    calls: list[None] = []

    def wait() -> None:
        calls.append(None)
        if len(calls) == 2:
            raise RuntimeError("the wait was cut off")

    return wait


@pytest.mark.parametrize(
    ("first", "then", "ends"),
    [
        ("jsonl", "parquet", ".parquet"),
        ("parquet", "jsonl", ".jsonl"),
        ("jsonl", "auto", ".parquet"),
        ("parquet", "auto", ".parquet"),
    ],
    ids=["to-parquet", "to-jsonl", "grows-long", "stays"],
)
def test_a_run_goes_on_in_another_form(first, then, ends: str, questions, tmp_path: Path) -> None:
    fill(store(tmp_path, first), questions[:9])
    added = Answerer()
    fill(store(tmp_path, then), questions, added)
    assert added.answered == IDS[8:]
    assert trace_files(tmp_path)["mr2ag"].suffix == ends
    assert len([*tmp_path.iterdir()]) == (1 if ends == ".jsonl" else 2)
    assert list(whole(tmp_path).items()) == list(TRACES.items())


def test_short_logs_stay_jsonl_by_themselves_however_many_processes_wrote_them(questions, tmp_path: Path) -> None:
    fill(store(tmp_path, "auto", 10**6), questions)
    assert trace_files(tmp_path)["mr2ag"].suffix == ".jsonl"
    size = (tmp_path / "mr2ag.jsonl").stat().st_size
    for most, ends in ((2 * size, ".jsonl"), (size // 2, ".parquet")):  # either is more than one process has
        folder = tmp_path / ends
        for process in (1, 2):
            with pytest.raises(RuntimeError):
                fill(store(folder, "auto", most), questions, processes=Processes(process, 3, _second_time_fails()))
        fill(store(folder, "auto", most), questions)
        assert trace_files(folder)["mr2ag"].suffix == ends


def test_a_passage_that_another_files_texts_lack_is_an_error(questions, tmp_path: Path) -> None:
    fill(store(tmp_path), questions)
    fill(store(tmp_path / "other"), questions[:2])
    (tmp_path / "other/mr2ag.passages.parquet").replace(tmp_path / "mr2ag.passages.parquet")
    with pytest.raises(UserError, match=r"passages are not in .*mr2ag\.passages\.parquet"):
        whole(tmp_path)


@pytest.mark.parametrize("name", ["mr2ag.parquet", "mr2ag.passages.parquet"])
def test_a_changed_bit_is_noticed_or_changes_nothing(name: str, questions, tmp_path: Path) -> None:
    fill(store(tmp_path), questions)
    path = tmp_path / name
    content = path.read_bytes()
    noticed = 0
    for place in range(7, len(content), len(content) // 60):
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        try:
            read = whole(tmp_path)
        except UserError as error:
            noticed += name in str(error)
        else:
            assert read == TRACES
    assert noticed > 20


@pytest.mark.parametrize("form", FORMS)
def test_other_settings_are_refused(form: TraceForm, questions, tmp_path: Path) -> None:
    fill(store(tmp_path, form), questions)
    with pytest.raises(UserError, match="other settings"):
        fill(replace(store(tmp_path, form), fingerprint="g"), questions)


def test_a_damaged_file_and_a_table_of_another_version_are_named(questions, tmp_path: Path) -> None:
    fill(store(tmp_path), questions)
    path = tmp_path / "mr2ag.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["limit"]), path)
    with pytest.raises(UserError, match=r"written by another version.*move it away"):
        fill(store(tmp_path), questions)
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(UserError, match=r"mr2ag\.parquet can't be read"):
        fill(store(tmp_path), questions)


def test_both_forms_are_the_same_to_a_reader_of_lines(questions, tmp_path: Path) -> None:
    fill(store(tmp_path, "parquet"), questions)
    fill(store(tmp_path / "lines", "jsonl"), questions)
    rows: list[Mapping] = [{"id": each.question_id, **to_row(each)} for each in read_traces(tmp_path / "mr2ag.parquet")]
    assert json.loads(json.dumps(rows)) == list(read_rows(tmp_path / "lines/mr2ag.jsonl"))
