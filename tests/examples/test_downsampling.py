"""Greedy downsampling against figure A13 of MI-RAG written out, the search for a threshold, and the data set."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.core.types import Entry, Question
from reflectune.examples.downsampling import Vectors, downsample, find_threshold, write_subset
from reflectune.formats.dataset import Dataset, write_questions
from reflectune.formats.knowledge_base import write_knowledge_base

EIGHTHS = st.integers(-4, 4).map(lambda number: number / 8)
QUESTIONS = st.lists(st.tuples(EIGHTHS, EIGHTHS, EIGHTHS), max_size=24)
"""Embeddings whose products are exact and at most 0.75: a tie with the threshold is one, however they are summed."""
TEXTS = {
    "val_unseen_question": ["What colour is it?", "Where was this animal first found?", "What colour is it?"],
    "val_unseen_entity": ["Where was this animal first found?", "How tall is this tower?"],
}


def figure_a13(embeddings: Vectors, t: float) -> list[int]:
    """`DownSampleDataset`, line by line; a question is its number."""
    subset = []
    subset_emb: list[Vectors] = []
    for question, emb_q in enumerate(embeddings):
        is_redundant = False
        for emb in subset_emb:
            if float(np.dot(emb_q, emb)) > t:
                is_redundant = True
                break
        if not is_redundant:
            subset.append(question)
            subset_emb.append(emb_q)
    return subset


def unit(seed: int, count: int, dimensions: int) -> Vectors:
    """Directions at random, of length 1."""
    vectors = np.random.default_rng(seed).normal(size=(count, dimensions))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@given(questions=QUESTIONS, eighths=st.integers(-48, 49))
def test_it_keeps_what_figure_a13_keeps(questions: list[tuple[float, ...]], eighths: int) -> None:
    vectors, threshold = np.array(questions, dtype=np.float32).reshape(-1, 3), eighths / 64
    assert np.flatnonzero(downsample(vectors, threshold)).tolist() == figure_a13(vectors, threshold)


def test_identical_questions_stay_once_and_at_1_all_of_them() -> None:
    """Rounding makes a vector's product with itself more than 1 for some."""
    vectors = np.repeat(unit(0, 50, 7), 2, axis=0)
    assert ((vectors**2).sum(axis=1) > 1).any()
    assert downsample(vectors, 0.9999).sum() == 50
    assert downsample(vectors, 1.0).sum() == 100


@pytest.mark.parametrize("count", [20, 100, 190])
def test_the_threshold_found_keeps_about_the_number_asked_for(count: int) -> None:
    vectors = unit(1, 200, 16)
    threshold = find_threshold(vectors, count)
    assert abs(downsample(vectors, threshold).sum() - count) <= count * 0.05
    assert threshold == round(threshold, 6)


def test_too_few_questions_are_an_error() -> None:
    with pytest.raises(UserError, match=r"`count` is 20, and there are 18 questions; name more splits, or fewer"):
        find_threshold(unit(3, 18, 4), 20)


def test_a_number_that_no_threshold_keeps_is_an_error_that_names_the_nearest() -> None:
    """Ten groups of ten identical questions: nothing lies between 10 and 100."""
    with pytest.raises(UserError, match=r"keeps 50 ± 2 of 100 questions: .* keeps 10, 1 keeps 100; give one of these"):
        find_threshold(np.repeat(np.eye(10, dtype=np.float32), 10, axis=0), 50)


def encode(texts: Sequence[str]) -> Vectors:
    """A direction of its own for each text, by its length."""
    return np.eye(64, dtype=np.float32)[[len(text) for text in texts]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five questions in two splits, two of them repeated, about one image in a folder of its own."""
    Image.new("RGB", (8, 8)).save(tmp_path / "image.png")
    data = tmp_path / "data"
    write_knowledge_base(data / "knowledge", [Entry("a", "A")], name="kb")
    for split, texts in TEXTS.items():
        shown = {"image": "image.png", "more_images": ("image.png",), "split": split}
        questions = [Question(f"{split}_{n}", text=text, **shown) for n, text in enumerate(texts)]
        write_questions(data, split, questions)
    (data / "probes.jsonl").write_text("")
    manifest = {"name": "owls", "metric": "infoseek", "fingerprint": "f", "image_root": "..", "looks": {"a": 1}}
    (data / "dataset.json").write_text(json.dumps({**manifest, "sources": {}, "parts": {}}))
    return data


def test_a_subset_is_a_data_set_with_the_images_and_the_knowledge_of_the_whole_one_and_has_subsets(
    folder: Path, tmp_path: Path
) -> None:
    whole = Dataset(folder)
    write_subset(whole, list(TEXTS), encode, tmp_path / "few", threshold=0.99)
    few = Dataset(tmp_path / "few")
    ids = [question.id for split in TEXTS for question in few.questions(split)]
    assert ids == ["val_unseen_question_0", "val_unseen_question_1", "val_unseen_entity_1"]
    assert few.knowledge.fingerprint == whole.knowledge.fingerprint
    assert load_image(few.questions("val_unseen_entity")[0].image, root=few.image_roots).size == (8, 8)
    assert few.manifest["looks"] == {"a": 1}
    assert few.metric == whole.metric
    assert few.manifest["subset"] == {"threshold": 0.99, "kept": 3, "of": 5}
    assert "sources" not in few.manifest
    assert few.fingerprint != whole.fingerprint
    assert {path.name for path in few.root.iterdir()} == {"dataset.json", "questions", "probes.jsonl"}
    manifest = write_subset(few, ["val_unseen_entity"], encode, tmp_path / "fewer", count=1)
    fewer = Dataset(tmp_path / "fewer")
    (question,) = fewer.questions("val_unseen_entity")
    assert manifest["subset"]["kept"] == 1
    for path in question.images:
        assert load_image(path, root=fewer.image_roots).size == (8, 8)
    assert fewer.knowledge_folder == folder / "knowledge"
