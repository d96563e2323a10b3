import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.core.types import Evidence, Passage, Question
from reflectune.data_builders.annotators import annotate_by_string
from reflectune.data_builders.mr2ag import NO_EVIDENCE, Recipe, knowledge_example, question_problem, visual_example

RECIPE = Recipe(positives=1, same_article=2, retrieved=2, random=1)


def passage(entry: str, section: int, heading: str, text: str) -> Passage:
    return Passage(entry, section, 0, f"Title {entry}", "", heading, text)


ARTICLE = [
    passage("gold", 0, "History", "It was founded in 1872."),
    passage("gold", 1, "People", "It was designed by Ada Berg."),
    passage("gold", 2, "Size", "It is 45 metres tall."),
    passage("gold", 3, "Works", "A film of 1872 shows it."),  # the answer, but no evidence
]
RANKED = [
    [passage(f"rank{i}", 0, "History", f"It was founded in {1500 + i}."), passage(f"rank{i}", 1, "Size", "It is tall.")]
    for i in range(4)
]
QUESTION = Question(
    "q1", "i.png", "When was it founded?", ("1872",), None, "time", "train", True, ("gold",), (Evidence("gold", 0),)
)


def draw(rng: random.Random) -> Sequence[Passage]:
    entry = f"any{rng.randrange(1000)}"
    return [passage(entry, 0, "History", "It was founded in 1600."), passage(entry, 1, "Size", "It is small.")]


def test_the_evidence_is_relevant_and_everything_else_is_not() -> None:
    outcome = knowledge_example(QUESTION, ARTICLE, RANKED, draw, RECIPE)

    assert outcome.example is not None
    by_source = {branch.source: branch for branch in outcome.example.branches}
    assert by_source["gold"].relevant
    assert by_source["gold"].passage == ARTICLE[0]
    assert by_source["gold"].answer == "1872"
    assert [branch.relevant for branch in outcome.example.branches].count(True) == 1
    assert all(branch.answer == "" for branch in outcome.example.branches if not branch.relevant)


def test_each_source_gives_its_number() -> None:
    outcome = knowledge_example(QUESTION, ARTICLE, RANKED, draw, RECIPE)

    assert outcome.example is not None
    sources = sorted(branch.source for branch in outcome.example.branches)
    assert sources == ["gold", "look_alike", "look_alike", "random", "same_article", "same_article"]


def test_a_passage_with_the_answer_is_never_a_negative() -> None:
    tempting = [[passage("rank9", 0, "History", "It, too, was founded in 1872.")]]

    outcome = knowledge_example(QUESTION, ARTICLE, tempting, draw, Recipe(same_article=9, retrieved=9, random=0))

    assert outcome.example is not None
    assert {b.passage.id for b in outcome.example.branches} == {"gold#0.0", "gold#1.0", "gold#2.0"}
    assert outcome.answer_elsewhere == 2  # the film of 1872, and the look-alike


def test_evidence_beyond_the_wanted_number_is_left_out() -> None:
    twice = Question("q2", "i.png", "Who?", ("Ada",), entity_ids=("gold",), requires_retrieval=True)
    article = [passage("gold", i, "People", "Ada built it.") for i in range(5)]

    outcome = knowledge_example(twice, article, [], draw, Recipe(positives=2, same_article=5, random=0))

    assert outcome.example is not None
    assert [branch.source for branch in outcome.example.branches] == ["gold", "gold"]


def test_without_a_passage_of_the_same_heading_another_of_the_entry_is_taken() -> None:
    ranked = [[passage("rank0", 1, "Size", "It is tall.")]]

    outcome = knowledge_example(QUESTION, ARTICLE, ranked, draw, Recipe(same_article=0, retrieved=1, random=0))

    assert outcome.example is not None
    assert sorted(branch.source for branch in outcome.example.branches) == ["gold", "retrieved"]


def test_entries_with_a_passage_under_the_same_heading_are_preferred() -> None:
    others = [[passage(f"other{i}", 1, "Size", "It is tall.")] for i in range(20)]

    outcome = knowledge_example(QUESTION, ARTICLE, [*others, *RANKED], draw, Recipe(same_article=0, random=0))

    assert outcome.example is not None
    assert sorted(branch.source for branch in outcome.example.branches) == ["gold", "look_alike", "look_alike"]


def test_no_evidence_is_a_reason_and_no_example() -> None:
    outcome = knowledge_example(QUESTION, ARTICLE[1:], RANKED, draw, RECIPE)

    assert outcome.example is None
    assert outcome.reason == NO_EVIDENCE


def test_without_marked_evidence_the_annotator_decides_alone() -> None:
    unmarked = Question("q1", "i.png", "When?", ("1872",), entity_ids=("gold",), requires_retrieval=True)

    outcome = knowledge_example(unmarked, ARTICLE, [], draw, Recipe(positives=9, same_article=9, random=0))

    assert outcome.example is not None
    assert {b.passage.section for b in outcome.example.branches if b.relevant} == {0, 3}


def test_a_random_entry_is_never_the_questions_own() -> None:
    outcome = knowledge_example(
        QUESTION, ARTICLE, [], lambda rng: ARTICLE, Recipe(same_article=0, retrieved=0, random=3)
    )

    assert outcome.example is not None
    assert [branch.source for branch in outcome.example.branches] == ["gold"]


@given(seed=st.integers(0, 50), same=st.integers(0, 4), retrieved=st.integers(0, 4), extra=st.integers(0, 4))
def test_any_recipe_gives_distinct_strict_and_repeatable_passages(
    seed: int, same: int, retrieved: int, extra: int
) -> None:
    recipe = Recipe(same_article=same, retrieved=retrieved, random=extra, seed=seed)

    outcome = knowledge_example(QUESTION, ARTICLE, RANKED, draw, recipe)

    assert outcome == knowledge_example(QUESTION, ARTICLE, RANKED, draw, recipe)
    assert outcome.example is not None
    branches = outcome.example.branches
    assert len({branch.passage.id for branch in branches}) == len(branches)
    assert all(branch.relevant == annotate_by_string(QUESTION, branch.passage).relevant for branch in branches)
    assert len(branches) == 1 + min(same, 2) + retrieved + extra


def test_a_visual_question_has_an_answer_and_no_branches() -> None:
    asked = Question("v1", "i.png", "Which colour?", ("red", "crimson"), split="train", requires_retrieval=False)

    example = visual_example(asked)

    assert (example.retrieve, example.answer, example.branches) == (False, "red", ())


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"text": " "}, "the question is empty"),
        ({"image": ""}, "the question has no image"),
        ({"answers": ("",)}, "the question has no answer"),
        ({"entity_ids": ()}, "names no entity"),
        ({"entity_ids": (), "requires_retrieval": False}, ""),
        ({}, ""),
    ],
)
def test_an_unfit_question_is_described(changes: dict[str, object], problem: str) -> None:
    values = {name: getattr(QUESTION, name) for name in Question.__dataclass_fields__}

    found = question_problem(Question(**{**values, **changes}))

    assert problem in found
    assert bool(problem) == bool(found)
