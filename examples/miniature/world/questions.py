"""Questions about a world, in InfoSeek's layout: splits, answer types, ranges, evidence."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from reflectune.core.types import Evidence, Question
from reflectune.examples.miniature.world.entities import ATTRIBUTES
from reflectune.examples.miniature.world.facts import RELATIONS, ask
from reflectune.examples.miniature.world.phrasings import Phrasing, ask_visual
from reflectune.examples.miniature.world.population import EntityArticle, Role

TOLERANCE = 0.1
"""Tolerance of a number, relative to the value, as in most of InfoSeek's ranges."""

Photograph = Callable[[EntityArticle, int, int], str]
"""Function of (article, number of balloons, number of the image) that returns the image's path."""

SPLITS: Final = (
    "train",
    "val_unseen_question",
    "val_unseen_entity",
    "test_unseen_question",
    "test_unseen_entity",
    "two_hop_val",
    "two_hop_test",
)
"""Splits of every world, without `two_hop_train` and the traffic's."""

IMAGES = range(1, 4)
"""Numbers of each entity's images that questions are asked about; 0 is the encyclopedia's own."""

TRAFFIC_IMAGES = range(4, 28)
"""Numbers of the images that traffic questions are about."""

TRAFFIC_FAMOUS = 0.4
"""Share of traffic questions about famous entities: people ask most about things that many know."""

TRAFFIC_VISUAL = 1 / 6
"""Share of traffic questions that the image answers."""


