from dataclasses import replace
from pathlib import Path

import pytest

from reflectune.core.durable import write_json
from reflectune.core.types import Question
from reflectune.data_builders.mr2ag import selection
from reflectune.data_builders.mr2ag.selection import QuestionSettings, select_questions
from reflectune.formats.dataset import Dataset, write_questions


def write(root: Path, kinds: str) -> Dataset:
    """Write a data set of one split: `k` is a knowledge-based question, `v` a visual-dependent one, `?` unknown."""
    truth = {"k": True, "v": False, "?": None}
    questions = [
        Question(f"{kind}{i}", f"images/{i}.png", "Which?", ("x",), requires_retrieval=truth[kind])
        for i, kind in enumerate(kinds)
    ]
    write_json(root / "dataset.json", {"name": "d", "fingerprint": "f"})
    write_questions(root, "train", questions)
    return Dataset(root)


def ids(questions: list[Question]) -> list[str]:
    return [question.id for question in questions]


def test_a_question_of_unknown_kind_is_selected_so_that_it_can_be_reported(tmp_path: Path) -> None:
    knowledge, visual = select_questions(write(tmp_path, "kv?vk"), QuestionSettings(), seed=0)
    assert ids(knowledge) == ["k0", "?2", "k4"]
    assert sorted(ids(visual)) == ["v1", "v3"]


def test_two_hop_questions_can_be_left_out_before_the_limit_draws(tmp_path: Path) -> None:
    dataset = write(tmp_path, "kkv")
    asked = [replace(q, meta={"two_hop": "yes"}) if q.id == "k0" else q for q in dataset.stream("train")]
    write_questions(tmp_path, "train", asked)
    dataset = Dataset(tmp_path)
    assert ids(select_questions(dataset, QuestionSettings(), seed=0)[0]) == ["k0", "k1"]
    for seed in range(4):
        assert ids(select_questions(dataset, QuestionSettings(two_hop=False, limit=1), seed)[0]) == ["k1"]


def test_a_limit_keeps_the_order_of_the_file_and_draws_by_seed(tmp_path: Path) -> None:
    dataset = write(tmp_path, "k" * 50)
    drawn = {seed: ids(select_questions(dataset, QuestionSettings(limit=10), seed)[0]) for seed in range(3)}
    assert all(len(set(names)) == 10 for names in drawn.values())
    assert all(names == sorted(names, key=lambda name: int(name[1:])) for names in drawn.values())
    assert len({tuple(names) for names in drawn.values()}) == 3


def test_no_more_visual_questions_are_held_than_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = write(tmp_path, "k" * 10 + "v" * 200)
    _, everything = select_questions(dataset, QuestionSettings(visual_ratio=0.5), seed=0)
    monkeypatch.setattr(selection, "SPARE", 5)
    _, visual = select_questions(dataset, QuestionSettings(visual_ratio=0.5), seed=0)
    assert len(everything) == 200
    assert ids(visual) == ids(everything)[: 10 + 5]  # the same draw, cut


def test_another_split_of_the_same_data_set_can_be_named(tmp_path: Path) -> None:
    dataset = write(tmp_path, "kkv")
    write_questions(tmp_path, "seen", [Question("s", "i.png", "Which?", ("x",), requires_retrieval=False)])
    knowledge, visual = select_questions(dataset, QuestionSettings(visual_split="seen"), seed=0)
    assert (ids(knowledge), ids(visual)) == (["k0", "k1"], ["s"])


def test_an_id_that_both_data_sets_have_gets_the_data_sets_name(tmp_path: Path) -> None:
    here, there = write(tmp_path / "here", "kk"), write(tmp_path / "there", "v")
    seen = Question("", "i.png", "Which?", ("x",), requires_retrieval=False)
    names = ("k0", "k1", "d: k1", "v0")
    write_questions(there.root, "train", [replace(seen, id=name) for name in names])
    settings = QuestionSettings(visual_dataset=str(there.root), visual_ratio=0.5)
    knowledge, visual = select_questions(here, settings, seed=0)
    assert ids(knowledge) == ["k0", "k1"]
    assert sorted(ids(visual)) == ["d: d: k1", "d: k0", "d: k1", "v0"]
    assert select_questions(here, settings, seed=0)[1] == visual


def test_a_data_set_without_a_name_is_called_by_its_folder(tmp_path: Path) -> None:
    here, there = write(tmp_path / "here", "k"), write(tmp_path / "there", "v")
    write_questions(there.root, "train", [Question("k0", "i.png", "Which?", ("x",), requires_retrieval=False)])
    write_json(there.root / "dataset.json", {"fingerprint": "f"})
    _, visual = select_questions(here, QuestionSettings(visual_dataset=str(there.root)), seed=0)
    assert ids(visual) == ["there: k0"]
