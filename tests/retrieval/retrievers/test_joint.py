"""Joint search: order, duplicates, failures, budgets, and that knowledge bases are searched at the same time."""

import threading
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectune.core.errors import UnusableInput, UserError
from reflectune.core.types import Passage
from reflectune.formats.hits import PassageHit
from reflectune.formats.passages import split_passages
from reflectune.retrieval.indexes.building import build_index
from reflectune.retrieval.retrievers.entry_retriever import EntryRetriever
from reflectune.retrieval.retrievers.joint import JointSearch, Texts, merged, split_budget
from reflectune.retrieval.retrievers.queries import Query
from reflectune.retrieval.retrievers.two_stage import PassagesInside, Summaries


def hit(name: str, score: float = 0.0, rank: int = 1, kb: str = "k") -> PassageHit:
    return PassageHit(Passage(name, 0, 0, name, "", "", f"Text of {name}."), score, rank, kb)


class Fixed:
    """A knowledge base that finds, for a query of a text, the passages that its letters name, after a while."""

    def __init__(self, name: str, wait: float = 0.0) -> None:
        self.name, self.wait, self.asked = name, wait, []

    def search(self, queries: Sequence[Query], top: int) -> list[list[PassageHit]]:
        self.asked.append(([query.text for query in queries], top))
        time.sleep(self.wait)
        return [
            [hit(letter, 1 / rank, rank, self.name) for rank, letter in enumerate(query.text[:top], start=1)]
            for query in queries
        ]


def names(hits: Sequence[PassageHit]) -> str:
    return "".join(each.passage.entry_id for each in hits)


TEXTS = st.text("abcdef", min_size=1, max_size=8)


@given(texts=st.lists(TEXTS, max_size=5), waits=st.permutations([0.0, 0.001, 0.003]), data=st.data())
@settings(deadline=None, max_examples=50)
def test_order_is_that_of_knowledge_bases_and_queries_whoever_answers_first(texts, waits, data) -> None:
    joint = JointSearch([Fixed(name, wait) for name, wait in zip("xyz", waits, strict=True)])
    one_each = st.lists(st.integers(0, 10), min_size=len(texts), max_size=len(texts))
    tops = {name: data.draw(one_each) for name in "xyz"}
    queries = [Query(text=text) for text in texts]
    found = joint.search(queries, tops)
    for place, (query, each) in enumerate(zip(queries, found, strict=True)):
        assert list(each) == ["x", "y", "z"]
        for name, hits in each.items():
            assert names(hits) == "".join(dict.fromkeys(query.text[: tops[name][place]]))
            assert [one.rank for one in hits] == list(range(1, len(hits) + 1))
        budget = {name: [top[place]] for name, top in tops.items()}
        alone = JointSearch([Fixed(name) for name in "xyz"]).search([query], budget)
        assert alone == [each]  # a batch finds what each query finds alone


def test_hits_are_merged_base_after_base_and_of_a_base_in_turn() -> None:
    other_cut = PassageHit(Passage("a", 0, 0, "a", "", "", "Another text."), 0.1, 1, "k")
    first, second = [hit("a", 0.8), hit("b"), hit("c")], [hit("d"), hit("a", 0.9), hit("e"), other_cut]
    found = merged([[first, (), second], [[hit("a", kb="l"), hit("f")]], []])
    assert names(found) == "adbceaaf"
    assert [one.score for one in found if one.passage.entry_id == "a"] == [0.8, 0.1, 0.0]


class Generous(Fixed):
    """A knowledge base that answers with more than it is asked for."""

    def search(self, queries: Sequence[Query], top: int) -> list[list[PassageHit]]:
        return super().search(queries, 100)


def test_no_knowledge_base_goes_beyond_its_budget() -> None:
    found = JointSearch([Generous("x")]).search([Query(text="abcd"), Query(text="cba")], {"x": [3, 1]})
    assert [names(each["x"]) for each in found] == ["abc", "c"]


def test_queries_of_one_budget_are_asked_together_and_those_without_not_at_all() -> None:
    x, y = Fixed("x"), Fixed("y")
    joint = JointSearch([x, y])
    joint.search([Query(text=text) for text in ("a", "b", "c", "d")], {"x": [2, 0, 3, 2], "y": [1, 1, 1, 1]})
    assert x.asked == [(["a", "d"], 2), (["c"], 3)]
    assert y.asked == [(["a", "b", "c", "d"], 1)]
    joint.search([Query(text="a")], {"x": [0], "y": [0]})
    assert joint.search([], {"x": [], "y": []}) == []
    assert (len(x.asked), len(y.asked)) == (2, 1)


