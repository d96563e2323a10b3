"""What a miniature base model is taught before it ever meets a reflection token: to see, to match, to read.

Lessons are drawn endlessly from entities invented on the spot, with looks that training may use. They are plain
conversations: captions, visual questions, "is this it?", reading an answer from a passage or a whole article, judging
evidence by "yes" and "no", and a few facts learned by heart.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from reflectune.core.types import Passage
from reflectune.data_builders.world.entities import Entity, article, describe, make_entity, random_looks
from reflectune.data_builders.world.facts import RELATIONS, ask, ask_visual
from reflectune.data_builders.world.looks import ATTRIBUTES, VALUES, Attribute, Looks, change_attribute, look_alike
from reflectune.models.scheme import passage_text, reading_instruction
from reflectune.retrieval.passages import split_passages

EVIDENCE_QUESTION = "Is this document evidence?"
MATCH_QUESTION = "Is this it?"
CAPTION_QUESTION = "What is in the picture?"
_PHRASES: dict[Attribute, str] = {"kind": "a {}", "colour": "a {} one", "ground": "on {}", "mark": "with a {} sign"}


@dataclass(frozen=True)
class Turn:
    """One continuation of a lesson's prefix: what the user adds, what the assistant answers, and how much it counts.

    `text_weight` is what predicting the user's own words counts: a description that fits the picture is worth
    predicting, and that is what teaches to compare the two.
    """

    text: str
    answer: str
    skill: str
    weight: float = 1.0
    text_weight: float = 0.0


@dataclass(frozen=True)
class Lesson:
    """A picture (or none), the beginning of the user's turn, and the turns that continue it independently."""

    picture: int | None
    question: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class Picture:
    """What a drawn picture shows."""

    looks: Looks
    balloons: int


