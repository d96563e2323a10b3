import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.core.types import Evidence, FollowUp, Passage, Question
from reflectune.data_builders.annotators.protocol import Annotation, Annotator
from reflectune.data_builders.annotators.string import annotate_by_string, by_string
from reflectune.data_builders.mr2ag.examples import (
    ALL_UNCLEAR,
    NO_ANSWER_IN_EVIDENCE,
    NO_EVIDENCE,
    YES_OR_NO,
    ExampleResult,
    PassageSettings,
    StringFilter,
    candidates,
    knowledge_example,
    question_problem,
    visual_example,
)
from reflectune.models.schemes.examples import Branch

SOURCES = ("same_article", "retrieved", "random")


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
UNMARKED = replace(QUESTION, evidence=())


def draw(rng: random.Random) -> Sequence[Passage]:
    entry = f"any{rng.randrange(1000)}"
    return [passage(entry, 0, "History", "It was founded in 1600."), passage(entry, 1, "Size", "It is small.")]


def build(
    question: Question = QUESTION,
    article: Sequence[Passage] = ARTICLE,
    ranked: Sequence[Sequence[Passage]] = RANKED,
    annotate: Annotator = by_string,
    drawn: Callable[[random.Random], Sequence[Passage]] = draw,
    **settings: Any,
) -> ExampleResult:
    """Return the question's example, with the annotator's judgements of the candidates."""
    chosen = PassageSettings(**{f"negatives_{key}" if key in SOURCES else key: n for key, n in settings.items()})
    passages = candidates(question, article)
    judged = list(zip(passages, annotate([(question, candidate) for candidate in passages]), strict=True))
    return knowledge_example(question, article, judged, ranked, drawn, chosen)


def branches(result: ExampleResult) -> Sequence[Branch]:
    assert result.example is not None
    return result.example.branches


def sources(result: ExampleResult) -> list[str]:
    return sorted(branch.source for branch in branches(result))


def test_the_evidence_is_relevant_and_everything_else_is_not() -> None:
    result = build()
    (gold,) = (branch for branch in branches(result) if branch.relevant)
    assert (gold.source, gold.passage, gold.answer) == ("gold", ARTICLE[0], "1872")
    assert all(branch.answer == "" for branch in branches(result) if not branch.relevant)
    assert sources(result) == ["gold", "look_alike", "look_alike", "random", "same_article", "same_article"]


def test_a_passage_with_the_answer_is_never_a_negative() -> None:
    tempting = [[passage("rank9", 0, "History", "It, too, was founded in 1872.")]]
    result = build(ranked=tempting, same_article=9, retrieved=9, random=0)
    assert {b.passage.id for b in branches(result)} == {"gold#0.0", "gold#1.0", "gold#2.0"}
    assert result.answer_elsewhere == 2  # the film of 1872, and the look-alike


def test_an_article_whose_lead_gives_the_answer_away_has_no_negatives() -> None:
    """A lead is shown with every passage: one with the answer would make each negative wrong."""
    article = [replace(passage, lead="The Tower was founded in 1872.") for passage in ARTICLE]
    assert sources(build(article=article, same_article=9, retrieved=1, random=0)) == ["gold", "look_alike"]


def test_only_an_annotator_finds_evidence_of_yes_or_no() -> None:
    asked = replace(QUESTION, text="Is it old?", answers=("no",), evidence=())
    article = [passage("gold", 0, "History", "There is no older tower."), passage("gold", 1, "People", "No one came.")]

    def judged(cases: Sequence[tuple[Question, Passage]]) -> list[Annotation]:
        return [Annotation("relevant", "no"), Annotation("irrelevant")]

    assert build(asked, article).reason == YES_OR_NO
    assert build(asked, article, annotate=judged).reason == YES_OR_NO
    result = build(asked, article, annotate=judged, string_filter="negatives")
    labels = {branch.passage.id: branch.relevant for branch in branches(result)}
    assert (labels["gold#0.0"], labels["gold#1.0"]) == (True, False)


def test_evidence_beyond_the_number_of_positives_is_left_out() -> None:
    twice = Question("q2", "i.png", "Who?", ("Ada",), entity_ids=("gold",), requires_retrieval=True)
    article = [passage("gold", i, "People", "Ada built it.") for i in range(5)]
    assert sources(build(twice, article, [], positives=2, same_article=5, random=0)) == ["gold", "gold"]


def test_passages_under_the_same_heading_are_preferred_and_any_of_the_entry_taken_else() -> None:
    others = [[passage(f"other{i}", 1, "Size", "It is tall.")] for i in range(20)]
    none_else = {"same_article": 0, "random": 0}
    assert sources(build(ranked=[*others, *RANKED], **none_else)) == ["gold", "look_alike", "look_alike"]
    assert sources(build(ranked=others[:1], retrieved=1, **none_else)) == ["gold", "retrieved"]


def test_a_random_entry_is_never_the_questions_own() -> None:
    result = build(ranked=[], drawn=lambda rng: ARTICLE, same_article=0, retrieved=0, random=3)
    assert sources(result) == ["gold"]


