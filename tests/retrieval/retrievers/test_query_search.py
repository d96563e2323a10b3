"""Searching an index of entries with images, texts and both: the same as comparing everything by hand."""

import hashlib
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.retrieval.indexes.building import build_index
from reflectune.retrieval.indexes.entry_index import Index
from reflectune.retrieval.retrievers.entry_retriever import EntryRetriever
from reflectune.retrieval.retrievers.queries import Query, Weights, equation_3, equation_7, modality_weights
from reflectune.retrieval.stores.exact import ExactStore

from .conftest import KeyedEncoder

DIMENSIONS = 4


def exact(key: str) -> np.ndarray:
    """Quarters from -1 to 1: what is made of them by sums and halves has no rounding."""
    digits = hashlib.sha256(key.encode()).digest()[:DIMENSIONS]
    return np.array([(digit % 9 - 4) / 4 for digit in digits], dtype=np.float32)


class Exact(KeyedEncoder):
    """An encoder of one space without rounding."""

    dimensions, vector = DIMENSIONS, staticmethod(exact)


class TwoSpaces(Exact):
    """Texts lie elsewhere: images are turned round to get there."""

    text_space = "mapped"

    def to_title_space(self, images):
        return images[:, ::-1]


OWNERS = [0, 1, 1, 1, 2, 3, 3, 4, 5, 6, 6]
IMAGES = np.array([exact(f"row {row}") for row in range(len(OWNERS))])
TITLES = np.array([exact(f"title {owner}") for owner in OWNERS])
NAMES = [f"e{number}" for number in range(7)]
EIGHTHS = st.lists(st.integers(0, 7), min_size=3, max_size=3).map(lambda cuts: sorted([0, *cuts, 8]))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    store = ExactStore(tmp_path_factory.mktemp("store"), {"image": DIMENSIONS, "title": DIMENSIONS})
    store.add({"image": IMAGES, "title": TITLES})
    return Index({"kb": "k"}, NAMES, np.array(OWNERS), store)


def draw_image(number: int) -> Image.Image:
    return Image.new("RGB", (2, 2), (number, 0, 0))


def queries() -> st.SearchStrategy[Query]:
    images = st.integers(0, 3).map(draw_image)
    texts = st.sampled_from(["an owl", "which owl?", "a bird at night"])
    return st.one_of(
        images.map(Query), texts.map(lambda text: Query(text=text)), st.builds(Query, image=images, text=texts)
    )


def by_hand(query: Query, weights: Weights) -> list[tuple[str, float]]:
    """All entries by the score of their best row, equal ones in the index's order."""
    own = weights.of(query)
    image = Exact().encode_images([query.image])[0] if query.image is not None else np.zeros(DIMENSIONS)
    text = Exact().encode_texts([query.text])[0]
    rows = (
        own.get("image", 0) * (IMAGES @ image)
        + own.get("title", 0) * (TITLES @ image)
        + own.get("text_image", 0) * (IMAGES @ text)
        + own.get("text_title", 0) * (TITLES @ text)
    )
    best = [max(float(rows[row]) for row, owner in enumerate(OWNERS) if owner == number) for number in range(7)]
    order = sorted(range(7), key=lambda number: (-best[number], number))
    return [(NAMES[number], best[number]) for number in order]


@given(query=queries(), cuts=EIGHTHS, top=st.integers(1, 9))
@settings(deadline=None)
def test_any_weights_rank_as_comparing_every_row_does(index: Index, query: Query, cuts: list[int], top: int) -> None:
    weights = Weights(*((after - before) / 8 for before, after in itertools.pairwise(cuts)))
    try:
        weights.of(query)
    except ValueError:
        with pytest.raises(ValueError, match="can't be searched with"):
            EntryRetriever(index, Exact()).search([query], top, weights=weights)
        return
    expected = by_hand(query, weights)
    (hits,) = EntryRetriever(index, Exact()).search([query], top, weights=weights)
    assert [hit.rank for hit in hits] == list(range(1, min(top, 7) + 1))
    assert [hit.score for hit in hits] == pytest.approx([score for _, score in expected[:top]], abs=1e-6)
    own = weights.of(query)
    if own == {part: round(weight * 8) / 8 for part, weight in own.items()}:  # no rounding: ties are ties
        assert [hit.entry_id for hit in hits] == [name for name, _ in expected[:top]]
    for hit in hits:
        assert hit.parts.keys() == own.keys()
        assert hit.score == pytest.approx(sum(own[part] * hit.parts[part] for part in own))
        assert (hit.query, hit.kb) == (query.kind, "k")


@given(batch=st.lists(queries(), max_size=40), top=st.integers(1, 9))
@settings(deadline=None)
def test_a_batch_finds_what_its_queries_find_alone(index: Index, batch: list[Query], top: int) -> None:
    retriever = EntryRetriever(index, Exact())
    assert retriever.search(batch, top) == [EntryRetriever(index, Exact()).search([query], top)[0] for query in batch]


def test_an_image_alone_is_searched_for_as_ever(kb, encoder, tmp_path: Path) -> None:
    """The bits of scores and parts are those of the image's own search, whatever else is in the batch."""
    retriever = EntryRetriever(build_index(kb, encoder, tmp_path / "index"), encoder, title_weight=0.3)
    images = [Image.new("RGB", (32, 32), colour) for colour in ("red", "teal", "navy")]
    plain = retriever.search([*map(Query, images)], 6)
    mixed = retriever.search([*map(Query, images), Query(text="an owl"), Query(images[0], "an owl")], 6)
    assert mixed[:3] == plain == retriever.search([*map(Query, images)], 6, weights=equation_3(0.3))
    assert {hit.query for hit in plain[0]} == {"image"}


def test_real_texts_are_compared_with_titles_and_images(kb, entries, encoder, tmp_path: Path) -> None:
    retriever = EntryRetriever(build_index(kb, encoder, tmp_path / "index"), encoder)
    (hits,) = retriever.search([Query(text=entries[4].title)], 10)
    assert hits[0].entry_id == "e4"
    assert hits[0].score == hits[0].parts["text_title"] == pytest.approx(1, abs=1e-5)
    (hits,) = retriever.search([Query(text="an owl")], 10, weights=modality_weights("C", "I"))
    without_image = {round(hit.parts["text_image"], 9) for hit in hits if hit.entry_id in ("e2", "e5", "e8")}
    others = [hit.parts["text_image"] for hit in hits if hit.entry_id not in ("e2", "e5", "e8")]
    assert len(without_image) == 1
    assert min(others) < without_image.pop() < max(others)  # the mean of all images: not pushed to the bottom


def test_an_encoder_of_two_spaces_compares_texts_with_titles_alone(index: Index) -> None:
    retriever = EntryRetriever(index, TwoSpaces())
    (hits,) = retriever.search([Query(draw_image(1), "an owl")], 7, weights=equation_7(0.25))
    assert hits[0].parts.keys() == {"image", "title", "text_title"}
    with pytest.raises(UserError, match="the weight of `text_image` to 0"):
        retriever.search([Query(draw_image(1), "an owl")], 7, weights=modality_weights("IQ", "IT"))


def test_no_queries_find_nothing_and_top_n_must_be_positive(index: Index) -> None:
    retriever = EntryRetriever(index, Exact())
    assert retriever.search([], 5) == []
    with pytest.raises(ValueError, match="top_n"):
        retriever.search([Query(text="an owl")], 0)
