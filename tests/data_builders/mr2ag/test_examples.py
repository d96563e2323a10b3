import random
from collections.abc import Callable, Sequence
from dataclasses import replace

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

SETTINGS = PassageSettings()


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


def build(
    question: Question,
    article: Sequence[Passage],
    ranked: Sequence[Sequence[Passage]],
    draw_article: Callable[[random.Random], Sequence[Passage]],
    settings: PassageSettings,
    annotate: Annotator = by_string,
) -> ExampleResult:
    """Return the question's example, with the annotator's judgements of the candidates."""
    passages = candidates(question, article, settings)
    judged = list(zip(passages, annotate([(question, candidate) for candidate in passages]), strict=True))
    return knowledge_example(question, article, judged, ranked, draw_article, settings)


def test_the_evidence_is_relevant_and_everything_else_is_not() -> None:
    result = build(QUESTION, ARTICLE, RANKED, draw, SETTINGS)
    assert result.example is not None
    by_source = {branch.source: branch for branch in result.example.branches}
    assert by_source["gold"].relevant
    assert by_source["gold"].passage == ARTICLE[0]
    assert by_source["gold"].answer == "1872"
    assert [branch.relevant for branch in result.example.branches].count(True) == 1
    assert all(branch.answer == "" for branch in result.example.branches if not branch.relevant)


def test_each_source_gives_its_number() -> None:
    result = build(QUESTION, ARTICLE, RANKED, draw, SETTINGS)
    assert result.example is not None
    sources = sorted(branch.source for branch in result.example.branches)
    assert sources == ["gold", "look_alike", "look_alike", "random", "same_article", "same_article"]


def test_a_passage_with_the_answer_is_never_a_negative() -> None:
    tempting = [[passage("rank9", 0, "History", "It, too, was founded in 1872.")]]
    result = build(
        QUESTION,
        ARTICLE,
        tempting,
        draw,
        PassageSettings(negatives_same_article=9, negatives_retrieved=9, negatives_random=0),
    )
    assert result.example is not None
    assert {b.passage.id for b in result.example.branches} == {"gold#0.0", "gold#1.0", "gold#2.0"}
    assert result.answer_elsewhere == 2  # the film of 1872, and the look-alike


def test_an_article_whose_lead_gives_the_answer_away_has_no_negatives() -> None:
    """A lead is shown with every passage: one with the answer would make each negative wrong."""
    lead = "The Tower was founded in 1872."
    article = [replace(passage, lead=lead) for passage in ARTICLE]
    result = build(
        QUESTION,
        article,
        RANKED,
        draw,
        PassageSettings(negatives_same_article=9, negatives_retrieved=1, negatives_random=0),
    )
    assert result.example is not None
    assert sorted(branch.source for branch in result.example.branches) == ["gold", "look_alike"]


def test_only_an_annotator_finds_evidence_of_yes_or_no() -> None:
    asked = replace(QUESTION, text="Is it old?", answers=("no",), evidence=())
    article = [passage("gold", 0, "History", "There is no older tower."), passage("gold", 1, "People", "No one came.")]

    def judged(cases: Sequence[tuple[Question, Passage]]) -> list[Annotation]:
        return [Annotation("relevant", "no"), Annotation("irrelevant")]

    assert build(asked, article, RANKED, draw, SETTINGS).reason == YES_OR_NO
    assert build(asked, article, RANKED, draw, SETTINGS, judged).reason == YES_OR_NO
    result = build(asked, article, RANKED, draw, PassageSettings(string_filter="negatives"), judged)
    assert result.example is not None
    labels = {branch.passage.id: branch.relevant for branch in result.example.branches}
    assert (labels["gold#0.0"], labels["gold#1.0"]) == (True, False)


