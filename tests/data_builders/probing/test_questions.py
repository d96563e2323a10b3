import json
from pathlib import Path

import pytest

from reflectune.core.errors import UserError
from reflectune.core.types import AnswerType, Question
from reflectune.data_builders.probing.questions import count_free_form, facts, select_questions
from reflectune.formats.dataset import Dataset, write_questions


def dataset(folder: Path, questions: list[Question]) -> Dataset:
    write_questions(folder, "train", questions)
    (folder / "dataset.json").write_text(json.dumps({"fingerprint": "f"}))
    return Dataset(folder)


@pytest.fixture
def twenty(tmp_path: Path) -> Dataset:
    return dataset(tmp_path, [Question(f"q{i}", "i.png", "What?", requires_retrieval=i % 2 == 0) for i in range(20)])


def test_training_questions_are_left_out(twenty: Dataset) -> None:
    every = [q.id for q in select_questions(twenty, "train", seed=3)]
    without = {"q3", "q4", "another's"}
    left = [q.id for q in select_questions(twenty, "train", seed=3, without=without)]
    assert left == [question_id for question_id in every if question_id not in without]
    with pytest.raises(UserError, match="tuned on all 20 questions of train"):
        select_questions(twenty, "train", without=set(every))


def about(
    question_id: str, entities: str, answers: str, *, kind: AnswerType = "string", knowledge: bool = True
) -> Question:
    given, names = tuple(answers.split("|")), tuple(entities.split())
    return Question(question_id, f"{question_id}.png", "What?", given, None, kind, "", knowledge, names)


ASKED = [
    about("tuned", "France", "Paris|City of Light"),
    about("tuned by looking", "Peru", "red", knowledge=False),
    about("again", "France", "paris "),
    about("by another name", "France", "city of  light|Lutetia"),
    about("two hops", "Gallia France", "Paris"),
    about("its other fact", "France", "Loire"),
    about("another's", "Texas", "Paris"),
    about("by looking", "France", "Paris", knowledge=False),
    about("seen there", "Peru", "red"),
]


def test_questions_on_training_facts_can_be_left_out(tmp_path: Path) -> None:
    asked, tuned = dataset(tmp_path, ASKED), {"tuned", "tuned by looking"}
    by_question = {q.id for q in select_questions(asked, "train", without=tuned)}
    by_fact = {q.id for q in select_questions(asked, "train", without=tuned, without_facts=True)}
    assert by_question == {q.id for q in ASKED} - tuned
    assert by_question - by_fact == {"again", "by another name", "two hops"}


def test_a_fact_is_left_out_whichever_part_it_was_tuned_in(tmp_path: Path) -> None:
    asked = dataset(tmp_path, [*ASKED, about("of the same part", "Chad", "Paris")])
    first = Dataset(tmp_path, "1/2")  # Gallia's and Chad's, not France's
    assert {q.id for q in select_questions(first, "train")} == {"two hops", "of the same part"}
    left = select_questions(first, "train", without={"tuned"}, without_facts=True)
    assert [q.id for q in left] == ["of the same part"]
    only = dataset(tmp_path / "only", ASKED[:1] + ASKED[2:4])
    with pytest.raises(UserError, match="tuned on all 3 questions of train that could be asked, or on the facts"):
        select_questions(only, "train", without={"tuned"}, without_facts=True)
    assert select_questions(asked, "train", without_facts=True) == select_questions(asked, "train")


def test_data_of_other_questions_leave_nothing_out_and_are_refused(twenty: Dataset) -> None:
    with pytest.raises(UserError, match=r"`trained_on` has no question of train in .*, e\.g\. q3 mi_rag 0;"):
        select_questions(twenty, "train", without={"q3 mi_rag 0", "q4 mi_rag 0"})


def test_a_question_that_names_no_entity_is_about_its_image() -> None:
    asked = Question("q", "a.png", "What?", ("Two  Words", "two words", "2"))
    assert facts(asked) == {("a.png", "two words"), ("a.png", "2")}
    assert facts(Question("q", "a.png", "How high?", range=(9.0, 11.5))) == {("a.png", "9.0 to 11.5")}


def test_a_higher_limit_adds_to_the_questions_of_a_lower_one(twenty: Dataset) -> None:
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
    asked = dataset(tmp_path / "mixed", mixed)
    assert {q.id for q in select_questions(asked, "train")} == {"q0", "q2"}
    assert (count_free_form(asked, "train"), count_free_form(asked, "train", visual=False)) == (2, 1)
    only = dataset(tmp_path / "only", mixed[1::2])
    with pytest.raises(UserError, match="nothing to probe in train but 2 free-form questions, whose answers no metric"):
        select_questions(only, "train")


def test_nothing_to_probe_is_refused(tmp_path: Path) -> None:
    visual = dataset(tmp_path / "visual", [Question("q", "i", "?", requires_retrieval=False)])
    with pytest.raises(UserError, match="nothing to probe in train"):
        select_questions(visual, "train", visual=False)
