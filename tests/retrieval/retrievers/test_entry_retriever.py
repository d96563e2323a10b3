import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from PIL import Image

from reflectune.core.images import load_image
from reflectune.core.types import Entry
from reflectune.formats.knowledge_base import write_knowledge_base
from reflectune.retrieval.indexes.building import build_index
from reflectune.retrieval.indexes.entry_index import Index, load_index
from reflectune.retrieval.retrievers.entry_retriever import EntryRetriever
from reflectune.retrieval.retrievers.queries import Query
from reflectune.retrieval.stores.base import Found
from reflectune.retrieval.stores.exact import ExactStore

from .conftest import KeyedEncoder


def equation_3(query, images, every, title) -> tuple[float, float, float]:
    """S_ret, sim(I, I_k) and sim(I, T_k) of the vectors of one image and one entry, written out."""
    image_part = max((float(query @ vector) for vector in images), default=float(np.mean(every @ query)))
    title_part = float(query @ title)
    return (image_part + title_part) / 2, image_part, title_part


@pytest.fixture
def retriever(kb, encoder, tmp_path) -> EntryRetriever:
    return EntryRetriever(build_index(kb, encoder, tmp_path / "index", batch_size=3, shard_rows=4), encoder)


def test_scores_are_equation_3_over_the_whole_knowledge_base(retriever, kb, entries, encoder, draw_image) -> None:
    images = [draw_image(seed) for seed in range(20, 40)]  # more than one batch of queries
    hits_by_image = retriever.search(list(map(Query, images)), 10)
    of_entry = {e.id: [encoder.encode_images([load_image(path)])[0] for path in kb.image_paths(e)] for e in kb}
    titles = {entry.id: encoder.encode_texts([entry.title])[0] for entry in entries}
    every = [vector for vectors in of_entry.values() for vector in vectors]
    for image, hits in zip(images, hits_by_image, strict=True):
        query = encoder.encode_images([image])[0].astype(np.float64)
        expected = {name: equation_3(query, of_entry[name], every, title) for name, title in titles.items()}
        assert {hit.entry_id for hit in hits} == set(expected)
        for hit in hits:
            assert (hit.score, hit.parts["image"], hit.parts["title"]) == pytest.approx(
                expected[hit.entry_id], abs=1e-5
            )
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        assert [hit.rank for hit in hits] == list(range(1, 11))
        assert {hit.kb for hit in hits} == {"owls"}


@pytest.fixture
def encoded(retriever, encoder, monkeypatch) -> list[int]:
    """Return a list that grows by the size of each batch of images that is encoded."""
    sizes: list[int] = []
    encode = encoder.encode_images
    monkeypatch.setattr(encoder, "encode_images", lambda images: sizes.append(len(images)) or encode(images))
    return sizes


def test_an_image_that_several_questions_are_about_is_encoded_once(retriever, encoded, draw_image) -> None:
    a, b = draw_image(1), draw_image(2)
    twice = retriever.search([Query(a), Query(b), Query(a.copy()), Query(a)], 3)
    assert twice == [twice[0], twice[1], twice[0], twice[0]]
    assert encoded == [2]


def test_an_image_that_was_made_ready_ahead_finds_the_same(retriever, kb, encoder, tmp_path, draw_image, monkeypatch):
    a, b, c = (draw_image(number) for number in (1, 2, 3))
    expected, (of_c,) = retriever.search([Query(a.copy()), Query(b.copy())], 3), retriever.search([Query(c.copy())], 3)
    fresh = EntryRetriever(load_index(tmp_path / "index", kb, encoder), encoder)
    made: list[int] = []
    prepare = encoder.prepare
    monkeypatch.setattr(encoder, "prepare", lambda image: made.append(1) or prepare(image))
    for image in (a, b, c):
        fresh.prepare(image)
    assert len(made) == 3
    assert fresh.search([Query(a), Query(b)], 3) == expected
    assert fresh.search([Query(c)], 3) == [of_c]
    assert len(made) == 3
    fresh.prepare(a.copy())  # its vector is cached
    assert len(made) == 3


def test_only_a_batch_of_the_same_images_is_taken_from_what_was_encoded(retriever, encoded, draw_image) -> None:
    a, b = draw_image(1), draw_image(2)
    first = retriever.search([Query(a), Query(b)], 3)
    assert retriever.search([Query(a.copy()), Query(b)], 3) == first
    assert encoded == [2]
    retriever.search([Query(b), Query(a)], 3)  # an encoder's last digits may depend on what stands where
    retriever.search([Query(a)], 3)
    assert encoded == [2, 2, 1]


