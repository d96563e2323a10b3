"""Names are exchanged in a lesson as a whole, one for one, and nothing else is touched."""

import random
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.core.types import FollowUp
from reflectune.examples.lessons.renaming import TitleExchange, renamed
from reflectune.models.schemes.examples import PromptedBranch, PromptedExample

TITLES = ("Ulm Oak", "Vik Oak", "Ulm Vik Oak", "Elm Tower", "Falk Tower", "Dunbek Owl")
DOCUMENTS = "Vik Oak: Beside it stands the Elm Tower.\nUlm Vik Oak: It is 9 m tall."
LESSON = PromptedExample(
    "q mi_rag 1",
    "q.png",
    "Who built the building beside this plant?",
    (PromptedBranch("vqa", reply="Vik Oak: Beside it stands the Elm Tower."),),
    source="mi_rag reason",
    template="{question}\n{documents}",
    documents=DOCUMENTS,
)


@given(st.lists(st.sampled_from(TITLES), min_size=1, max_size=8), st.integers(0, 99))
def test_equal_titles_stay_equal_and_different_ones_different(titles: Sequence[str], seed: int) -> None:
    others = TitleExchange(TITLES).exchanged(titles, random.Random(seed))
    assert set(others) <= set(TITLES)
    assert all(other.split()[-1] == title.split()[-1] for title, other in zip(titles, others, strict=True))
    assert [others.index(other) for other in others] == [titles.index(title) for title in titles]


@pytest.mark.parametrize("text", ["", "An oak.", "Elm Towers", "SUlm Oak", "Elm\nTower"])
def test_what_is_no_title_stays(text: str) -> None:
    assert TitleExchange(TITLES).exchanged([text], random.Random(0)) == [text]


@pytest.mark.parametrize("seed", range(20))
def test_titles_are_found_as_one_expression_of_them_all_finds_them(seed: int) -> None:
    """Such an expression tries each title at each place of a text; of Wikipedia's there are millions."""
    rng = random.Random(seed)
    drawn = ("".join(rng.choices("ab (-", k=rng.randint(1, 4))) for _ in range(12))
    titles = sorted({title for title in drawn if title.strip()}, key=len, reverse=True)
    text = "".join(rng.choices("ab (-", k=200))
    expression = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, titles))})(?!\w)")
    assert expression.search(text)
    stars: Any = SimpleNamespace(sample=lambda alike, count: ["*"] * count)
    assert TitleExchange(titles).exchanged([text], stars) == [expression.sub("*", text)]


def test_a_lesson_is_kept_under_other_names_and_still_says_what_its_documents_say() -> None:
    copies = renamed(LESSON, 20, TitleExchange(TITLES), seed=0)
    assert 6 < len({copy.documents for copy in copies}) == len(copies) <= 12  # three oaks in two places, two towers
    assert len({copy.id for copy in copies}) == len(copies)
    for copy in copies:
        reply = copy.branches[0].reply
        assert copy.documents.startswith(f"{reply}\n")
        shown, beside = reply.removesuffix(".").split(": Beside it stands the ")
        assert {shown, beside} <= set(TITLES)
        assert copy.documents.endswith(" Oak: It is 9 m tall.")
        assert (copy.question, copy.image, copy.template) == (LESSON.question, LESSON.image, LESSON.template)
    assert renamed(LESSON, 20, TitleExchange(TITLES), seed=0) == copies


def test_a_lesson_without_a_title_is_kept_once() -> None:
    plain = PromptedExample("q mi_rag 0", "q.png", "What?", (PromptedBranch("vqa", reply="A green oak."),))
    assert [copy.id for copy in renamed(plain, 5, TitleExchange(TITLES), seed=0)] == ["q mi_rag 0 0"]


def test_branches_of_one_lesson_share_the_other_names() -> None:
    shown = ("Vik Oak: Beside it stands the Elm Tower.", "Elm Tower: It is 90 m tall.")
    branches = tuple(PromptedBranch("vqa", reply=reply) for reply in ("Yes", "No: Elm Tower"))
    judged = PromptedExample("q reag 0", "q.png", "Is it the Vik Oak?", branches, branch_documents=shown)
    for copy in renamed(judged, 8, TitleExchange(TITLES), seed=0):
        oak, tower = copy.question.removeprefix("Is it the ").removesuffix("?"), copy.branches[1].reply[4:]
        assert copy.branch_documents == (f"{oak}: Beside it stands the {tower}.", f"{tower}: It is 90 m tall.")
        assert copy.branches[0].reply == "Yes"


def test_a_trajectorys_results_and_replies_share_the_other_names() -> None:
    rounds = (
        FollowUp("Vik Oak: Its top.", "Vik Oak: top?"),
        FollowUp("Vik Oak: Beside it stands the Elm Tower.", "Elm Tower"),
    )
    trajectory = PromptedExample("q", "q.png", "Who?", (PromptedBranch("vqa", reply="Search."),), follow_ups=rounds)
    copies = renamed(trajectory, 8, TitleExchange(TITLES), seed=0)
    assert len(copies) > 1
    for copy in copies:
        (first, oak), (second, tower) = ((later.question, later.answer) for later in copy.follow_ups)
        assert first == f"{oak.removesuffix(': top?')}: Its top."
        assert second == f"{oak.removesuffix(': top?')}: Beside it stands the {tower}."
