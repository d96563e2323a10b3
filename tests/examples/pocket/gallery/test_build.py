"""A gallery built from hand-made sources keeps its promises."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.data_builders.annotators.string import stated_answer
from reflectune.examples.pocket.gallery import entities, questions
from reflectune.examples.pocket.gallery.build import IMAGES, GallerySettings, build_gallery
from reflectune.examples.pocket.gallery.collecting import Collection
from reflectune.examples.pocket.gallery.questions import SPLITS
from reflectune.formats.dataset import Dataset
from reflectune.formats.passages import split_passages

from .conftest import ARTICLES, write, write_sources

SETTINGS = GallerySettings(seed=3)


@pytest.fixture(scope="module", autouse=True)
def half_unseen() -> Iterator[None]:
    """So few entities that a fifth of each kind would be none, and few facts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entities, "SHARES", {"val": 0.5})
        for name, number in {"FACTS": 99, "REPEATS": 2, "VISUAL": 2, "TWO_HOP": 9}.items():
            patch.setattr(questions, name, number)
        yield


def build(folder: Path, sources: Collection, settings: GallerySettings = SETTINGS) -> Dataset:
    build_gallery(folder, sources, settings)
    return Dataset(folder)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Dataset:
    """A gallery that tests only read."""
    root = tmp_path_factory.mktemp("gallery")
    return build(root / "out", write_sources(root / "cache"))


def every(dataset: Dataset) -> list[Question]:
    return [question for split in SPLITS for question in dataset.questions(split)]


def knowledge(dataset: Dataset) -> list[Question]:
    return [question for question in every(dataset) if question.requires_retrieval]


def test_every_article_is_an_entry_and_one_image_of_it_is_kept_from_questions(dataset) -> None:
    assert {entry.title for entry in dataset.knowledge} == set(ARTICLES)
    shown = {image for entry in dataset.knowledge for image in entry.images}
    asked = {question.image for question in every(dataset)}
    assert len(shown) == 6  # the turkey is a country's article, and is refused; the hammer and five more have two
    assert not shown & asked
    for image in shown | asked:
        assert (dataset.root / image).is_file()
    rows = [json.loads(line) for line in (dataset.root / IMAGES).read_text().splitlines()]
    hands: dict[str, dict[str, set[str]]] = {}
    for row in rows:
        hands.setdefault(row["entity"], {}).setdefault(row["use"], set()).add(row["hand"])
    for uses in hands.values():
        own = uses.pop("knowledge base")
        assert not own & set().union(*uses.values())


def test_an_answer_is_stated_where_the_question_says(dataset) -> None:
    questions = knowledge(dataset)
    assert len(questions) > 20
    for question in questions:
        entry = dataset.knowledge.get(question.entity_ids[-1])
        passages = [p for p in split_passages(entry) if any(e.section == p.section for e in question.evidence)]
        assert any(stated_answer(question, passage) for passage in passages), question
        assert {evidence.entry_id for evidence in question.evidence} == set(question.entity_ids)


def test_two_hops_lead_to_a_second_article(dataset) -> None:
    hops = [question for question in every(dataset) if question.meta.get("two_hop")]
    assert hops
    for question in hops:
        first, second = question.entity_ids
        assert first != second
        assert question.split.startswith("two_hop_")
    rivers = [question for question in hops if question.meta["relation"] == "capital/river"]
    assert [question.answers[0] for question in rivers] == ["Seine"] * len(rivers)
    assert all(question.entity_ids == ("en:France", "en:Paris") for question in rivers)


def test_an_unseen_entity_shares_no_image_with_training(dataset) -> None:
    train, unseen = dataset.questions("train"), dataset.questions("val_unseen_entity")
    assert train
    assert unseen
    assert not {question.image for question in train} & {question.image for question in unseen}
    assert not {question.entity_ids[0] for question in train} & {question.entity_ids[0] for question in unseen}


def test_unseen_questions_ask_known_entities_for_other_facts(dataset) -> None:
    asked = {(question.entity_ids, question.meta.get("relation")) for question in dataset.questions("train")}
    kept = [q for name in ("val", "test") for q in dataset.questions(f"{name}_unseen_question") if q.requires_retrieval]
    assert kept
    for question in kept:
        assert (question.entity_ids, question.meta["relation"]) not in asked
        assert question.entity_ids in {entity for entity, _ in asked}
        assert question.meta["phrasing"] == "held_out"


