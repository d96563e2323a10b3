"""Searches with parts of images, and ranking by a reranker's scores."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.types import Entry, Passage, Section
from reflectune.formats.hits import Hit, PassageHit
from reflectune.formats.knowledge_base import write_knowledge_base
from reflectune.inference.operators.requests import Box, RerankRequest, SearchRequest, SimilarityRequest
from reflectune.inference.operators.searching import (
    KnowledgeBases,
    PairText,
    SearchSettings,
    cropped,
    knowledge_bases,
    reranked,
)
from reflectune.inference.operators.step_log import StepLog
from reflectune.inference.operators.trajectory import similarities
from reflectune.inference.pipelines.registry import find_recipe, iterative
from reflectune.inference.scoring.notices import cut_query_sentences
from reflectune.inference.trace import Trace
from reflectune.retrieval.encoders.base import ImageTextEncoder
from reflectune.retrieval.indexes.entry_index import Index
from reflectune.retrieval.rerankers.loading import load_reranker
from reflectune.retrieval.rerankers.words import WordReranker
from reflectune.retrieval.retrievers.entry_retriever import EntryRetriever
from reflectune.retrieval.retrievers.joint import JointSearch
from reflectune.retrieval.retrievers.queries import Query
from reflectune.retrieval.stores.exact import ExactStore


@pytest.mark.parametrize(
    ("box", "size"),
    [
        pytest.param(None, (40, 20), id="the whole"),
        pytest.param((0.25, 0.25, 0.75, 0.75), (20, 10), id="the centre"),
        pytest.param((0.0, 0.0, 0.001, 0.001), (1, 1), id="hardly anything"),
    ],
)
def test_a_part_of_an_image_is_never_empty(box: Box | None, size: tuple[int, int]) -> None:
    assert cropped(Image.new("RGB", (40, 20)), box).size == size


def test_a_part_of_an_image_is_where_the_box_says() -> None:
    image = Image.new("RGB", (40, 20), "red")
    image.paste("blue", (30, 10, 40, 20))
    assert cropped(image, (0.75, 0.5, 1.0, 1.0)).getcolors() == [(100, (0, 0, 255))]


class Found:
    """A base that finds one passage, whose entry scores 0.75 and which itself scores as a text says, or 0."""

    name = "pairs"

    def __init__(self, passage: Passage) -> None:
        self.passage = passage
        self.asked: list[tuple[tuple[int, int], str]] = []

    def search(self, queries: Sequence[Query], top: int) -> list[list[PassageHit]]:
        self.asked += [(query.image.size, query.text) for query in queries if query.image is not None]
        return [[PassageHit(self.passage, float(len(query.text)), 1, parts={"entry": 0.75})] for query in queries]


def test_a_part_of_an_image_is_searched_with_and_an_image_alone_finds_by_the_entrys_score(make) -> None:
    base = Found(make.passage())
    bases = KnowledgeBases(JointSearch([base]), embed=lambda texts: np.eye(len(texts), dtype=np.float32))
    boxes = (None, (0.0, 0.0, 0.5, 0.5), None)
    asked = SearchRequest(0, ("", "", "oak"), {"pairs": (1, 1, 1)}, boxes=boxes)
    (found,) = bases.search([(Image.new("RGB", (40, 20)), asked)])
    assert base.asked == [((40, 20), ""), ((20, 10), ""), ((40, 20), "oak")]
    assert [hits["pairs"][0].score for hits in found.hits] == [0.75, 0.75, 3.0]


SECTIONS = (Section("Age", "Old. Old."), Section("Owl", "An owl."))
ARTICLES = {name: Entry(name, name, sections=SECTIONS) for name in "abc"}


class Nearest:
    """Finds the entries a, b and c for every query, in this order, and takes note of how many it was asked for."""

    has_sections = False

    def __init__(self) -> None:
        self.asked: list[int] = []

    def check(self, weights: object) -> None:
        """Any weights will do."""

    def too_long(self, texts: Sequence[str]) -> list[bool]:
        return [len(text) > 10 for text in texts]

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        return np.eye(len(texts), dtype=np.float32)

    def search(self, queries: Sequence[Query], top_n: int, *, weights: object = None) -> list[list[Hit]]:
        self.asked.append(top_n)
        return [[Hit(name, 1 / rank, rank) for rank, name in enumerate("abc"[:top_n], start=1)] for _ in queries]


@pytest.mark.parametrize(
    ("pair_text", "top_n", "asked", "found"),
    [
        pytest.param("section", 1, [3, 2], ["a#1.0 b#1.0 c#1.0", "a#1.0 b#1.0"], id="one an entry"),
        pytest.param("section", 5, [3, 2], ["a#1.0 b#1.0 c#1.0", "a#1.0 b#1.0"], id="one an entry, whatever top_n"),
        pytest.param("summary", 1, [3, 2], ["a#0.0 b#0.0 c#0.0", "a#0.0 b#0.0"], id="summaries"),
        pytest.param("passages", 1, [1, 1], ["a#1.0 a#0.0", "a#1.0 a#0.0"], id="all of an entry"),
        pytest.param("passages", 2, [2, 2], ["a#1.0 b#1.0 a#0.0", "a#1.0 b#1.0"], id="all of two"),
    ],
)
def test_a_query_opens_as_many_entries_as_it_may_read_pairs(
    pair_text: PairText, top_n: int, asked: list[int], found: list[str]
) -> None:
    entries, weights = Nearest(), SearchSettings()
    bases = knowledge_bases(entries, None, ARTICLES, pair_text, search=weights, top_n=top_n, lead="none")  # type: ignore[arg-type]
    (retrieved,) = bases.search([(Image.new("RGB", (8, 8)), SearchRequest(0, ("owl", "an owl"), {"pairs": (3, 2)}))])
    assert entries.asked == asked
    assert [" ".join(hit.passage.id for hit in hits["pairs"]) for hits in retrieved.hits] == found


def test_a_query_that_its_encoder_does_not_read_whole_is_counted_and_said() -> None:
    """A search cuts it, and so does the comparison that may end PMSR; a text weight of 0 reads no text."""
    cut = []
    for weight in (0.5, 0.0):
        options = {"top_n": 1, "lead": "none"}
        settings = SearchSettings(text_weight=weight)
        bases = knowledge_bases(Nearest(), None, ARTICLES, "section", search=settings, **options)  # type: ignore[arg-type]
        request = SearchRequest(0, ("owl", "an owl of the tower"), {"pairs": (1, 1)})
        (found,) = bases.search([(Image.new("RGB", (8, 8)), request)])
        liken = SimilarityRequest(1, ("an owl of the river",), ("an owl of the tower",))
        (compared,) = similarities([liken], bases.embed, bases.embed_too_long)
        cut.append((found.cut, compared.cut))
    assert cut == [(1, 1), (0, 1)]
    log = StepLog()
    log.add(request, dataclasses.replace(found, cut=1), 0.0)
    assert "compared_cut" not in log.tokens
    log.add(liken, compared, 0.0)
    (sentence,) = cut_query_sentences({"pmsr": {"q": Trace("q", "pmsr", tokens=log.tokens)}})
    assert sentence.startswith("pmsr: 1 of 2 searches, and 1 comparisons, had a query longer than its encoder's")
    assert not cut_query_sentences({"pmsr": {"q": Trace("q", "pmsr", tokens={"searches": 2})}})


@pytest.mark.parametrize("name", iterative())
def test_traces_depend_on_top_n_exactly_where_it_says_how_many_entries_are_opened(name: str) -> None:
    by_budget = name in ("mi_rag", "oracle_pairs", "promsa") or name.startswith("pmsr")
    assert ("top_n" in find_recipe(name).settings.model_fields) is not by_budget


class Upright(ImageTextEncoder):
    """An encoder of two dimensions: an image is the first axis, and so is every text."""

    name, dimensions, fingerprint = "upright", 2, "f"

    def encode_images(self, images: Sequence[Image.Image]) -> np.ndarray:
        return np.tile(np.array([1, 0], dtype=np.float32), (len(images), 1))

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        return np.tile(np.array([1, 0], dtype=np.float32), (len(texts), 1))


@pytest.mark.parametrize("pair_text", ["summary", "section"])
def test_an_image_alone_is_searched_by_itself_whatever_a_text_weighs(pair_text: PairText, tmp_path: Path) -> None:
    entries = [Entry(name, name, summary=f"It is {name}.") for name in ("ash", "bee")]
    kb = write_knowledge_base(tmp_path / "kb", entries, name="k")
    store = ExactStore(tmp_path / "index", {"image": 2, "title": 2})
    axes = np.eye(2, dtype=np.float32)
    store.add({"image": axes, "title": axes[::-1]})  # the ash looks like the image, the bee is called as the text
    retriever = EntryRetriever(Index({"kb": "k"}, ("ash", "bee"), np.arange(2), store), Upright())
    asked = SearchRequest(0, ("", "bee", ""), {"pairs": (1, 1, 1)})

    def found(text_weight: float) -> list[tuple[str, float]]:
        weights = SearchSettings(text_weight=text_weight)
        bases = knowledge_bases(retriever, None, kb, pair_text, search=weights, top_n=1, lead="first_sentence")
        (retrieved,) = bases.search([(Image.new("RGB", (8, 8)), asked)])
        best = [hits["pairs"][0] for hits in retrieved.hits]
        return [(hit.passage.entry_id, hit.score) for hit in best]

    by_text = found(1.0)
    assert [entry_id for entry_id, _ in by_text] == ["ash", "bee", "ash"]
    assert by_text[::2] == found(0.25)[::2]  # as at any other weight


def test_reranked_passages_keep_their_order(make: SimpleNamespace) -> None:
    passages = tuple(make.passage(text=text) for text in ("It is green.", "An oak tree, an oak.", "An oak."))
    found = reranked(
        [(None, RerankRequest(0, "oak tree", passages)), (None, RerankRequest(0, "green", passages[:1]))],
        WordReranker(),
    )
    assert found[0].scores[1] > found[0].scores[2] > found[0].scores[0]
    assert len(found[1].scores) == 1


def test_a_reranker_of_images_is_shown_the_questions_image(make: SimpleNamespace) -> None:
    reranker, image = load_reranker("encoder", "miniature/clip"), Image.new("RGB", (30, 20), "teal")
    passages = tuple(make.passage(text=text) for text in ("It is green.", "An oak tree, an oak."))
    (found,) = reranked([(image, RerankRequest(0, "oak", passages))], reranker)
    (ranked,) = reranker.rank_with_images(["oak"], [image], [passages], [{}])
    assert dict(zip(passages, found.scores, strict=True)) == {one.passage: one.score for one in ranked}
    with pytest.raises(UserError, match="needs the question's image"):
        reranked([(None, RerankRequest(0, "oak", passages))], reranker)
