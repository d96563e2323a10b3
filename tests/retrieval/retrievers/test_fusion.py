"""A query's image and text as one vector: the rules of fusion against sums by hand, and against each other."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.retrieval.encoders.base import ImageTextEncoder
from reflectune.retrieval.encoders.encoder import load_encoder
from reflectune.retrieval.indexes.building import build_index
from reflectune.retrieval.indexes.entry_index import Index
from reflectune.retrieval.retrievers.entry_retriever import EntryRetriever
from reflectune.retrieval.retrievers.fusion import weighted_sum
from reflectune.retrieval.retrievers.queries import Query, Weights, equation_7, modality_weights
from reflectune.retrieval.stores.exact import ExactStore

from .conftest import KeyedEncoder

DIMENSIONS, ENTRIES = 6, 9


def unit(key: str) -> np.ndarray:
    """A vector of length 1 that a key decides."""
    vector = np.frombuffer(hashlib.sha256(key.encode()).digest()[:DIMENSIONS], dtype=np.uint8) - 127.5
    return (vector / np.linalg.norm(vector)).astype(np.float32)


class OneSpace(KeyedEncoder):
    dimensions, vector = DIMENSIONS, staticmethod(unit)


class Pairs(OneSpace):
    """Reads an image and a text together, too."""

    reads_pairs = True

    def encode_pairs(self, images, texts):
        pairs = zip(images, texts, strict=True)
        return np.array([unit(f"pair {image.getpixel((0, 0))} {text}") for image, text in pairs])


class TwoSpaces(OneSpace):
    """Texts lie elsewhere."""

    text_space = "mapped"

    def to_title_space(self, images):
        return images[:, ::-1]


FIELDS = {field: np.array([unit(f"{field} {n}") for n in range(ENTRIES)]) for field in ("image", "title", "summary")}
NAMES = [f"e{number}" for number in range(ENTRIES)]
TEXT = "which owl?"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    store = ExactStore(tmp_path_factory.mktemp("store"), dict.fromkeys(FIELDS, DIMENSIONS))
    store.add(FIELDS)
    return Index({"kb": "k"}, NAMES, np.arange(ENTRIES), store)


def draw_image(number: int) -> Image.Image:
    return Image.new("RGB", (2, 2), (number, 0, 0))


def search(index: Index, encoder: ImageTextEncoder, weights: Weights, query: Query | None = None):
    (hits,) = EntryRetriever(index, encoder).search([query or Query(draw_image(1), TEXT)], 9, weights=weights)
    return hits


def sides() -> tuple[np.ndarray, np.ndarray]:
    return OneSpace().encode_images([draw_image(1)])[0], OneSpace().encode_texts([TEXT])[0]


@given(weight=st.floats(0, 1), share=st.floats(0, 1))
@settings(deadline=None)
def test_the_sum_of_the_vectors_is_searched_for_by_every_field(index: Index, weight: float, share: float) -> None:
    image, text = sides()
    vector = (1 - weight) * image.astype(np.float64) + weight * text
    vector /= np.linalg.norm(vector)
    hits = search(index, OneSpace(), equation_7(weight).with_summaries(share).fused("vectors"))
    fields = {"image": 1 - weight, "title": weight * (1 - share), "summary": weight * share}
    expected = {
        name: sum(fields[field] * float(FIELDS[field][n] @ vector) for field in fields) for n, name in enumerate(NAMES)
    }
    assert {hit.entry_id: hit.score for hit in hits} == pytest.approx(expected, abs=1e-6)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    for hit in hits:
        assert hit.query == "image and text"
        for part, score in hit.parts.items():
            own = FIELDS[part.removeprefix("fused_")][NAMES.index(hit.entry_id)]
            assert score == pytest.approx(float(own @ vector), abs=1e-6)


@pytest.mark.parametrize("target", ["I", "IT", "T"])
def test_weights_that_are_products_rank_alike_by_scores_and_by_vectors(index: Index, target) -> None:
    """Every similarity of a side's and a field's weight: the one vector only scales the sum."""
    weights = modality_weights("IQ", target)
    scores, vectors = (search(index, OneSpace(), weights.fused(rule)) for rule in ("scores", "vectors"))
    assert [hit.entry_id for hit in scores] == [hit.entry_id for hit in vectors]
    image, text = sides()
    length = float(np.linalg.norm((image + text) / 2))
    assert [hit.score for hit in scores] == pytest.approx([hit.score * length for hit in vectors], abs=1e-6)


@pytest.mark.parametrize("rule", ["vectors", "features"])
def test_a_side_alone_is_searched_for_as_ever(index: Index, rule) -> None:
    for query in (Query(draw_image(1)), Query(text=TEXT)):
        weights = Weights(image=0.25, title=0.25, text_image=0.25, text_title=0.25)
        assert search(index, Pairs(), weights.fused(rule), query) == search(index, Pairs(), weights, query)


def test_what_an_encoder_reads_together_it_doesnt_read_apart(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyedEncoder, "encode", None)  # of images and of texts
    encoder = Pairs()
    hits = search(index, encoder, equation_7(0.25).fused("features"))
    vector = encoder.encode_pairs([draw_image(1)], [TEXT])[0]
    expected = {
        name: 0.75 * FIELDS["image"][n] @ vector + 0.25 * FIELDS["title"][n] @ vector for n, name in enumerate(NAMES)
    }
    assert {hit.entry_id: hit.score for hit in hits} == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("rule", ["vectors", "features"])
def test_a_batch_finds_what_its_queries_find_alone(index: Index, rule) -> None:
    queries = [Query(draw_image(n % 4), text) for n, text in enumerate(["an owl", "", "an owl", "a bird"] * 6)]
    queries += [Query(text="a bird"), *queries[:3]]
    weights = equation_7(0.25).fused(rule)
    batch = EntryRetriever(index, Pairs()).search(queries, 4, weights=weights)
    alone = [EntryRetriever(index, Pairs()).search([query], 4, weights=weights)[0] for query in queries]
    assert batch == alone


@pytest.mark.parametrize(
    ("encoder", "rule", "told"),
    [
        (TwoSpaces, "vectors", r"has a separate space for texts.*set `fusion: scores`"),
        (TwoSpaces, "features", r"has a separate space for texts.*set `fusion: scores`"),
        (OneSpace, "features", r"doesn't read an image and a text together; set `fusion: vectors`"),
    ],
    ids=["two spaces", "two spaces read together", "apart"],
)
def test_what_an_encoder_cant_do_is_refused(index, encoder, rule, told) -> None:
    with pytest.raises(UserError, match=told):
        search(index, encoder(), equation_7().fused(rule))
    with pytest.raises(UserError, match=told):
        EntryRetriever(index, encoder()).check(equation_7().fused(rule))


def test_sides_that_cancel_out_leave_nothing() -> None:
    vector = unit("a")
    assert not weighted_sum({"image": 0.5, "text_image": 0.5}, vector, -vector).any()


def test_a_language_model_reads_image_and_text_of_a_query_together(kb, draw_image, tmp_path: Path) -> None:
    encoder = load_encoder("vlm2vec:miniature/llava")
    index = build_index(kb, encoder, tmp_path / "index", batch_size=5)
    hits = search(index, encoder, equation_7(0.0).fused("features"), Query(draw_image(4), "Which owl is it?"))
    vector = encoder.encode_pairs([draw_image(4)], ["Which owl is it?"])[0]
    rows = index.store.get(np.arange(len(index.store)))["image"] @ vector
    assert hits[0].score == hits[0].parts["fused_image"] == pytest.approx(float(rows.max()), abs=1e-5)
    apart = search(index, encoder, equation_7(0.0), Query(draw_image(4), "Which owl is it?"))
    assert hits[0].score < apart[0].score - 1e-3  # the image alone is in the index: read with a text it isn't itself
