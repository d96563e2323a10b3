"""Truths about a whole world: held-out looks and phrasings, answers, ranges, evidence."""

import filecmp
import random
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from reflectune.core.errors import UserError
from reflectune.examples.miniature.world import build
from reflectune.examples.miniature.world.build import build_world
from reflectune.examples.miniature.world.entities import (
    ATTRIBUTES,
    Looks,
    famous_entities,
    make_entity,
    random_looks,
)
from reflectune.examples.miniature.world.facts import RELATIONS, state
from reflectune.examples.miniature.world.population import constructed_look_alike
from reflectune.formats.dataset import Dataset, splits

UNSEEN = ("val_unseen_question", "val_unseen_entity", "test_unseen_question", "test_unseen_entity")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    build_world(folder, size="tiny", seed=3)
    return folder


@pytest.fixture(scope="module")
def further(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same world, with traffic and with two-hop questions for training."""
    folder = tmp_path_factory.mktemp("further")
    build_world(folder, size="tiny", seed=3, traffic=300, two_hop=40)
    return folder


@pytest.fixture(scope="module")
def manifest(folder: Path) -> dict[str, Any]:
    return Dataset(folder).manifest


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_same_seed_gives_the_same_bytes_also_after_a_cut(folder: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    shutil.copytree(folder, again)
    (again / "dataset.json").unlink()
    for path in sorted((again / "images").rglob("*.jpg"))[::2]:
        path.unlink()
    build_world(again, size="tiny", seed=3)
    assert files(again) == files(folder)
    _, different, failed = filecmp.cmpfiles(folder, again, files(folder), shallow=False)
    assert (different, failed) == ([], [])


def test_a_different_seed_gives_a_different_world_with_the_same_famous_entities(folder: Path, tmp_path: Path) -> None:
    build_world(tmp_path, size="tiny", seed=4)
    one, two = Dataset(folder).knowledge, Dataset(tmp_path).knowledge
    assert one.get("val-00000").title != two.get("val-00000").title
    for entity in famous_entities():
        assert [s.text for s in one.get(entity.id).sections[:4]] == [s.text for s in two.get(entity.id).sections[:4]]


def test_a_folder_with_a_different_world_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="holds another data set"):
        build_world(folder, size="tiny", seed=5)


def test_a_part_of_a_different_world_is_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The images of an interrupted build are kept, and are right for the same settings alone."""
    with monkeypatch.context() as patch:
        patch.setattr(build, "write_knowledge_base", MagicMock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            build_world(tmp_path, size="tiny", seed=3)
    with pytest.raises(UserError, match="holds a part of another data set; delete it"):
        build_world(tmp_path, size="tiny", seed=4)
    build_world(tmp_path, size="tiny", seed=3)
    assert files(tmp_path) == files(folder)


def test_traffic_repeats_topics_of_other_splits_mostly_famous_and_leaves_the_splits_unchanged(folder, further) -> None:
    """Its images are its own. The rest of the world stays the same, with two-hop questions for training too."""
    plain, world = Dataset(folder), Dataset(further)
    for split in splits(folder):
        assert world.questions(split) == plain.questions(split)
    assert (further / "knowledge").exists()
    assert filecmp.dircmp(folder / "knowledge", further / "knowledge").diff_files == []

    def facts(names: tuple[str, ...]) -> set[tuple[str, str]]:
        knowledge_based = [q for name in names for q in world.questions(name) if q.requires_retrieval]
        return {(q.entity_ids[0], q.meta["relation"]) for q in knowledge_based}

    assert facts(("traffic",)) <= facts(("train",))
    assert facts(("traffic_val",)) <= facts(("val_unseen_question", "val_unseen_entity"))
    assert facts(("traffic",)).isdisjoint(facts(UNSEEN))
    traffic = world.questions("traffic")
    assert (len(traffic), len(world.questions("traffic_val"))) == (300, 30)
    known = [q for q in traffic if q.requires_retrieval]
    assert sum(q.meta["famous"] == "yes" for q in known) == pytest.approx(0.4 * len(known), rel=0.2)
    assert len(traffic) - len(known) == pytest.approx(300 / 6, rel=0.3)
    others = {q.image for split in splits(folder) for q in plain.questions(split)}
    assert others.isdisjoint(q.image for q in traffic)
    assert all((further / q.image).exists() for q in traffic)
    with pytest.raises(UserError, match="holds another data set"):
        build_world(further, size="tiny", seed=3)


def test_unseen_entities_have_held_out_looks_and_seen_ones_do_not(manifest: dict[str, Any]) -> None:
    for entity_id, looks in manifest["looks"].items():
        if "-like-" not in entity_id:
            assert Looks(**looks).held_out == entity_id.startswith(("val", "test")), entity_id


def test_no_two_entities_look_the_same(manifest: dict[str, Any]) -> None:
    looks = [tuple(sorted(value.items())) for value in manifest["looks"].values()]
    assert len(set(looks)) == len(looks)


def test_every_answer_stands_in_its_evidence(folder: Path) -> None:
    dataset = Dataset(folder)
    for split in splits(folder):
        for question in dataset.questions(split):
            if not question.requires_retrieval:
                assert not question.evidence
                continue
            hops = question.evidence[1:] if "two_hop" in question.meta else question.evidence
            assert hops
            for evidence in hops:
                text = dataset.knowledge.get(evidence.entry_id).sections[evidence.section].text
                assert all(part in text for part in question.answers[0].split(" && ")), question


def test_training_shares_no_phrasing_and_no_fact_with_validation_and_test(folder: Path) -> None:
    dataset = Dataset(folder)
    train = dataset.questions("train")
    phrasings = {question.text for question in train}
    facts = {(question.entity_ids, question.meta.get("relation")) for question in train}
    for split in UNSEEN:
        for question in dataset.questions(split):
            assert question.text not in phrasings
            if question.requires_retrieval:
                assert (question.entity_ids, question.meta["relation"]) not in facts


def test_images_exist_and_the_count_of_balloons_is_asked_about_the_same_image(folder: Path) -> None:
    dataset = Dataset(folder)
    told: dict[str, str] = {}
    for split in splits(folder):
        for question in dataset.questions(split):
            assert (folder / question.image).is_file()
            if question.meta.get("attribute") == "count":
                assert told.setdefault(question.image, question.answers[0]) == question.answers[0]


def differing(first: Looks, second: Looks) -> list[str]:
    return [name for name in ATTRIBUTES if getattr(first, name) != getattr(second, name)]


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_a_constructed_look_alike_differs_in_that_attribute_alone(attribute: str) -> None:
    rng = random.Random(1)
    for _ in range(30):
        entity = make_entity("e", random_looks(rng, held_out=False), rng)
        relation = rng.choice(list(entity.facts))
        other = constructed_look_alike(entity, attribute, relation, rng)
        assert differing(other.looks, entity.looks) == [attribute]
        assert other.looks.category == entity.looks.category
        assert other.facts[relation] != entity.facts[relation]


@pytest.mark.parametrize("relation", list(RELATIONS))
def test_a_distractor_is_never_the_answer(relation: str) -> None:
    rng = random.Random(2)
    for _ in range(60):
        value = RELATIONS[relation].wording("building").value(rng)
        text = state(relation, "building", value, rng)
        for part in value.split(" && "):
            assert text.count(part) == 1


def test_two_hop_questions_for_training_show_training_looks(further: Path) -> None:
    world = Dataset(further)
    questions = world.questions("two_hop_train")
    assert len(questions) == 40
    for question in questions:
        shown, other = (world.knowledge.get(name) for name in question.entity_ids)
        assert shown.id.startswith("train-")
        assert "like" not in shown.id
        assert not Looks(**world.manifest["looks"][shown.id]).held_out
        assert other.title in shown.sections[question.evidence[0].section].text
        stated = [other.sections[each.section].text for each in question.evidence[1:]]
        assert all(part in text for text in stated for part in question.answers[0].split(" && "))
        assert question.meta["phrasing"] == "seen"
        assert (further / question.image).exists()
    assert len({(q.text, q.image) for q in questions}) > 20


def test_a_world_of_more_neighbours_asks_more_two_hop_questions_and_keeps_its_entities(folder, tmp_path) -> None:
    build_world(tmp_path, size="tiny", seed=3, neighbours=1.0)
    plain, world = Dataset(folder), Dataset(tmp_path)
    assert {entry.id: entry.title for entry in world.knowledge} == {entry.id: entry.title for entry in plain.knowledge}
    shown = [question.entity_ids[0] for role in ("val", "test") for question in world.questions(f"two_hop_{role}")]
    asked = [each for each in world.manifest["looks"] if each.startswith(("val-", "test-")) and "like" not in each]
    assert sorted(shown) == sorted(asked)
    assert world.manifest["settings"] != plain.manifest["settings"]
