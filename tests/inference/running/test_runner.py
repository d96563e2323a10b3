import dataclasses
import json
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from reflectune.core.durable import read_rows
from reflectune.core.errors import UnusableInput, UserError
from reflectune.core.types import Question
from reflectune.inference.running.runner import run_pipeline
from reflectune.inference.trace import Trace


class Counter:
    """A pipeline whose answer tells the company in which a question was answered."""

    name = "counter"

    def __init__(self, fail_at: int | None = None) -> None:
        self.batches: list[list[str]] = []
        self._fail_at = fail_at

    def run(self, questions: Sequence[Question], images: Sequence[Image.Image]) -> list[Trace]:
        if self._fail_at == len(self.batches):
            raise KeyboardInterrupt
        self.batches.append([question.id for question in questions])
        return [Trace(q.id, self.name, answer=f"{len(questions)} with {questions[0].id}") for q in questions]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "images/a.png")
    return tmp_path


def run(root: Path, pipeline: Counter, questions: list[Question], **keys: Any):
    keys = {"image_root": root, "folder": root / "traces", "fingerprint": "f", "on_error": "stop", **keys}
    return run_pipeline("counter", lambda: pipeline, questions, batch_questions=3, **keys)


def test_questions_are_answered_in_batches_in_the_order_of_their_ids(make, root: Path) -> None:
    pipeline = Counter()
    traces = run(root, pipeline, [make.question(i) for i in (3, 1, 4, 0, 2)])
    assert pipeline.batches == [["q000", "q001", "q002"], ["q003", "q004"]]
    assert list(traces) == ["q000", "q001", "q002", "q003", "q004"]
    assert [row["id"] for row in read_rows(root / "traces/counter.jsonl")] == list(traces)
    assert not (root / "traces/parts").exists()


def test_images_of_the_next_batch_are_made_ready_before_a_batch_is_answered(make, root: Path) -> None:
    ready: list[Image.Image] = []
    begun, waiting = threading.Event(), threading.Barrier(3)

    def prepare(image: Image.Image) -> None:
        waiting.wait(20)  # all three of the batch are prepared at a time
        ready.append(image)
        begun.set()

    class Watching(Counter):
        def run(self, questions: Sequence[Question], images: Sequence[Image.Image]) -> list[Trace]:
            is_first = not self.batches
            assert begun.wait(20) if is_first else any(image is ready[0] for image in images)
            return super().run(questions, images)

    questions = [make.question(i) for i in range(6)]
    traces = run(root, Watching(), questions, prepare=lambda: [prepare])
    assert len(ready) == 3  # those of the first batch are opened when it is answered
    assert traces == run(root, Counter(), questions, folder=root / "plain")


def test_an_image_that_cannot_be_made_ready_is_left_to_the_pipeline(make, root: Path) -> None:
    def prepare(image: Image.Image) -> None:
        raise UnusableInput("an odd image")

    questions = [make.question(i) for i in range(6)]
    assert len(run(root, Counter(), questions, prepare=lambda: [prepare])) == 6


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image": "images/missing.png"}, "image not found.*question q001"),
        ({"image": ""}, "question q001 has no image"),
        ({"text": "  "}, "question q001 has no text"),
    ],
)
def test_a_bad_question_stops_or_is_listed(make, root: Path, fields: dict[str, str], message: str) -> None:
    questions = [make.question(0), make.question(1, **fields), make.question(2)]
    with pytest.raises(UserError, match=message):
        run(root, Counter(), questions)
    traces = run(root, Counter(), questions, on_error="skip")
    assert [bool(trace.error) for trace in traces.values()] == [False, True, False]
    assert traces["q001"].answer == ""


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_failed_question_is_tried_again_by_the_next_run(make, root: Path, form) -> None:
    questions = [make.question(0), make.question(1, image="images/late.png"), make.question(2)]
    run(root, Counter(), questions, on_error="skip", form=form)
    with pytest.raises(UserError, match="image not found"):
        run(root, Counter(), questions, form=form)
    shutil.copy(root / "images/a.png", root / "images/late.png")
    pipeline = Counter()
    traces = run(root, pipeline, questions, form=form)
    assert pipeline.batches == [["q000", "q001", "q002"]]
    assert [trace.error for trace in traces.values()] == ["", "", ""]
    again = Counter()
    run(root, again, questions, form=form)
    assert again.batches == []


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_edited_questions_are_answered_again_and_moved_images_are_not(make, root: Path, form) -> None:
    questions = [dataclasses.replace(make.question(i), image="images/a.png") for i in range(5)]
    run(root, Counter(), questions, form=form)
    edited = dataclasses.replace(questions[4], text="Who wrote it?")
    again = Counter()
    traces = run(root, again, [*questions[:4], edited], form=form)
    assert again.batches == [["q003", "q004"]]
    assert len(traces) == 5
    (root / "dataset.json").write_text(json.dumps({"fingerprint": "f", "image_root": "moved"}))
    shutil.copytree(root / "images", root / "moved/images")
    moved = [dataclasses.replace(question, image="moved/images/a.png") for question in [*questions[:4], edited]]
    run(root, again, moved, form=form)
    assert len(again.batches) == 1


class Picky(Counter):
    """A pipeline that can't take one of the questions, which it doesn't name."""

    def run(self, questions: Sequence[Question], images: Sequence[Image.Image]) -> list[Trace]:
        if any(question.id == "q001" for question in questions):
            raise UnusableInput("a question with its passage is 5,000 tokens long")
        return super().run(questions, images)


def test_a_question_that_a_pipeline_cannot_take_is_named_and_left_out(make, root: Path) -> None:
    questions = [make.question(i) for i in range(4)]
    with pytest.raises(UserError, match=r"question q001: a question with its .* long; `on_error: skip` leaves it out"):
        run(root, Picky(), questions)
    traces = run(root, Picky(), questions, on_error="skip")
    assert [trace.answer for trace in traces.values()] == ["1 with q000", "", "1 with q002", "1 with q003"]
    assert traces["q001"].error == "question q001: a question with its passage is 5,000 tokens long"


def test_the_error_names_the_question_where_its_text_holds_the_id_of_another(make, root: Path) -> None:
    """An error that names no question of the batch was taken for one of `q00`, whose id begins that of `q001`."""

    class Quoting(Counter):
        def run(self, questions: Sequence[Question], images: Sequence[Image.Image]) -> list[Trace]:
            if any(question.id == "q001" for question in questions):
                raise UnusableInput("the server refuses `question q001: …`")
            return super().run(questions, images)

    questions = [dataclasses.replace(make.question(0), id="q00"), make.question(1)]
    with pytest.raises(UserError, match=r"^question q001: the server refuses .*; `on_error: skip` leaves it out"):
        run(root, Quoting(), questions)


def test_a_repeated_id_is_refused(make, root: Path) -> None:
    with pytest.raises(UserError, match="two questions have the id q001"):
        run(root, Counter(), [make.question(1), make.question(1)])