def test_evidence_beyond_the_number_of_positives_is_left_out() -> None:
    twice = Question("q2", "i.png", "Who?", ("Ada",), entity_ids=("gold",), requires_retrieval=True)
    article = [passage("gold", i, "People", "Ada built it.") for i in range(5)]
    result = build(twice, article, [], draw, PassageSettings(positives=2, negatives_same_article=5, negatives_random=0))
    assert result.example is not None
    assert [branch.source for branch in result.example.branches] == ["gold", "gold"]


def test_without_a_passage_under_the_same_heading_any_of_the_entry_is_taken() -> None:
    ranked = [[passage("rank0", 1, "Size", "It is tall.")]]
    result = build(
        QUESTION,
        ARTICLE,
        ranked,
        draw,
        PassageSettings(negatives_same_article=0, negatives_retrieved=1, negatives_random=0),
    )
    assert result.example is not None
    assert sorted(branch.source for branch in result.example.branches) == ["gold", "retrieved"]


def test_entries_with_a_passage_under_the_same_heading_are_preferred() -> None:
    others = [[passage(f"other{i}", 1, "Size", "It is tall.")] for i in range(20)]
    result = build(
        QUESTION, ARTICLE, [*others, *RANKED], draw, PassageSettings(negatives_same_article=0, negatives_random=0)
    )
    assert result.example is not None
    assert sorted(branch.source for branch in result.example.branches) == ["gold", "look_alike", "look_alike"]


def test_no_evidence_is_a_reason_and_no_example() -> None:
    result = build(QUESTION, ARTICLE[1:], RANKED, draw, SETTINGS)
    assert result.example is None
    assert result.reason == NO_EVIDENCE


def test_without_marked_evidence_the_annotator_decides_alone() -> None:
    unmarked = Question("q1", "i.png", "When?", ("1872",), entity_ids=("gold",), requires_retrieval=True)
    result = build(
        unmarked, ARTICLE, [], draw, PassageSettings(positives=9, negatives_same_article=9, negatives_random=0)
    )
    assert result.example is not None
    assert {b.passage.section for b in result.example.branches if b.relevant} == {0, 3}


def test_a_random_entry_is_never_the_questions_own() -> None:
    result = build(
        QUESTION,
        ARTICLE,
        [],
        lambda rng: ARTICLE,
        PassageSettings(negatives_same_article=0, negatives_retrieved=0, negatives_random=3),
    )
    assert result.example is not None
    assert [branch.source for branch in result.example.branches] == ["gold"]


@given(seed=st.integers(0, 50), same=st.integers(0, 4), retrieved=st.integers(0, 4), extra=st.integers(0, 4))
def test_any_settings_give_distinct_strict_and_repeatable_passages(seed, same, retrieved, extra) -> None:
    settings = PassageSettings(
        negatives_same_article=same, negatives_retrieved=retrieved, negatives_random=extra, seed=seed
    )
    result = build(QUESTION, ARTICLE, RANKED, draw, settings)
    assert result == build(QUESTION, ARTICLE, RANKED, draw, settings)
    assert result.example is not None
    branches = result.example.branches
    assert len({branch.passage.id for branch in branches}) == len(branches)
    assert all(branch.relevant == annotate_by_string(QUESTION, branch.passage).relevant for branch in branches)
    assert len(branches) == 1 + min(same, 2) + retrieved + extra


def test_a_visual_question_has_an_answer_and_no_branches() -> None:
    visual = Question("v1", "i.png", "Which colour?", ("red", "crimson"), split="train", requires_retrieval=False)
    example = visual_example(visual)
    assert (example.retrieve, example.answer, example.branches) == (False, "red", ())