class Failing(Fixed):
    def __init__(self, name: str, error: Exception | None = None) -> None:
        super().__init__(name)
        self.error = error

    def search(self, queries: Sequence[Query], top: int) -> list[list[PassageHit]]:
        if self.error:
            raise self.error
        return super().search(queries, top)[:-1]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ConnectionError("no route\nto host"), "`first` failed .ConnectionError: no route to host.; .* set the budget"),
        (UserError("the index is gone; build it"), "`first`: the index is gone; build it$"),
        (UnusableInput("a strip; crop it"), "`first`: a strip; crop it$"),
        (RuntimeError("CUDA out of memory"), "^CUDA out of memory\nsearching .* `first`$"),
        (None, "^zip.*\nsearching .* `first`$"),
    ],
)
def test_a_knowledge_base_that_fails_is_named(error: Exception | None, message: str) -> None:
    slow, first, second = Fixed("slow", 0.05), Failing("first", error), Failing("second", ValueError("no"))
    joint = JointSearch([slow, first, second])
    kind = UserError if isinstance(error, OSError) else type(error or ValueError())
    with pytest.raises(kind, match=message) as caught:
        joint.search([Query(text=text) for text in ("a", "b", "c", "d")], dict.fromkeys(joint.names, [2] * 4))
    assert type(caught.value) is kind
    assert len(slow.asked) == 1


@given(top=st.integers(0, 100), parts=st.integers(1, 20))
@settings(deadline=None)
def test_a_budget_is_split_evenly_and_the_first_have_what_is_left(top: int, parts: int) -> None:
    shares = split_budget(top, parts)
    assert sum(shares) == top
    assert len(shares) == parts
    assert shares == sorted(shares, reverse=True)
    assert max(shares) - min(shares) <= 1
    half, rest = split_budget(20, 2)
    assert [half, *split_budget(rest, 2)] == [10, 5, 5]  # MI-RAG's expanded question and its follow-ups


@pytest.mark.parametrize(("top", "parts"), [(-1, 1), (1, 0)], ids=["negative", "no query"])
def test_a_budget_that_is_none_is_refused(top: int, parts: int) -> None:
    with pytest.raises(ValueError, match="can't be split"):
        split_budget(top, parts)


class Meeting(Fixed):
    """A knowledge base that answers when enough calls are under way at the same time, and fails else."""

    def __init__(self, name: str, barrier: threading.Barrier) -> None:
        super().__init__(name)
        self.barrier = barrier

    def search(self, queries: Sequence[Query], top: int) -> list[list[PassageHit]]:
        self.barrier.wait(timeout=60)
        return super().search(queries, top)


def test_two_knowledge_bases_are_searched_at_the_same_time() -> None:
    """Nobody answers before all have been asked, so that one after the other none would."""
    barrier = threading.Barrier(2)
    joint = JointSearch([Meeting("x", barrier), Meeting("y", barrier)])
    (found,) = joint.search([Query(text="abc")], {"x": [2], "y": [3]})
    assert [names(hits) for hits in found.values()] == ["ab", "abc"]


class Letters:
    """A retriever for `Texts`."""

    def search(self, queries: Sequence[str], top: int) -> list[list[PassageHit]]:
        assert all(queries)
        return [[hit(letter) for letter in text[:top]] for text in queries]


def test_a_text_knowledge_base_is_searched_by_texts_alone(draw_image) -> None:
    queries = [Query(draw_image(1)), Query(draw_image(1), "ab"), Query(text="c"), Query(draw_image(2), " ")]
    assert [names(hits) for hits in Texts("t", Letters()).search(queries, 5)] == ["", "ab", "c", ""]


def test_real_knowledge_bases_that_share_an_encoder_find_what_they_find_alone(
    kb, encoder, draw_image, tmp_path
) -> None:
    retriever = EntryRetriever(build_index(kb, encoder, tmp_path / "index"), encoder)
    other = EntryRetriever(build_index(kb, encoder, tmp_path / "index"), encoder, title_weight=0.2)
    stages = [
        PassagesInside("passages", retriever, lambda name: split_passages(kb.get(name)), entries=4),
        Summaries("pairs", other, kb),
    ]
    queries = [Query(draw_image(n), f"Which mice does owl nº {n} eat?" * (n % 3)) for n in range(12)]
    queries += [Query(text=f"owl {n}") for n in range(5)]
    expected = [stage.search(queries, 5) for stage in stages]
    for _ in range(3):
        found = JointSearch(stages).search(queries, dict.fromkeys(("passages", "pairs"), [5] * len(queries)))
        assert [[each[stage.name] for each in found] for stage in stages] == expected
