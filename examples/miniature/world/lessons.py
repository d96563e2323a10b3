"""Lessons of a miniature base model, before it meets a reflection token: to see, to match, to read.

Lessons are drawn endlessly from entities invented on the spot, with looks that training may use. They are plain
conversations: captions, visual questions, "is this it?", reading an answer from a passage, an article or several,
judging evidence by "yes" and "no", and a few facts learned by heart. A question with a one-word answer asks for a word.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from reflectune.core.types import AnswerStyle, Passage
from reflectune.examples.miniature.models.batches import Lesson, LessonTurn
from reflectune.examples.miniature.world.entities import (
    ATTRIBUTES,
    VALUES,
    Entity,
    Looks,
    article,
    describe,
    look_alike,
    make_entity,
    random_looks,
)
from reflectune.examples.miniature.world.facts import RELATIONS, ask
from reflectune.examples.miniature.world.phrasings import ask_visual
from reflectune.formats.passages import split_passages
from reflectune.models.rendering.turns import answer_prompt, documents_text, passage_text

EVIDENCE_QUESTION = "Is this document evidence?"
MATCH_QUESTION = "Is this it?"
CAPTION_QUESTION = "What is in the picture?"


@dataclass(frozen=True)
class DrawnImage:
    """Content of a drawn image."""

    looks: Looks
    balloons: int


class Teacher:
    """Draws lessons about a fixed pool of images.

    Args:
        images: Contents of the pool's images, with looks that training may use.
        famous: Entities whose facts are learned by heart.
        rng: Generator of everything else.
    """

    def __init__(self, images: Sequence[DrawnImage], famous: Sequence[Entity], rng: random.Random) -> None:
        self.images, self._famous, self._rng = images, famous, rng
        self._by_looks: dict[Looks, list[int]] = {}
        for index, image in enumerate(images):
            self._by_looks.setdefault(image.looks, []).append(index)

    def look(self) -> Lesson:
        """Draw a caption and every visual question about one image."""
        index, image = self._any_image()
        caption = LessonTurn(CAPTION_QUESTION, describe(image.looks, self._rng), "caption")
        return Lesson(index, "", (caption, *(self._visual(image, a) for a in (*ATTRIBUTES, "count"))))

    def match(self, turns: int = 12) -> Lesson:
        """Ask "Is this it?" about titles and descriptions that fit the image or differ in one or two attributes."""
        index, image = self._any_image()
        match_turns = [self._match_turn(image.looks) for _ in range(turns)]
        return Lesson(index, "", (self._visual(image, self._rng.choice((*ATTRIBUTES, "count"))), *match_turns))

    def read(self, *, with_image: bool, evidence_weight: float = 2.0) -> Lesson:
        """Draw an answer from a passage, and judgements of passages by yes and no."""
        rng = self._rng
        index, image = self._any_image()
        looks = image.looks
        entity = make_entity("", looks, rng)
        relation, other = rng.sample(list(entity.facts), 2)
        question = ask(relation, looks.category, rng)

        def evidence(source: Entity, stated: str, skill: str) -> LessonTurn:
            text = f"{passage_text(self._passages(source)[stated])} {EVIDENCE_QUESTION}"
            words = _shown_words(text, source.looks, looks) if with_image else ()
            answer = _yes(source.looks == looks and stated == relation)
            return LessonTurn(text, answer, skill, evidence_weight, shown=words)

        turns = [
            self._reading(passage_text(self._passages(entity)[relation]), entity.facts[relation], relation, "read"),
            evidence(entity, relation, "evidence_gold"),
            evidence(entity, other, "evidence_section"),
        ]
        if with_image:
            for _ in range(2):
                alike = make_entity("", self._look_alike(looks), rng, [relation])
                turns.append(evidence(alike, relation, "evidence_look_alike"))
            turns.append(evidence(make_entity("", looks, rng, [relation]), relation, "evidence_gold"))
            stranger = make_entity("", random_looks(rng, held_out=False), rng, [relation])
            if stranger.looks != looks:
                turns.append(evidence(stranger, relation, "evidence_stranger"))
        else:
            turns.append(self._other_reading(relation, looks))
        return Lesson(index if with_image else None, question, tuple(turns))

    def read_many(self, turns: int) -> Lesson:
        """Draw one question with answers from several entities' passages, without an image: dense practice."""
        looks = random_looks(self._rng, held_out=False)
        relation = self._rng.choice(list(RELATIONS))
        question = ask(relation, looks.category, self._rng)
        return Lesson(None, question, tuple(self._other_reading(relation, looks) for _ in range(turns)))

    def read_article(self, articles: int = 1, *, with_image: bool = True) -> Lesson:
        """Draw an answer from a whole article, or from two articles; the second one is about a look-alike."""
        index, image = self._any_image()
        relation = self._rng.choice(list(RELATIONS))
        question = ask(relation, image.looks.category, self._rng)
        article_turns = tuple(self._article_turn(image.looks, relation, articles) for _ in range(2))
        return Lesson(index if with_image else None, question, article_turns)

    def _article_turn(self, looks: Looks, relation: str, articles: int) -> LessonTurn:
        rng = self._rng
        others = rng.sample([name for name in RELATIONS if name != relation], rng.randint(1, 5))
        relations = [relation, *others]
        rng.shuffle(relations)
        entity = make_entity("", looks, rng, relations)
        context = list(self._passages(entity).values())
        if articles == 2:
            context += self._passages(make_entity("", self._look_alike(looks), rng)).values()
        return self._reading(documents_text(context), entity.facts[relation], relation, "read_article")

    def read_articles(self, articles: int) -> Lesson:
        """Draw an answer from the one article, of several in random order, that is about the depicted entity.

        The others are about look-alikes, most of them with the same relation, as a retriever finds them. At the end of
        each passage the grounding loss asks whether it is the evidence.
        """
        rng = self._rng
        index, image = self._any_image()
        relation = rng.choice(list(RELATIONS))
        entity = make_entity("", image.looks, rng, self._relations(relation, included=True))
        looks = [self._look_alike(image.looks) for _ in range(articles - 1)]
        others = [make_entity("", look, rng, self._relations(relation, included=rng.random() < 0.8)) for look in looks]
        order = rng.sample([entity, *others], articles)
        text = ""
        words: list[tuple[int, bool]] = []
        for other in order:
            for passage in self._passages(other).values():
                start, text = len(text), f"{text}{passage_text(passage)} "
                words += _shown_words(text, other.looks, image.looks, start)
                words.append((len(text) - 1, other is entity and passage.heading == RELATIONS[relation].heading))
        turn = self._reading(text.strip(), entity.facts[relation], relation, "read_articles")
        question = ask(relation, image.looks.category, rng)
        return Lesson(index, question, (replace(turn, weight=3.0, shown=tuple(words)),))

    def _relations(self, relation: str, *, included: bool) -> list[str]:
        """Draw two to five relations of an article in random order, with or without this one."""
        others = self._rng.sample([name for name in RELATIONS if name != relation], self._rng.randint(2, 4))
        relations = [relation, *others] if included else others
        self._rng.shuffle(relations)
        return relations

    def copy(self) -> Lesson:
        """Draw a run of unrelated words to repeat: practice in looking back, which reading needs."""
        return Lesson(None, "", tuple(self._copy_turn() for _ in range(2)))

    def recall(self) -> Lesson:
        """Draw questions about every fact of a famous entity, from its image alone."""
        entity = self._rng.choice(self._famous)
        index = self._rng.choice(self._by_looks[entity.looks])
        category = entity.looks.category
        facts = tuple(
            LessonTurn(f"{ask(r, category, self._rng)} {answer_prompt(_style(r), documents=False)}", v, "recall")
            for r, v in entity.facts.items()
        )
        return Lesson(index, "", facts)

    def _any_image(self) -> tuple[int, DrawnImage]:
        index = self._rng.randrange(len(self.images))
        return index, self.images[index]

    def _visual(self, image: DrawnImage, attribute: str) -> LessonTurn:
        answer = str(image.balloons) if attribute == "count" else getattr(image.looks, attribute)
        question = ask_visual(attribute, image.looks.category, self._rng)
        return LessonTurn(f"{question} {answer_prompt('short', documents=False)}", answer, f"visual_{attribute}")

    def _match_turn(self, looks: Looks) -> LessonTurn:
        is_it = self._rng.random() < 0.5
        shown = looks if is_it else self._look_alike(looks)
        text = f"{make_entity('', shown, self._rng, []).title}: {describe(shown, self._rng)} {MATCH_QUESTION}"
        return LessonTurn(text, _yes(is_it), "match", 2.0, 0.1 * is_it, _shown_words(text, shown, looks))

    def _copy_turn(self) -> LessonTurn:
        rng = self._rng
        relations = rng.choices(list(RELATIONS.values()), k=rng.randint(3, 8))
        words = [relation.wording("building").value(rng).replace(" && ", " ") for relation in relations]
        rng.shuffle(words)
        text = " ".join(words)
        return LessonTurn(f"{text}.", text, "copy")

    def _look_alike(self, looks: Looks) -> Looks:
        """Draw looks for training that differ in one or two attributes; a new kind mostly keeps the noun."""
        rng = self._rng
        while True:
            shown = look_alike(looks, rng.choice((1, 1, 1, 2)), rng)
            if shown.kind != looks.kind and rng.random() < 0.7:
                siblings = [k for k in VALUES["kind"] if replace(looks, kind=k).category == looks.category]
                shown = replace(shown, kind=rng.choice([k for k in siblings if k != looks.kind]))
            if not shown.held_out:
                return shown

    def _passages(self, entity: Entity) -> dict[str, Passage]:
        """Return the entity's passages by relation, in the article's order."""
        passages = split_passages(article(entity, self._rng), lead="first_sentence")
        return dict(zip(entity.facts, passages, strict=True))

    def _reading(self, context: str, answer: str, relation: str, skill: str) -> LessonTurn:
        prompt = answer_prompt(_style(relation), documents=True)
        return LessonTurn(prompt.format(passage=context), answer, skill)

    def _other_reading(self, relation: str, looks: Looks) -> LessonTurn:
        """Draw a reading of the same relation from a different entity of the same category."""
        entity = make_entity("", looks, self._rng, [relation])
        return self._reading(
            documents_text(list(self._passages(entity).values())), entity.facts[relation], relation, "read"
        )