def test_a_visual_question_keeps_the_rest_of_its_conversation() -> None:
    visual = Question(
        "v1", "i.png", "Which colour?", ("It is red.",), answer_type="free_form", requires_retrieval=False
    )
    example = visual_example(replace(visual, follow_ups=(FollowUp("Why?", "It is painted."),)))
    assert (example.style, example.follow_ups) == ("free", (FollowUp("Why?", "It is painted."),))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"text": " "}, "the question is empty"),
        ({"image": ""}, "the question has no image"),
        ({"answers": ("",)}, "the question has no answer"),
        ({"entity_ids": ()}, "names no entity"),
        ({"entity_ids": (), "requires_retrieval": False}, ""),
        (
            {"entity_ids": (), "evidence": (), "requires_retrieval": None},
            "has neither `requires_retrieval` nor an entity",
        ),
        ({"requires_retrieval": None}, ""),
        ({"follow_ups": (FollowUp("Why?", " "),)}, "a later round of the conversation lacks"),
        ({"follow_ups": (FollowUp("Why?", "So."),)}, "need a free-form answer"),
        ({}, ""),
    ],
)
def test_an_unfit_question_is_described(changes: dict[str, object], problem: str) -> None:
    values = {name: getattr(QUESTION, name) for name in Question.__dataclass_fields__}
    described = question_problem(Question(**{**values, **changes}))
    assert problem in described
    assert bool(problem) == bool(described)


def says(*labels: str) -> Annotator:
    """Return an annotator that gives passages these labels in turn, and the answer `1872`."""
    return lambda cases: [Annotation(label, "1872") for _, label in zip(cases, labels, strict=True)]  # type: ignore[arg-type]


UNMARKED = Question("q1", "i.png", "When?", ("1872",), entity_ids=("gold",), requires_retrieval=True)
NOTHING_ELSE = PassageSettings(positives=9, negatives_same_article=9, negatives_retrieved=0, negatives_random=0)


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
    settings = NOTHING_ELSE.model_copy(update={"string_filter": string_filter})
    annotate = says("relevant", "relevant", "irrelevant", "irrelevant")
    result = build(UNMARKED, ARTICLE, [], draw, settings, annotate)
    assert result.example is not None
    assert {b.passage.section for b in result.example.branches if b.relevant} == relevant
    assert {b.passage.section for b in result.example.branches if not b.relevant} == irrelevant
    assert result.without_answer == (1 if string_filter.startswith("strict") else 0)
    assert result.answer_elsewhere == (0 if string_filter == "off" else 1)


def test_an_unclear_passage_is_neither_evidence_nor_a_negative() -> None:
    annotate = says("relevant", "unclear", "unclear", "irrelevant")
    result = build(UNMARKED, ARTICLE, [], draw, NOTHING_ELSE.model_copy(update={"string_filter": "off"}), annotate)
    assert result.example is not None
    assert {b.passage.section for b in result.example.branches} == {0, 3}
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
    result = build(UNMARKED, ARTICLE, [], draw, NOTHING_ELSE, says(*labels))
    assert (result.example, result.reason) == (None, reason)


def test_a_negative_with_an_item_of_a_list_is_rejected_by_strict_parts() -> None:
    listed = Question("q1", "i.png", "Who?", ("Ada && Ben",), answer_type="multi_answer", entity_ids=("gold",))
    article = [passage("gold", 0, "", "Ada and Ben."), passage("gold", 1, "", "Ada."), passage("gold", 2, "", "Cid.")]

    def sections(string_filter: StringFilter) -> set[int]:
        result = build(listed, article, [], draw, NOTHING_ELSE.model_copy(update={"string_filter": string_filter}))
        assert result.example is not None
        assert result.example.style == "list"
        assert [b.answer for b in result.example.branches if b.relevant] == ["Ada && Ben"]
        return {branch.passage.section for branch in result.example.branches}

    assert sections("strict") == {0, 1, 2}
    assert sections("strict_parts") == {0, 2}


def test_named_sections_bound_the_search_unless_they_are_not_trusted() -> None:
    assert candidates(QUESTION, ARTICLE, SETTINGS) == ARTICLE[:1]
    assert candidates(QUESTION, ARTICLE, PassageSettings(known_sections=False)) == ARTICLE
    assert candidates(UNMARKED, ARTICLE, SETTINGS) == ARTICLE
