"""Questions about the gallery's entities, by split."""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from reflectune.core.types import Entry, Evidence, Question
from reflectune.examples.pocket.gallery.entities import GalleryEntity
from reflectune.examples.pocket.gallery.facts import Fact, evidence_of
from reflectune.examples.pocket.gallery.relations import ask, cue_of
from reflectune.examples.pocket.gallery.sources.images import SourceImage
from reflectune.examples.pocket.gallery.two_hop import TwoHop
from reflectune.examples.pocket.gallery.visual_questions import Visual

SPLITS = (
    "train",
    "val_unseen_question",
    "val_unseen_entity",
    "test_unseen_question",
    "test_unseen_entity",
    "two_hop_train",
    "two_hop_val",
    "two_hop_test",
)

FACTS = 12
"""Maximum facts of an entity that are asked about; a country has about twenty."""
REPEATS = 4
"""Questions of training for the same fact, in other words or with a different image; one for a country's."""
VISUAL = 3
"""Visual questions of each entity of training."""
TWO_HOP = 2
"""Maximum two-hop questions of an entity."""


class GalleryInterviewer:
    """Asks the questions of a gallery.

    Args:
        entities: All entities.
        facts: Facts of each article, by title.
        entries: Entries of the knowledge base, by title.
        visual: Visual questions of each entity, by title.
        chains: Two-hop questions, by the title of the depicted entity.
        seed: Seed of phrasings, images and draws; each entity has its own generator.
    """

    def __init__(
        self,
        entities: Sequence[GalleryEntity],
        facts: Mapping[str, Sequence[Fact]],
        entries: Mapping[str, Entry],
        visual: Mapping[str, Sequence[Visual]],
        chains: Mapping[str, Sequence[TwoHop]],
        seed: int,
    ) -> None:
        self._entities, self._facts, self._entries = entities, facts, entries
        self._visual, self._chains, self._seed = visual, chains, seed
        self._numbers = defaultdict[str, Iterator[int]](itertools.count)
        self.unstated = Counter[str]()
        """Facts left out because no passage of the article states them, by relation."""

    def ask_all(self) -> dict[str, list[Question]]:
        """Return the questions of every split."""
        splits: dict[str, list[Question]] = {name: [] for name in SPLITS}
        for number, entity in enumerate(entity for entity in self._entities if entity.role != "shown"):
            rng = random.Random(f"{self._seed}/questions/{entity.article.title}")
            asked = self._seen(entity, number, rng) if entity.role == "train" else self._unseen(entity, rng)
            for question in asked:
                splits[question.split].append(question)
        return splits

    def _seen(self, entity: GalleryEntity, number: int, rng: random.Random) -> Iterator[Question]:
        """Return training's questions, and those of its entities that are kept for validation and test."""
        facts = self._stated(entity, rng)
        held_out = facts[: _held_out_count(len(facts))]
        for position, (fact, evidence) in enumerate(held_out):
            split = "test_unseen_question" if (number + position) % 2 else "val_unseen_question"
            yield self._knowledge(entity, fact, evidence, split, rng)
        for fact, evidence in facts[len(held_out) :]:
            yield from self._repeated(entity, fact, evidence, rng)
        visual = rng.sample(list(self._visual[entity.article.title]), len(self._visual[entity.article.title]))
        for visual_fact in visual[:VISUAL]:
            yield self._looking(entity, visual_fact, "train", rng)
        if len(visual) > VISUAL:
            split = "test_unseen_question" if number % 2 else "val_unseen_question"
            yield self._looking(entity, visual[VISUAL], split, rng)
        yield from self._two_hop(entity, "two_hop_train", rng)

    def _repeated(
        self, entity: GalleryEntity, fact: Fact, evidence: tuple[Evidence, ...], rng: random.Random
    ) -> Iterator[Question]:
        """Return several questions for one fact, each in other words or with a different image."""
        seen = set[tuple[str, str]]()
        for _ in range(1 if entity.category == "flag" else REPEATS):
            question = self._knowledge(entity, fact, evidence, "train", rng)
            if (question.text, question.image) not in seen:
                seen.add((question.text, question.image))
                yield question

    def _unseen(self, entity: GalleryEntity, rng: random.Random) -> Iterator[Question]:
        split = f"{entity.role}_unseen_entity"
        for fact, evidence in self._stated(entity, rng)[: FACTS // 2]:
            yield self._knowledge(entity, fact, evidence, split, rng)
        visual = list(self._visual[entity.article.title])
        for visual_fact in rng.sample(visual, min(2, len(visual))):
            yield self._looking(entity, visual_fact, split, rng)
        yield from self._two_hop(entity, f"two_hop_{entity.role}", rng)

    def _stated(self, entity: GalleryEntity, rng: random.Random) -> list[tuple[Fact, tuple[Evidence, ...]]]:
        """Draw some of the facts that the entity's article states, each with its evidence."""
        stated = []
        for fact in self._facts.get(entity.article.title, ()):
            if evidence := evidence_of(fact, self._entries[entity.article.title], cue_of(fact.relation)):
                stated.append((fact, evidence))
            else:
                self.unstated[fact.relation] += 1
        rng.shuffle(stated)
        return stated[:FACTS]

    def _knowledge(
        self, entity: GalleryEntity, fact: Fact, evidence: tuple[Evidence, ...], split: str, rng: random.Random
    ) -> Question:
        image = rng.choice(entity.asked)
        held_out = split != "train"
        return Question(
            id=self._next_id(split),
            image=image_path(image),
            text=ask(fact, entity.category, rng, held_out),
            answers=fact.answers,
            range=fact.range,
            answer_type=fact.answer_type,
            split=split,
            requires_retrieval=True,
            entity_ids=(entity.id,),
            evidence=evidence,
            meta={"relation": fact.relation, **_about(entity, image, held_out)},
        )

    def _looking(self, entity: GalleryEntity, visual: Visual, split: str, rng: random.Random) -> Question:
        held_out = split != "train"
        return Question(
            id=self._next_id(split),
            image=visual.image,
            text=visual.ask(rng, held_out),
            answers=visual.answers,
            split=split,
            requires_retrieval=False,
            entity_ids=(entity.id,),
            meta={"attribute": visual.attribute, **_about(entity, visual.source, held_out)},
        )

    def _two_hop(self, entity: GalleryEntity, split: str, rng: random.Random) -> Iterator[Question]:
        held_out = not split.endswith("train")
        bridges: dict[str, list[TwoHop]] = {}
        for chain in self._chains.get(entity.article.title, ()):
            bridges.setdefault(chain.first.relation, []).append(chain)
        for bridge in rng.sample(list(bridges), min(TWO_HOP, len(bridges))):
            chain = rng.choice(bridges[bridge])
            image = rng.choice(entity.asked)
            yield Question(
                id=self._next_id(split),
                image=image_path(image),
                text=chain.ask(entity.category, rng, held_out),
                answers=chain.second.answers,
                range=chain.second.range,
                answer_type=chain.second.answer_type,
                split=split,
                requires_retrieval=True,
                entity_ids=(entity.id, self._entries[chain.second.title].id),
                evidence=chain.evidence,
                meta={
                    "relation": f"{chain.first.relation}/{chain.second.relation}",
                    "two_hop": "yes",
                    **_about(entity, image, held_out),
                },
            )

    def _next_id(self, split: str) -> str:
        return f"gallery_{split}_{next(self._numbers[split]):06d}"


def _held_out_count(facts: int) -> int:
    """Return the number of an entity's facts that are kept for validation and test."""
    return next((count for least, count in ((8, 4), (5, 2), (2, 1)) if facts >= least), 0)


def image_path(image: SourceImage) -> str:
    """Return the path of an image in the data set."""
    return f"images/{image.id}.jpg"


def _about(entity: GalleryEntity, image: SourceImage, held_out: bool) -> dict[str, str]:
    return {
        "kind": "country" if entity.category == "flag" else entity.category,
        "phrasing": "held_out" if held_out else "seen",
        "source": image.source,
        "style": image.style,
    }
