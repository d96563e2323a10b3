import random

import pytest

from reflectune.examples.miniature.world import passage_lessons
from reflectune.examples.miniature.world.entities import ALL_LOOKS
from reflectune.examples.miniature.world.facts import RELATIONS
from reflectune.examples.miniature.world.passage_lessons import Librarian

HELD_OUT = {
    question.format(c=category)
    for relation in RELATIONS.values()
    for category in {looks.category for looks in ALL_LOOKS}
    for question in relation.wording(category).held_out
}
EXTRA = ("Chronicle.", "Errors.", "Neighbours.")


def headed(passage: str) -> str:
    """The heading of a passage, or the extra section's."""
    return next(h for h in (*EXTRA, *(f"{r.heading}." for r in RELATIONS.values())) if f" {h} " in f" {passage}")


def test_lessons_ask_in_words_that_training_may_use_and_exams_in_the_others() -> None:
    teacher, examiner = Librarian(random.Random(1)), Librarian(random.Random(1), held_out=True)
    assert not {question for _ in range(20) for question in teacher.lesson().questions} & HELD_OUT
    assert {question for _ in range(20) for question in examiner.exam(1).questions} <= HELD_OUT


def test_lessons_show_looks_that_training_may_use_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made, make = [], passage_lessons.make_entity
    monkeypatch.setattr(passage_lessons, "make_entity", lambda *a, **k: made.append(make(*a, **k)) or made[-1])
    teacher = Librarian(random.Random(2))
    for _ in range(20):
        teacher.lesson()
    assert len(made) > 320
    assert not any(entity.looks.held_out for entity in made)


def test_a_question_has_one_right_passage_and_no_text_twin_is_held_against_it() -> None:
    teacher = Librarian(random.Random(3))
    for _ in range(10):
        lesson = teacher.lesson()
        for question, gold, neutral in zip(lesson.questions, lesson.gold, lesson.neutral, strict=True):
            assert gold not in neutral
            noun = next(c for c in {looks.category for looks in ALL_LOOKS} if c in question)
            heading, kinds = headed(lesson.passages[gold]), {k.kind for k in ALL_LOOKS if k.category == noun}
            for place, passage in enumerate(lesson.passages):
                title = passage.split(":")[0].split()[-1].lower()
                if title in kinds and headed(passage) == heading:
                    assert place == gold or place in neutral
            assert lesson.passages[gold].split(":")[0].split()[-1].lower() in kinds


def test_a_lesson_has_the_hard_negatives_of_a_world() -> None:
    teacher = Librarian(random.Random(4))
    passages = [passage for _ in range(10) for passage in teacher.lesson().passages]
    assert {headed(passage) for passage in passages} >= set(EXTRA)
    assert all("An outdated guide says of the" in p for p in passages if headed(p) == "Errors.")


def test_an_exam_is_one_question_among_its_article_and_others_of_its_category() -> None:
    examiner = Librarian(random.Random(5), held_out=True)
    for articles in (1, 5):
        exam = examiner.exam(articles)
        assert len(exam.questions) == len(exam.gold) == 1
        assert len({passage.split(":")[0] for passage in exam.passages}) == articles