class WorldInterviewer:
    """Asks the questions of a world.

    Args:
        articles: The world's population.
        rng: Generator of phrasings, images and draws.
        photograph: Function that draws a question's image.
        images: Numbers of an entity's images to draw from.
    """

    def __init__(
        self, articles: Sequence[EntityArticle], rng: random.Random, photograph: Photograph, images: range = IMAGES
    ) -> None:
        self._articles, self._rng, self._photograph, self._numbers = articles, rng, photograph, images
        self._images: dict[tuple[str, int], tuple[str, int]] = {}
        self._count = defaultdict[str, Iterator[int]](itertools.count)
        self._by_title = {article.entity.title: article for article in articles}

    def ask_all(self) -> dict[str, list[Question]]:
        """Draw the questions of every split."""
        splits: dict[str, list[Question]] = {name: [] for name in SPLITS}
        seen = [article for article in self._articles if article.role in ("train", "famous")]
        for number, article in enumerate(seen):
            *train_relations, kept = self._rng.sample(list(article.entity.facts), len(article.entity.facts))
            later = "test" if number % 3 == 2 else "val"
            splits["train"] += [self.knowledge(article, relation, "train") for relation in train_relations]
            splits["train"] += self.visual(article, "train", 3)
            splits[f"{later}_unseen_question"].append(self.knowledge(article, kept, f"{later}_unseen_question"))
            if article.role == "train" and number % 3 < 2:
                name = "val_unseen_question" if number % 3 == 0 else "test_unseen_question"
                splits[name] += self.visual(article, name, 1)
        for article in (a for a in self._articles if a.role == "bystander" and not a.entity.looks.held_out):
            splits["train"] += self.visual(article, "train", 3)
        for role in ("val", "test"):
            name = f"{role}_unseen_entity"
            for article in (a for a in self._articles if a.role == role):
                for relation in self._rng.sample(list(article.entity.facts), 2):
                    splits[name].append(self.knowledge(article, relation, name))
                splits[name] += self.visual(article, name, 1)
            splits[f"two_hop_{role}"] += [
                self._two_hop(article, other, f"two_hop_{role}") for article, other in self._neighbours(role)
            ]
        return splits

    def two_hop(self, count: int, split: str) -> list[Question]:
        """Draw two-hop questions about entities that training may show, in its words: many about the same two entities.

        Args:
            count: Number of questions.
            split: Their split.
        """
        pairs = list(self._neighbours("train"))
        return [self._two_hop(*self._rng.choice(pairs), split, "train") for _ in range(count if pairs else 0)]

    def traffic(self, known: Sequence[Question], count: int, split: str) -> list[Question]:
        """Draw questions as users ask them: each repeats the topic of a known question, and many topics recur.

        Args:
            known: The questions of these splits.
            count: Number of questions, each with its own phrasing and image.
            split: Split of the new questions.
        """
        by_id = {article.entity.id: article for article in self._articles}
        models: dict[tuple[bool, bool], list[Question]] = {}
        for question in known:
            kind = (question.requires_retrieval is False, by_id[question.entity_ids[0]].role == "famous")
            models.setdefault(kind, []).append(question)
        questions: list[Question] = []
        for _ in range(count):
            visual, famous = self._rng.random() < TRAFFIC_VISUAL, self._rng.random() < TRAFFIC_FAMOUS
            model = self._rng.choice(models.get((visual, famous)) or models[visual, False])
            article = by_id[model.entity_ids[0]]
            if visual:
                questions += self.visual(article, split, 1)
            else:
                questions.append(self.knowledge(article, model.meta["relation"], split))
        return questions

    def knowledge(self, article: EntityArticle, relation: str, split: str) -> Question:
        """Draw a question whose answer is in the entity's article."""
        phrasing = _phrasing(split)
        text = ask(relation, article.entity.looks.category, self._rng, phrasing)
        famous = "yes" if article.role == "famous" else "no"
        return self._question(article, article, relation, text, split, phrasing, famous=famous)

    def visual(self, article: EntityArticle, split: str, count: int) -> Iterator[Question]:
        """Draw questions that the image answers, about `count` different attributes."""
        phrasing = _phrasing(split)
        for attribute in self._rng.sample((*ATTRIBUTES, "count"), count):
            image, balloons = self._image(article)
            answer = str(balloons) if attribute == "count" else getattr(article.entity.looks, attribute)
            yield Question(
                id=self._next_id(split),
                image=image,
                text=ask_visual(attribute, article.entity.looks.category, self._rng, phrasing),
                answers=(answer,),
                split=split,
                requires_retrieval=False,
                entity_ids=(article.entity.id,),
                meta={"attribute": attribute, "phrasing": "seen" if phrasing == "train" else "held_out"},
            )

    def _neighbours(self, role: Role) -> Iterator[tuple[EntityArticle, EntityArticle]]:
        """Return the articles of a role that name a neighbour, each with the neighbour's article."""
        for article in self._articles:
            if article.role == role and "neighbour" in article.relations:
                text = article.extra[article.relations.index("neighbour") - len(article.entity.facts)].text
                yield article, self._by_title[text.removeprefix("Beside it stands the ").removesuffix(".")]

    def _two_hop(
        self, article: EntityArticle, other: EntityArticle, split: str, phrasing: Phrasing = "held_out"
    ) -> Question:
        """Draw a question about the entity that an article names as a neighbour of the depicted one."""
        relation = self._rng.choice(list(other.entity.facts))
        question_text = ask(relation, other.entity.looks.category, self._rng, phrasing)
        category, noun = article.entity.looks.category, other.entity.looks.category
        named = f"the {noun} in the picture"
        question_text = question_text.replace(
            named if named in question_text else f"this {noun}", f"the {noun} beside this {category}"
        )
        bridge = Evidence(article.entity.id, article.relations.index("neighbour"))
        return self._question(article, other, relation, question_text, split, phrasing, bridge, two_hop="yes")

    def _question(
        self,
        article: EntityArticle,
        other: EntityArticle,
        relation: str,
        text: str,
        split: str,
        phrasing: Phrasing,
        *bridge: Evidence,
        **meta: str,
    ) -> Question:
        """Return a question about a fact of `other`, perhaps the same entity, with an image of `article`."""
        value, answer_type = other.entity.facts[relation], RELATIONS[relation].answer_type
        return Question(
            id=self._next_id(split),
            image=self._image(article)[0],
            text=text,
            answers=(value,),
            range=_range(value) if answer_type == "numerical" else None,
            answer_type=answer_type,
            split=split,
            requires_retrieval=True,
            entity_ids=tuple(dict.fromkeys((article.entity.id, other.entity.id))),
            evidence=(*bridge, *(Evidence(other.entity.id, section) for section in other.sections_of(relation))),
            meta={"relation": relation, "phrasing": "seen" if phrasing == "train" else "held_out", **meta},
        )

    def _image(self, article: EntityArticle) -> tuple[str, int]:
        """Draw one of the entity's images and its number of balloons."""
        key = (article.entity.id, self._rng.choice(self._numbers))
        if key not in self._images:
            balloons = self._rng.randint(1, 4)
            self._images[key] = (self._photograph(article, balloons, key[1]), balloons)
        return self._images[key]

    def _next_id(self, split: str) -> str:
        return f"world_{split}_{next(self._count[split]):06d}"


def _phrasing(split: str) -> Phrasing:
    """Return the set of phrasings of a split."""
    return "train" if split in ("train", "traffic") else "held_out"


def _range(value: str) -> tuple[float, float]:
    number = float(value.split()[0])
    return number * (1 - TOLERANCE), number * (1 + TOLERANCE)