def corpus(rng: random.Random, entities: int = 4000) -> list[str]:
    """Return texts to train a tokenizer on: articles, questions, answers and instructions of invented entities."""
    texts = [f"{number:02d}" for number in range(100)] * 300
    for _ in range(entities):
        looks = random_looks(rng, held_out=False)
        entity = make_entity("", looks, rng)
        entry = article(entity, rng)
        texts += [f" {passage_text(passage)}" for passage in split_passages(entry, lead="first_sentence")]
        for relation, value in entity.facts.items():
            texts += [f" {ask(relation, looks.category, rng)}", f" {value}", value]
        texts += [ask_visual(a, looks.category, rng) for a in (*ATTRIBUTES, "count")]
        texts += [f"{getattr(looks, name)} {getattr(looks, name)}" for name in ATTRIBUTES]
        texts += [f" {answer_prompt(style, documents=True).removeprefix('{passage} ')}" for style in ("short", "list")]
        texts += [f" {EVIDENCE_QUESTION} yes no", f" {MATCH_QUESTION}", f" {CAPTION_QUESTION}"]
        texts += ["USER: \n", " ASSISTANT: yes", "user\n", "assistant\n"]
    return texts


def _shown_words(text: str, described: Looks, seen: Looks, start: int = 0) -> tuple[tuple[int, bool], ...]:
    """Return the end of each word of a description in the text after `start`, with True if the image shows it."""
    ends = []
    for name in ATTRIBUTES:
        word = re.compile(rf"\b{re.escape(getattr(described, name))}\b").search(text, start)
        assert word is not None, f"{getattr(described, name)!r} is not in {text[start:]!r}"
        ends.append((word.end(), getattr(described, name) == getattr(seen, name)))
    return tuple(ends)


def _style(relation: str) -> AnswerStyle:
    return "list" if RELATIONS[relation].answer_type == "multi_answer" else "short"


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"
