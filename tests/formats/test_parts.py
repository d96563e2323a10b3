from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.core.config import find_problems
from reflectune.core.durable import write_json
from reflectune.core.types import Question
from reflectune.data_builders.mr2ag.selection import QuestionSettings
from reflectune.data_builders.mr2ag.selection import select_questions as questions_of_training
from reflectune.data_builders.probing.questions import select_questions as questions_to_probe
from reflectune.formats.dataset import Dataset, write_questions
from reflectune.formats.parts import is_in_part, part_problem


@given(
    subjects=st.lists(st.tuples(st.text(min_size=1, max_size=8), st.booleans()), min_size=1, max_size=40),
    parts=st.integers(1, 5),
)
def test_each_question_is_in_one_part_with_all_others_about_its_subject(subjects, parts) -> None:
    questions = [
        Question(f"q{i}", name, "What?", entity_ids=("e" + name, "another") if has_entity else ())
        for i, (name, has_entity) in enumerate(subjects)
    ]
    by_subject: dict[str, set[int]] = {}
    for question in questions:
        (number,) = (n for n in range(1, parts + 1) if is_in_part(question, f"{n}/{parts}"))
        by_subject.setdefault(next(iter(question.entity_ids), question.image), set()).add(number)
        assert is_in_part(question, "")
    assert all(len(numbers) == 1 for numbers in by_subject.values())


def test_parts_are_about_equal() -> None:
    questions = [Question(f"q{i}", f"{i}.png", "What?", entity_ids=(f"e{i}",)) for i in range(2000)]
    assert [sum(is_in_part(q, f"{n}/4") for q in questions) for n in (1, 2, 3, 4)] == pytest.approx([500] * 4, rel=0.1)


@pytest.mark.parametrize("value", ["0/2", "3/2", "1/0", "half", "1", "1/2/3", "-1/2", "1/2 ", "١/٢"])
def test_an_invalid_name_of_a_part_is_refused(value: str) -> None:
    assert f"found `{value}`" in part_problem(value)
    assert any("`part` must be like 1/2" in problem for problem in find_problems(QuestionSettings, {"part": value}))
    with pytest.raises(ValueError, match="a part must be like 1/2"):
        is_in_part(Question("q", "i.png", "What?"), value)


def test_two_parts_have_no_entity_in_common(tmp_path: Path) -> None:
    questions = [
        Question(f"q{i}", f"{i % 30}.png", "What?", ("x",), requires_retrieval=i % 3 > 0, entity_ids=(f"e{i % 30}",))
        for i in range(90)
    ]
    write_json(tmp_path / "dataset.json", {"fingerprint": "f"})
    write_questions(tmp_path, "train", questions)
    knowledge, visual = questions_of_training(
        Dataset(tmp_path, "1/2"), QuestionSettings(visual_ratio=0.4, part="1/2"), seed=0
    )
    probed = questions_to_probe(Dataset(tmp_path, "2/2"), "train")
    trained = knowledge + visual
    assert {q.id for q in trained} | {q.id for q in probed} == {q.id for q in questions}
    assert not {q.entity_ids for q in trained} & {q.entity_ids for q in probed}
    assert trained
    assert probed