@given(seed=st.integers(0, 50), same=st.integers(0, 4), retrieved=st.integers(0, 4), extra=st.integers(0, 4))
def test_any_settings_give_distinct_strict_and_repeatable_passages(seed, same, retrieved, extra) -> None:
    settings = {"same_article": same, "retrieved": retrieved, "random": extra, "seed": seed}
    result = build(**settings)
    assert result == build(**settings)
    assert len({branch.passage.id for branch in branches(result)}) == len(branches(result))
    assert all(branch.relevant == annotate_by_string(QUESTION, branch.passage).relevant for branch in branches(result))
    assert len(branches(result)) == 1 + min(same, 2) + retrieved + extra


def test_a_visual_question_has_an_answer_and_the_rest_of_its_conversation() -> None:
    visual = Question("v1", "i.png", "Which colour?", ("red", "crimson"), split="train", requires_retrieval=False)
    example = visual_example(visual)
    assert (example.retrieve, example.answer, example.branches) == (False, "red", ())
    rest = (FollowUp("Why?", "It is painted."),)
    example = visual_example(replace(visual, answer_type="free_form", follow_ups=rest))
    assert (example.style, example.follow_ups) == ("free", rest)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"text": " "}, "the question is empty"),
        ({"image": ""}, "the question has no image"),
        ({"answers": ("",)}, "the question has no answer"),
        ({"entity_ids": ()}, "names no entity"),
        ({"entity_ids": (), "requires_retrieval": False}, ""),
        ({"entity_ids": (), "evidence": (), "requires_retrieval": None}, "neither `requires_retrieval` nor an entity"),
        ({"requires_retrieval": None}, ""),
        ({"follow_ups": (FollowUp("Why?", " "),)}, "a later round of the conversation lacks"),
        ({"follow_ups": (FollowUp("Why?", "So."),)}, "need a free-form answer"),
        ({}, ""),
    ],
)
def test_an_unfit_question_is_described(changes: dict[str, object], problem: str) -> None:
    described = question_problem(replace(QUESTION, **changes))
    assert problem in described
    assert bool(problem) == bool(described)


def says(*labels: str) -> Annotator:
    """Return an annotator that gives passages these labels in turn, and the answer `1872`."""
    return lambda cases: [Annotation(label, "1872") for _, label in zip(cases, labels, strict=True)]  # type: ignore[arg-type]


NOTHING_ELSE = {"positives": 9, "same_article": 9, "retrieved": 0, "random": 0}


@pytest.mark.parametrize(
    ("string_filter", "relevant", "irrelevant"),
    [
        ("strict", {0}, {2}),  # 1 lacks the answer, 3 has it
        ("strict_parts", {0}, {2}),
        ("negatives", {0, 1}, {2}),
        ("off", {0, 1}, {2, 3}),
    ],
)
def test_the_string_filter_rejects_wrong_labels(string_filter, relevant, irrelevant) -> None:
    annotate = says("relevant", "relevant", "irrelevant", "irrelevant")
    result = build(UNMARKED, ranked=[], annotate=annotate, string_filter=string_filter, **NOTHING_ELSE)
    assert {b.passage.section for b in branches(result) if b.relevant} == relevant
    assert {b.passage.section for b in branches(result) if not b.relevant} == irrelevant
    assert result.without_answer == (1 if string_filter.startswith("strict") else 0)
    assert result.answer_elsewhere == (0 if string_filter == "off" else 1)


def test_an_unclear_passage_is_neither_evidence_nor_a_negative() -> None:
    annotate = says("relevant", "unclear", "unclear", "irrelevant")
    result = build(UNMARKED, ranked=[], annotate=annotate, string_filter="off", **NOTHING_ELSE)
    assert {b.passage.section for b in branches(result)} == {0, 3}
    assert result.unclear == 2


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        (("irrelevant",) * 4, NO_EVIDENCE),
        (("irrelevant", "unclear", "irrelevant", "irrelevant"), ALL_UNCLEAR),
        (("irrelevant", "relevant", "unclear", "irrelevant"), NO_ANSWER_IN_EVIDENCE),
    ],
)
def test_a_missing_example_has_a_reason(labels: Sequence[str], reason: str) -> None:
    result = build(UNMARKED, ranked=[], annotate=says(*labels), **NOTHING_ELSE)
    assert (result.example, result.reason) == (None, reason)


def test_a_negative_with_an_item_of_a_list_is_rejected_by_strict_parts() -> None:
    listed = Question("q1", "i.png", "Who?", ("Ada && Ben",), answer_type="multi_answer", entity_ids=("gold",))
    article = [passage("gold", 0, "", "Ada and Ben."), passage("gold", 1, "", "Ada."), passage("gold", 2, "", "Cid.")]

    def sections(string_filter: StringFilter) -> set[int]:
        result = build(listed, article, [], string_filter=string_filter, **NOTHING_ELSE)
        assert [b.answer for b in branches(result) if b.relevant] == ["Ada && Ben"]
        assert result.example is not None
        assert result.example.style == "list"
        return {branch.passage.section for branch in branches(result)}

    assert sections("strict") == {0, 1, 2}
    assert sections("strict_parts") == {0, 2}


def test_named_sections_bound_the_search() -> None:
    assert candidates(QUESTION, ARTICLE) == ARTICLE[:1]
    assert candidates(QUESTION, ARTICLE[1:]) == []
    assert candidates(UNMARKED, ARTICLE) == ARTICLE