def test_training_never_has_held_out_phrasings(dataset) -> None:
    assert {question.meta["phrasing"] for question in dataset.questions("train")} == {"seen"}


def test_what_looking_answers_needs_no_retrieval(dataset) -> None:
    looked = [question for question in every(dataset) if "attribute" in question.meta]
    assert {question.meta["attribute"] for question in looked} >= {"name", "kind"}
    for question in looked:
        assert question.requires_retrieval is False
        assert question.evidence == ()
        if question.meta["attribute"] == "top":
            assert question.answers == ({"en:France": "blue", "en:Spain": "red"}[question.entity_ids[0]],)


def test_the_same_seed_gives_the_same_gallery(dataset, tmp_path: Path, sources: Collection) -> None:
    assert build(tmp_path / "other", sources).fingerprint == dataset.fingerprint
    assert build(tmp_path / "third", sources, GallerySettings(4)).fingerprint != dataset.fingerprint


def test_a_build_that_was_cut_off_goes_on(tmp_path: Path, sources: Collection) -> None:
    whole = build(tmp_path / "out", sources)
    before = whole.fingerprint
    (tmp_path / "out/dataset.json").unlink()
    images = sorted((tmp_path / "out/images").rglob("*.jpg"))
    images[0].unlink()
    times = {path: path.stat().st_mtime_ns for path in images[1:]}
    assert build(tmp_path / "out", sources).fingerprint == before
    assert {path: path.stat().st_mtime_ns for path in images[1:]} == times
    assert images[0].is_file()


def test_a_folder_of_other_settings_is_refused(dataset, sources: Collection) -> None:
    with pytest.raises(UserError, match="holds another data set"):
        build(dataset.root, sources, GallerySettings(4))


def test_a_bad_image_stops_the_build(tmp_path: Path, sources: Collection) -> None:
    write(sources.folders["fluent"] / "package/assets/1f981.webp", "no image")
    with pytest.raises(UserError, match="image fluent/1f981 is not a readable image"):
        build(tmp_path / "out", sources)
    assert not (tmp_path / "out/dataset.json").exists()


def test_a_copy_of_the_shown_image_is_no_question(tmp_path: Path, sources: Collection) -> None:
    stamp = next(sources.folders["tuxpaint"].rglob("lion.png"))
    (sources.folders["fluent"] / "package/assets/1f981.webp").write_bytes(stamp.read_bytes())
    dataset = build(tmp_path / "out", sources)
    assert not [question for question in every(dataset) if question.entity_ids[0] == "en:Lion"]
    assert dataset.knowledge.get("en:Lion").images


def test_a_limit_is_of_each_kind(tmp_path: Path, sources: Collection) -> None:
    dataset = build(tmp_path / "out", sources, GallerySettings(3, limit=1))
    kinds: dict[str, set[Any]] = {}
    for question in every(dataset):
        kinds.setdefault(question.meta["kind"], set()).add(question.entity_ids[0])
    assert {kind: len(ids) for kind, ids in kinds.items()} == dict.fromkeys(kinds, 1)


def test_flags_are_drawn_out_of_each_split_to_their_share(dataset, tmp_path: Path) -> None:
    build_gallery(tmp_path / "out", write_sources(tmp_path / "cache"), SETTINGS, flags=0.25)
    thinned, lost = Dataset(tmp_path / "out"), 0
    for split in SPLITS:
        before, after = dataset.questions(split), thinned.questions(split)
        assert after == [question for question in before if question in after]  # as they were, in their order
        about = [q.meta["style"] == "flag" for q in after if q.requires_retrieval]
        assert sum(about) <= 0.25 * len(about)
        gone = [question for question in before if question not in after]
        assert all(question.requires_retrieval and question.meta["style"] == "flag" for question in gone)
        assert not gone or 4 * (sum(about) + 1) > len(about) + 1  # one more would be too many
        lost += len(gone)
    assert lost
    assert thinned.fingerprint != dataset.fingerprint
