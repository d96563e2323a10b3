"""Lessons state true facts, and show no held-out looks."""

import random

import pytest

from reflectune.examples.miniature.models.batches import Lesson, LessonTurn
from reflectune.examples.miniature.world.entities import (
    ATTRIBUTES,
    VALUES,
    Looks,
    make_entity,
    random_looks,
)
from reflectune.examples.miniature.world.lessons import MATCH_QUESTION, DrawnImage, Teacher


@pytest.fixture
def teacher() -> Teacher:
    rng = random.Random(3)
    famous = [make_entity("famous", random_looks(rng, held_out=False), rng)]
    shown = [DrawnImage(random_looks(rng, held_out=False), 3) for _ in range(8)] + [DrawnImage(famous[0].looks, 1)]
    return Teacher(shown, famous, rng)


def looks_of(teacher: Teacher, lesson: Lesson) -> dict[str, str]:
    assert lesson.image is not None
    looks = teacher.images[lesson.image].looks
    return {name: getattr(looks, name) for name in ATTRIBUTES}


def shown_words(turn: LessonTurn) -> list[tuple[str, bool]]:
    """The words that end where a turn says that the image may show one, and whether it does."""
    return [(turn.text[:end].rsplit(maxsplit=1)[-1], is_shown) for end, is_shown in turn.shown]


def test_it_is_it_exactly_if_every_word_of_the_description_is_shown(teacher: Teacher) -> None:
    for _ in range(30):
        lesson = teacher.match()
        seen = looks_of(teacher, lesson)
        for turn in lesson.turns[1:]:
            assert turn.text.endswith(MATCH_QUESTION)
            assert turn.answer == ("yes" if all(is_shown for _, is_shown in turn.shown) else "no")
            assert all((word in seen.values()) == is_shown for word, is_shown in shown_words(turn))


def test_evidence_is_a_passage_of_the_asked_section_about_the_depicted_entity(teacher: Teacher) -> None:
    for _ in range(30):
        lesson = teacher.read(with_image=True)
        for turn in (t for t in lesson.turns if t.skill.startswith("evidence")):
            fits = all(is_shown for _, is_shown in turn.shown)
            assert turn.answer == ("yes" if turn.skill == "evidence_gold" else "no")
            assert fits is (turn.skill in ("evidence_gold", "evidence_section"))


def test_look_alikes_differ_in_every_attribute_some_time(teacher: Teacher) -> None:
    places = {value: name for name, values in VALUES.items() for value in values}
    wrong = {
        places[word]
        for _ in range(60)
        for turn in teacher.match().turns
        for word, is_shown in shown_words(turn)
        if not is_shown
    }
    assert wrong == set(ATTRIBUTES)


def test_no_description_is_of_looks_that_are_held_out(teacher: Teacher) -> None:
    for _ in range(40):
        for lesson in (teacher.match(), teacher.read(with_image=True)):
            for words in (shown_words(turn) for turn in lesson.turns if turn.shown):
                assert not Looks(*(word for word, _ in words)).held_out


def test_one_article_of_several_is_about_the_depicted_entity_at_any_rank(teacher: Teacher) -> None:
    first_right = 0
    for _ in range(40):
        lesson = teacher.read_articles(3)
        (turn,) = lesson.turns
        passages = [turn.shown[start : start + 5] for start in range(0, len(turn.shown), 5)]
        fitting = [all(is_shown for _, is_shown in places[:4]) for places in passages]
        evidence = [is_evidence for *_, (_, is_evidence) in passages]
        assert sum(evidence) == 1
        assert fitting[evidence.index(True)]
        start = passages[evidence.index(True)][0][0]
        told = turn.text[start : passages[evidence.index(True)][4][0]]
        assert all(part in told for part in turn.answer.split(" && "))
        first_right += fitting[0]
    assert 5 < first_right < 25  # a third, if the order is drawn


@pytest.mark.parametrize("articles", [1, 2])
def test_the_answer_stands_in_the_article(teacher: Teacher, articles: int) -> None:
    for _ in range(30):
        lesson = teacher.read_article(articles)
        for turn in lesson.turns:
            assert all(part in turn.text for part in turn.answer.split(" && "))