class Teacher:
    """Draws lessons about a fixed pool of pictures.

    Args:
        pictures: What the pool's pictures show; their looks are such that training may use them.
        famous: Entities whose facts are to be learned by heart.
        rng: Source of everything else.
    """

    def __init__(self, pictures: Sequence[Picture], famous: Sequence[Entity], rng: random.Random) -> None:
        self._pictures, self._famous, self._rng = pictures, famous, rng
        self._by_looks: dict[Looks, list[int]] = {}
        for index, picture in enumerate(pictures):
            self._by_looks.setdefault(picture.looks, []).append(index)

    def look(self) -> Lesson:
        """A caption and every visual question about one picture."""
        index, picture = self._any_picture()
        caption = Turn(CAPTION_QUESTION, describe(picture.looks, self._rng), "caption")
        return Lesson(index, "", (caption, *(self._visual(picture, a) for a in (*ATTRIBUTES, "count"))))

    def match(self, level: int, turns: int = 8) -> Lesson:
        """ "Is this it?", about `level` attributes at a time (4: a full description with a title)."""
        index, picture = self._any_picture()
        asked = [self._match_turn(picture.looks, level) for _ in range(turns)]
        return Lesson(index, "", (self._visual(picture, self._rng.choice((*ATTRIBUTES, "count"))), *asked))

    def read(self, *, with_picture: bool, evidence_weight: float = 2.0) -> Lesson:
        """An answer read from a passage, and yes or no to whether passages are evidence."""
        rng = self._rng
        index, picture = self._any_picture()
        looks = picture.looks
        entity = make_entity("", looks, rng)
        relation, other = rng.sample(list(entity.facts), 2)
        question = ask(relation, looks.category, rng)
        passages = self._passages(entity)

        def evidence(passage: Passage, is_evidence: bool, skill: str) -> Turn:
            return Turn(f"{passage_text(passage)} {EVIDENCE_QUESTION}", _yes(is_evidence), skill, evidence_weight)

        turns = [
            self._reading([passages[relation]], entity.facts[relation], relation, "read"),
            evidence(passages[relation], True, "evidence_gold"),
            evidence(passages[other], False, "evidence_section"),
        ]
        if with_picture:
            for _ in range(2):
                alike = make_entity("", self._look_alike(looks), rng, [relation])
                turns.append(evidence(self._passages(alike)[relation], False, "evidence_look_alike"))
            twin = make_entity("", looks, rng, [relation])
            turns.append(evidence(self._passages(twin)[relation], True, "evidence_gold"))
            stranger = make_entity("", random_looks(rng, held_out=False), rng, [relation])
            if stranger.looks != looks:
                turns.append(evidence(self._passages(stranger)[relation], False, "evidence_stranger"))
        else:
            turns.append(self._other_reading(relation, looks))
        return Lesson(index if with_picture else None, question, tuple(turns))

    def read_many(self, turns: int = 4) -> Lesson:
        """The same question answered from several entities' passages, without a picture: dense practice in reading."""
        looks = random_looks(self._rng, held_out=False)
        relation = self._rng.choice(list(RELATIONS))
        question = ask(relation, looks.category, self._rng)
        return Lesson(None, question, tuple(self._other_reading(relation, looks) for _ in range(turns)))

    def read_article(self, articles: int = 1) -> Lesson:
        """An answer read from a whole article, or from two articles of which the second is about something else."""
        index, picture = self._any_picture()
        rng = self._rng
        entity = make_entity("", picture.looks, rng, rng.randint(2, 5))
        relation = rng.choice(list(entity.facts))
        context = list(self._passages(entity).values())
        if articles == 2:
            context += self._passages(make_entity("", self._look_alike(picture.looks), rng)).values()
        question = ask(relation, picture.looks.category, rng)
        turn = self._reading(context, entity.facts[relation], relation, "read_article")
        return Lesson(index, question, (turn,))

    def copy(self, turns: int = 2) -> Lesson:
        """Repeat a run of unrelated words: practice in looking back, which reading is made of."""
        return Lesson(None, "", tuple(self._copy_turn() for _ in range(turns)))

    def recall(self) -> Lesson:
        """Every fact of a famous entity, from its picture alone."""
        entity = self._rng.choice(self._famous)
        index = self._rng.choice(self._by_looks[entity.looks])
        category = entity.looks.category
        facts = tuple(Turn(ask(r, category, self._rng), v, "recall") for r, v in entity.facts.items())
        return Lesson(index, "", facts)

    def _any_picture(self) -> tuple[int, Picture]:
        index = self._rng.randrange(len(self._pictures))
        return index, self._pictures[index]

    def _visual(self, picture: Picture, attribute: str) -> Turn:
        answer = str(picture.balloons) if attribute == "count" else getattr(picture.looks, attribute)
        return Turn(ask_visual(attribute, picture.looks.category, self._rng), answer, f"visual_{attribute}")

    def _match_turn(self, looks: Looks, level: int) -> Turn:
        rng, is_it = self._rng, self._rng.random() < 0.5
        if level == len(ATTRIBUTES):
            shown = looks if is_it else self._look_alike(looks)
            title = make_entity("", shown, rng, []).title
            return Turn(f"{title}: {describe(shown, rng)} {MATCH_QUESTION}", _yes(is_it), "match", 2.0, 0.1 * is_it)
        names = rng.sample(ATTRIBUTES, level)
        shown = looks if is_it else change_attribute(looks, rng.choice(names), rng)
        text = ", ".join(_PHRASES[name].format(getattr(shown, name)) for name in names)
        return Turn(f"{text}. {MATCH_QUESTION}", _yes(is_it), "match", 2.0, 0.1 * is_it)

    def _copy_turn(self) -> Turn:
        rng = self._rng
        relations = rng.choices(list(RELATIONS.values()), k=rng.randint(3, 8))
        words = [relation.wording("building").value(rng).replace(" && ", " ") for relation in relations]
        rng.shuffle(words)
        text = " ".join(words)
        return Turn(f"{text}.", text, "copy")

    def _look_alike(self, looks: Looks) -> Looks:
        """Looks that differ in one attribute or two; a changed kind is mostly of the same category."""
        rng = self._rng
        shown = look_alike(looks, rng.choice((1, 1, 1, 2)), rng)
        if shown.kind != looks.kind and rng.random() < 0.7:
            siblings = [k for k in VALUES["kind"] if replace(looks, kind=k).category == looks.category]
            shown = replace(shown, kind=rng.choice([k for k in siblings if k != looks.kind]))
        return shown

    def _passages(self, entity: Entity) -> dict[str, Passage]:
        """The entity's passages by relation, in the article's order."""
        passages = split_passages(article(entity, self._rng), lead="first_sentence")
        return dict(zip(entity.facts, passages, strict=True))

    def _reading(self, passages: Sequence[Passage], answer: str, relation: str, skill: str) -> Turn:
        instruction = reading_instruction(multi_answer=RELATIONS[relation].answer_type == "multi_answer")
        context = " ".join(passage_text(passage) for passage in passages)
        return Turn(f"{context} {instruction}", answer, skill)

    def _other_reading(self, relation: str, looks: Looks) -> Turn:
        """A reading of the same relation from another entity of the same category."""
        entity = make_entity("", looks, self._rng, [relation])
        return self._reading(list(self._passages(entity).values()), entity.facts[relation], relation, "read")


def corpus(entities: int, rng: random.Random) -> list[str]:
    """Texts that a tokenizer is trained on: articles, questions, answers and instructions of invented entities."""
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
        texts += [f" {reading_instruction(multi_answer=flag)}" for flag in (False, True)]
        texts += [f" {EVIDENCE_QUESTION} yes no", f" {MATCH_QUESTION}", f" {CAPTION_QUESTION}"]
        texts += ["USER: \n", " ASSISTANT: yes", "user\n", "assistant\n"]
    return texts


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"