def test_weighted_retrievers_share_the_bound_of_what_was_encoded(retriever, encoded, draw_image) -> None:
    retriever.max_cached = 2
    for seed in range(5):
        retriever.weighted(title_weight=0.25).search([Query(draw_image(seed))], 1)
    retriever.search([Query(draw_image(4))], 1)
    assert len(encoded) == 5
    retriever.search([Query(draw_image(0))], 1)
    assert len(encoded) == 6


class Fixed(KeyedEncoder):
    """An encoder of two dimensions, which sees every image as the first axis."""

    dimensions = 2

    def encode_images(self, images):
        return np.tile(np.array([1, 0], dtype=np.float32), (len(images), 1))


def unit(*cosines: float) -> np.ndarray:
    return np.array([[c, np.sqrt(1 - c * c)] for c in cosines], dtype=np.float32).reshape(-1, 2)


def index_of(folder, names: str, owner: Sequence[int], image: np.ndarray, title: np.ndarray) -> Index:
    """An index of entries that are named by letters; `title` has a row for each row of `image`."""
    store = ExactStore(folder, {"image": 2, "title": 2})
    store.add({"image": image, "title": title})
    return Index({"kb": "k"}, tuple(names), np.array(owner), store)


class Approximate:
    """A store that finds less than there is in the exact one that it holds, and notes what it was asked for."""

    def __init__(self, store) -> None:
        self.store, self.asked = store, []
        self.fields, self.get = store.fields, store.get

    def __len__(self) -> int:
        return len(self.store)


class Few(Approximate):
    """Finds three rows at most, as one does that looks into few cells."""

    def search(self, query, top):
        self.asked.append(top)
        found = self.store.search(query, top)
        found.rows[:, 3:], found.scores[:, 3:] = -1, -np.inf
        return found


def test_what_an_approximate_store_does_not_find_is_not_asked_for_again(draw_image, tmp_path) -> None:
    whole = index_of(tmp_path, "abcdefghijklmnopqrst", range(20), unit(*[0.9] * 20), unit(*[0.5] * 20))
    store = Few(whole.store)
    hits = EntryRetriever(dataclasses.replace(whole, store=store), Fixed()).search([Query(draw_image(0))], 5)[0]
    assert [hit.entry_id for hit in hits] == ["a", "b", "c"]
    assert store.asked == [10]


class Coarse(Approximate):
    """Misses row 0 unless it is asked for many rows."""

    def search(self, query, top):
        self.asked.append((len(next(iter(query.values()))), top))
        found = self.store.search(query, min(top + 1, len(self)))
        kept = [row[(row > 0) | (top > 4)][:top] for row in found.rows]
        return Found(np.array(kept), np.zeros((len(kept), len(kept[0]))))


class Pointing(Fixed):
    """An encoder of images by their first pixel: red points one way, what isn't red the other."""

    def encode_images(self, images):
        return np.array([(1, 0) if image.getpixel((0, 0))[0] > 127 else (0, 1) for image in images], dtype=np.float32)


def test_what_an_image_finds_depends_on_no_other_one(tmp_path) -> None:
    """An entry with many images makes one query want more rows, and the other one isn't asked for again."""
    near, crowded = unit(0.95, 0.9, 0.8), np.tile(unit(0.0), (9, 1))  # one direction each
    image = np.concatenate([near, crowded])
    whole = index_of(tmp_path, "abcd", (0, 1, 2, *[3] * 9), image, image)
    images = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]

    def found(*places: int) -> list[list[str]]:
        store = Coarse(whole.store)
        retriever = EntryRetriever(dataclasses.replace(whole, store=store), Pointing(), title_weight=0.0)
        hits = retriever.search([Query(images[place]) for place in places], 2)
        assert store.asked[-1][0] == (1 if 1 in places else len(places))
        return [[hit.entry_id for hit in row] for row in hits]

    assert found(0, 1) == [*found(0), *found(1)]
    assert found(0) == [["b", "c"]]
    exact = EntryRetriever(whole, Pointing(), title_weight=0.0)
    ranked = exact.search(list(map(Query, images)), 2)
    assert [[hit.entry_id for hit in row] for row in ranked] == [["a", "b"], ["d", "c"]]


def test_entries_without_any_image_are_ranked_by_title(encoder, draw_image, tmp_path) -> None:
    kb = write_knowledge_base(tmp_path / "kb", [Entry("a", "Ash"), Entry("b", "Birch")], name="trees")
    hits = EntryRetriever(build_index(kb, encoder, tmp_path / "index"), encoder).search([Query(draw_image(0))], 5)[0]
    assert len(hits) == 2
    assert all(hit.score == hit.parts["title"] / 2 for hit in hits)
