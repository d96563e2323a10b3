from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.data_builders.dataset import Dataset, write_questions
from reflectune.data_builders.probing.questions import count_free_form, select_questions, windows


def dataset(folder: Path, questions: list[Question]) -> Dataset:
    write_questions(folder, "train", questions)
    (folder / "dataset.json").write_text(json.dumps({"fingerprint": "f"}))
    return Dataset(folder)


@pytest.fixture
def twenty(tmp_path: Path) -> Dataset:
    return dataset(tmp_path, [Question(f"q{i}", "i.png", "What?", requires_retrieval=i % 2 == 0) for i in range(20)])


def test_what_the_model_was_trained_on_is_left_out(twenty: Dataset) -> None:
    every = [q.id for q in select_questions(twenty, "train", seed=3)]
    without = {"q3", "q4", "another's"}

    left = [q.id for q in select_questions(twenty, "train", seed=3, without=without)]
    assert left == [question_id for question_id in every if question_id not in without]
    with pytest.raises(UserError, match="tuned on all 20 questions of train"):
        select_questions(twenty, "train", without=set(every))


def test_a_higher_limit_adds_to_what_a_lower_one_takes(twenty: Dataset) -> None:
    every = [q.id for q in select_questions(twenty, "train", seed=3)]

    assert sorted(every) == sorted(q.id for q in twenty.questions("train"))
    assert every != sorted(every)
    for limit in (1, 7, 20, 30):
        assert [q.id for q in select_questions(twenty, "train", limit=limit, seed=3)] == every[:limit]
    assert every != [q.id for q in select_questions(twenty, "train", seed=4)]


def test_visual_questions_can_be_left_out(twenty: Dataset) -> None:
    selected = select_questions(twenty, "train", visual=False)

    assert len(selected) == 10
    assert all(q.requires_retrieval for q in selected)


def test_answers_in_sentences_are_left_out_and_counted(tmp_path: Path) -> None:
    kinds = ("string", "free_form", "multi_answer", "free_form")
    mixed = [
        Question(f"q{i}", "i.png", "What?", answer_type=kind, requires_retrieval=i != 1) for i, kind in enumerate(kinds)
    ]
    told = dataset(tmp_path / "mixed", mixed)
    assert {q.id for q in select_questions(told, "train")} == {"q0", "q2"}
    assert (count_free_form(told, "train"), count_free_form(told, "train", visual=False)) == (2, 1)

    only = dataset(tmp_path / "only", mixed[1::2])
    with pytest.raises(UserError, match="nothing to probe in train but 2 free-form questions, whose answers no metric"):
        select_questions(only, "train")


def test_nothing_to_probe_and_repeated_ids_are_refused(tmp_path: Path) -> None:
    visual = dataset(tmp_path / "visual", [Question("q", "i", "?", requires_retrieval=False)])
    with pytest.raises(UserError, match="nothing to probe in train"):
        select_questions(visual, "train", visual=False)
    twice = dataset(tmp_path / "twice", [Question("q7", "i", "?"), Question("q7", "i", "?")])
    with pytest.raises(UserError, match="two questions of train have the id q7"):
        select_questions(twice, "train")


@given(st.integers(0, 50), st.integers(1, 9))
def test_windows_hold_every_question_once_and_in_order(count: int, size: int) -> None:
    cut = windows(list(range(count)), size)

    assert [number for window in cut for number in window] == list(range(count))
    assert all(len(window) == size for window in cut[:-1])
