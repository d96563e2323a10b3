"""Captions of a gallery: training data of stage 1, without its test images."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.examples.pocket.gallery import caption_set, entities, visual_questions
from reflectune.examples.pocket.gallery.build import GallerySettings, build_gallery
from reflectune.examples.pocket.gallery.caption_set import TRAINED, build_captions
from reflectune.examples.pocket.gallery.collecting import Collection
from reflectune.examples.pocket.gallery.questions import SPLITS
from reflectune.examples.pocket.gallery.sources import stamps
from reflectune.formats.dataset import Dataset

from .conftest import draw, write, write_sources

SETTINGS = GallerySettings(seed=3)
MORE = {"spade": "A garden spade, for digging.", "axe": "An axe.", "saw": "A saw", "pliers": "Pliers."}


@pytest.fixture(scope="module", autouse=True)
def few_things() -> Iterator[None]:
    """So few things that the true shares would be none of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entities, "SHARES", {"val": 0.5})
        patch.setattr(caption_set, "HELD_OUT", 0.4)
        yield


@pytest.fixture
def more(sources: Collection) -> Collection:
    return with_stamps(sources)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Dataset, Dataset]:
    """A gallery and its captions, which tests only read."""
    root = tmp_path_factory.mktemp("captions")
    return build(root, with_stamps(write_sources(root / "cache")))


def with_stamps(sources: Collection) -> Collection:
    """Add stamps that no article tells of, one of them a copy of an image that an article has."""
    folder = sources.folders["tuxpaint"] / stamps.FOLDER / "household/tools"
    for number, (name, caption) in enumerate(MORE.items()):
        draw(folder / f"{name}.png", ("navy", "teal", "pink", "lime")[number], "rectangle")
        write(folder / f"{name}.txt", caption)
    write(folder / "copy.txt", "A copy.")
    (folder / "copy.png").write_bytes((folder / "hammer.png").read_bytes())
    return sources


def build(folder: Path, sources: Collection, settings: GallerySettings = SETTINGS) -> tuple[Dataset, Dataset]:
    build_gallery(folder / "gallery", sources, settings)
    build_captions(folder / "captions", folder / "gallery", sources, settings)
    return Dataset(folder / "gallery"), Dataset(folder / "captions")


def contents(dataset: Dataset, *splits: str) -> set[str]:
    """Hashes of the files of all images that the splits' questions are about."""
    paths = {dataset.root / question.image for split in splits for question in dataset.questions(split)}
    return {hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


@pytest.mark.parametrize("seed", range(2))
def test_no_image_of_a_test_or_of_validation_is_learned_from(tmp_path: Path, more: Collection, seed: int) -> None:
    gallery, captions = build(tmp_path, more, GallerySettings(seed=seed))
    tested = contents(gallery, *(split for split in SPLITS if split not in TRAINED))
    learned, held_out = contents(captions, "train", "visual"), contents(captions, "val")
    assert all((tested, learned, held_out))
    assert not learned & tested
    assert not learned & held_out
    assert not held_out & tested
    unseen = {question.entity_ids[0] for question in gallery.questions("val_unseen_entity")}
    shown = {name for split in ("train", "visual", "val") for q in captions.questions(split) for name in q.entity_ids}
    assert unseen
    assert not unseen & shown  # the image in the knowledge base is not learned from either


def test_held_out_captions_are_never_seen(built) -> None:
    _, captions = built
    learned = [question for split in ("train", "visual") for question in captions.questions(split)]
    held_out = captions.questions("val")
    assert not {q.meta["thing"] for q in learned} & {q.meta["thing"] for q in held_out}
    said = {answer.lower() for question in held_out for answer in question.answers}
    assert not said & {q.answers[0].lower() for q in captions.questions("train")}


def test_each_image_is_captioned_in_a_sentence_and_in_a_word(built) -> None:
    _, captions = built
    both = [*captions.questions("train"), *captions.questions("val")]
    assert all(question.requires_retrieval is False for question in both)
    sentences = {q.image: q.answers[0] for q in both if q.answer_style == "free"}
    words = {q.image: q.answers[0] for q in both if q.answer_style == "short"}
    assert sentences.keys() == words.keys()
    known = {image.rsplit("/", 1)[1]: (sentence, words[image]) for image, sentence in sentences.items()}
    assert known["spade.jpg"] == ("A garden spade, for digging.", "garden spade")
    assert known["saw.jpg"] == ("A saw.", "saw")
    assert "copy.jpg" not in known  # its pixels are the hammer's
    for image in sentences:
        assert load_image(image, root=captions.image_roots).size


def test_no_wording_of_the_lessons_is_one_of_the_held_out() -> None:
    held_out = {words for _, kept in visual_questions.ASKED.values() for words in kept}
    known = {words for asked, _ in visual_questions.ASKED.values() for words in asked}
    further = {words for each in visual_questions.FURTHER.values() for words in each}
    assert not held_out & (known | further)
    assert visual_questions.FURTHER.keys() == visual_questions.ASKED.keys() == caption_set.WORDINGS.keys()


def test_the_same_seed_gives_the_same_captions(built, tmp_path: Path, more: Collection) -> None:
    assert build(tmp_path / "other", more)[1].fingerprint == built[1].fingerprint
    assert build(tmp_path / "third", more, GallerySettings(seed=4))[1].fingerprint != built[1].fingerprint


def test_captions_of_a_different_gallery_are_refused(built, tmp_path: Path, more: Collection) -> None:
    gallery, captions = built
    before = captions.fingerprint
    assert build_captions(captions.root, gallery.root, more, SETTINGS)["fingerprint"] == before
    build_gallery(tmp_path / "other", more, GallerySettings(seed=4))
    with pytest.raises(UserError, match="holds another data set"):
        build_captions(captions.root, tmp_path / "other", more, GallerySettings(seed=4))
