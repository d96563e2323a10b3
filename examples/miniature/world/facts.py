"""Facts of an encyclopedia: relations, their values, the sentences that state them, and the questions about them.

Every relation has phrasings that training may use and phrasings held out for validation and test. A sentence may carry
a distractor `{d}`: a different value of the same type.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from reflectune.core.types import AnswerType
from reflectune.examples.miniature.world.phrasings import Phrasing, Phrasings
from reflectune.examples.miniature.world.values import (
    FOODS,
    MATERIALS,
    MONTHS,
    SCENTS,
    are_close,
    body,
    number_with,
    one_of,
    person,
    town,
    two_works,
    work,
    year,
)

_FILLERS = (
    "Little has changed since.",
    "Guides like to tell the story.",
    "A small plaque records it.",
    "Local people are proud of this.",
    "Older books say less about it.",
)


@dataclass(frozen=True)
class Wording(Phrasings):
    """Value and sentences of a relation, for a category of things.

    Attributes:
        value: Function that draws a value.
        sentences: Templates with `{v}` for the value and perhaps `{d}` for a distractor.
    """

    value: Callable[[random.Random], str]
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class Relation:
    """A kind of fact: its heading, the type of its answers, and its wordings by category."""

    heading: str
    answer_type: AnswerType
    wordings: dict[str, Wording]

    def wording(self, category: str) -> Wording:
        """Return the wording for a category; `any` is the wording of categories without their own."""
        return self.wordings.get(category) or self.wordings["any"]


def _founding(verb: str) -> Wording:
    return Wording(
        value=year,
        sentences=(
            f"It was {verb} in {{v}}.",
            f"It was {verb} in {{v}} and restored in {{d}}.",
            f"First planned in {{d}}, it was {verb} in {{v}}.",
        ),
        taught=(
            f"When was this {{c}} {verb}?",
            f"In which year was this {{c}} {verb}?",
            f"What year was the {{c}} in the picture {verb}?",
            f"Can you say when this {{c}} was {verb}?",
        ),
        varied=(
            f"Tell me the year in which this {{c}} was {verb}.",
            f"What is the year in which the {{c}} in the picture was {verb}?",
        ),
        held_out=(f"In what year was the {{c}} in the picture {verb}?", f"Which year was this {{c}} {verb} in?"),
    )


def _maker(verb: str) -> Wording:
    return Wording(
        value=person,
        sentences=(
            f"It was {verb} by {{v}}.",
            f"It was {verb} by {{v}}, and painted by {{d}}.",
            f"After {{d}} had declined, {{v}} {verb} it.",
        ),
        taught=(
            f"Who {verb} this {{c}}?",
            f"By whom was this {{c}} {verb}?",
            f"Which person {verb} the {{c}} in the picture?",
            f"Can you say who {verb} this {{c}}?",
        ),
        varied=(f"Name the person who {verb} this {{c}}.", f"Who was it that {verb} the {{c}} in the picture?"),
        held_out=(f"Who {verb} the {{c}} in the picture?", f"By which person was this {{c}} {verb}?"),
    )


def _size(unit: str) -> Wording:
    return Wording(
        value=number_with(unit),
        sentences=(
            "It is {v} tall.",
            "It is {v} tall; a rival measures {d}.",
            "With its sign it reaches {d}, without it {v} of height.",
        ),
        taught=(
            "How tall is this {c}?",
            "What is the height of this {c}?",
            "How high is the {c} in the picture?",
            f"How many {unit} tall is this {{c}}?",
        ),
        varied=("What height has this {c}?", "How much is the height of the {c} in the picture?"),
        held_out=("What is the height of the {c} in the picture?", f"How many {unit} high is this {{c}}?"),
    )


def _place(verb: str, infinitive: str) -> Wording:
    return Wording(
        value=town,
        sentences=(
            f"It {verb} {{v}}.",
            f"It {verb} {{v}}, on the road to {{d}}.",
            f"A day from {{d}}, it {verb} {{v}}.",
        ),
        taught=(
            "In which town is this {c}?",
            "Where is this {c}?",
            "Which town is the {c} in the picture in?",
            f"In what town does this {{c}} {infinitive}?",
        ),
        varied=("Name the town of this {c}.", f"Where does the {{c}} in the picture {infinitive}?"),
        held_out=("Where is the {c} in the picture?", f"In which town does this {{c}} {infinitive}?"),
    )


_MADE_OF = Wording(
    value=one_of(MATERIALS),
    sentences=(
        "It is made of {v}.",
        "It is made of {v}, with parts of {d}.",
        "Once thought to be {d}, it is made of {v}.",
    ),
    taught=(
        "What is this {c} made of?",
        "Which material is this {c} made of?",
        "What is the {c} in the picture made of?",
        "Of which material is this {c}?",
    ),
    varied=("Name the material of this {c}.", "What is the material of the {c} in the picture?"),
    held_out=("Of what material is this {c} made?", "Which material is the {c} in the picture made of?"),
)
_FEEDS_ON = Wording(
    value=one_of(FOODS),
    sentences=("It feeds on {v}.", "It feeds on {v} and never on {d}.", "Offered {d}, it still feeds on {v}."),
    taught=(
        "What does this {c} feed on?",
        "Which food does this {c} feed on?",
        "What does the {c} in the picture eat?",
        "What food does this {c} eat?",
    ),
    varied=("Name the food of this {c}.", "On what does the {c} in the picture feed?"),
    held_out=("What does this {c} eat?", "Which food does the {c} in the picture feed on?"),
)
_SMELLS_OF = Wording(
    value=one_of(SCENTS),
    sentences=(
        "Its leaves smell of {v}.",
        "Its leaves smell of {v}, not of {d}.",
        "Its roots smell of {d} but its leaves of {v}.",
    ),
    taught=(
        "What do the leaves of this {c} smell of?",
        "Which smell do the leaves of this {c} have?",
        "What does the {c} in the picture smell of?",
        "What is the smell of this {c}?",
    ),
    varied=("Of what does this {c} smell?", "Which scent does the {c} in the picture have?"),
    held_out=("What does this {c} smell of?", "Which smell does the {c} in the picture have?"),
)


def _month(event: str) -> Wording:
    return Wording(
        value=one_of(MONTHS),
        sentences=(
            f"Its {event} is in {{v}}.",
            f"Its {event} is in {{v}}, and all is quiet in {{d}}.",
            f"Closed to guests in {{d}}, it has its {event} in {{v}}.",
        ),
        taught=(
            f"In which month is the {event} of this {{c}}?",
            f"When is the {event} of this {{c}}?",
            f"What month is the {event} of the {{c}} in the picture?",
            f"Which month has the {event} of this {{c}}?",
        ),
        varied=(
            f"Name the month of the {event} of this {{c}}.",
            f"Which is the month of the {event} of the {{c}} in the picture?",
        ),
        held_out=(
            f"In what month is the {event} of this {{c}}?",
            f"When is the {event} of the {{c}} in the picture?",
        ),
    )


def _keeper(verb: str, third: str) -> Wording:
    return Wording(
        value=body,
        sentences=(
            f"The {{v}} {third} it.",
            f"The {{v}} {third} it, as the {{d}} once did.",
            f"The {{d}} gave it up, and the {{v}} {third} it now.",
        ),
        taught=(
            f"Who {third} this {{c}}?",
            f"Which body {third} this {{c}}?",
            f"Who {third} the {{c}} in the picture?",
            f"What body does {verb} this {{c}}?",
        ),
        varied=(f"Name the body that {third} this {{c}}.", f"Which is the body that {third} the {{c}} in the picture?"),
        held_out=(f"Which body {third} the {{c}} in the picture?", f"Who is it that {third} this {{c}}?"),
    )


RELATIONS: dict[str, Relation] = {
    "founding": Relation(
        "History",
        "time",
        {
            "building": _founding("founded"),
            "vehicle": _founding("launched"),
            "animal": _founding("discovered"),
            "plant": _founding("planted"),
            "instrument": _founding("built"),
        },
    ),
    "maker": Relation(
        "People",
        "string",
        {
            "building": _maker("designed"),
            "vehicle": _maker("designed"),
            "animal": _maker("named"),
            "plant": _maker("named"),
            "instrument": _maker("tuned"),
        },
    ),
    "height": Relation(
        "Size",
        "numerical",
        {
            "building": _size("metres"),
            "plant": _size("metres"),
            "any": _size("inches"),
        },
    ),
    "place": Relation(
        "Location",
        "string",
        {
            "building": _place("stands in", "stand"),
            "animal": _place("lives in", "live"),
            "plant": _place("grows in", "grow"),
            "any": _place("is kept in", "stay"),
        },
    ),
    "substance": Relation(
        "Nature",
        "string",
        {
            "animal": _FEEDS_ON,
            "plant": _SMELLS_OF,
            "any": _MADE_OF,
        },
    ),
    "season": Relation(
        "Calendar",
        "string",
        {
            "building": _month("festival"),
            "vehicle": _month("race"),
            "animal": _month("parade"),
            "plant": _month("harvest"),
            "instrument": _month("concert"),
        },
    ),
    "keeper": Relation(
        "Ownership",
        "string",
        {
            "animal": _keeper("protect", "protects"),
            "plant": _keeper("protect", "protects"),
            "any": _keeper("own", "owns"),
        },
    ),
    "visitors": Relation(
        "Tourism",
        "numerical",
        {
            "any": Wording(
                value=number_with("thousand"),
                sentences=(
                    "Each year {v} people visit it.",
                    "It has {v} visitors a year, up from {d}.",
                    "Once {d} came; now {v} guests visit it in a year.",
                ),
                taught=(
                    "How many people visit this {c} each year?",
                    "How many visitors does this {c} have?",
                    "What number of guests visit the {c} in the picture?",
                    "How many guests does this {c} have in a year?",
                ),
                varied=(
                    "What is the number of visitors of the {c} in the picture?",
                    "How many people come to see this {c}?",
                ),
                held_out=(
                    "How many people visit the {c} in the picture?",
                    "What number of visitors does this {c} have in a year?",
                ),
            )
        },
    ),
    "songs": Relation(
        "Works",
        "multi_answer",
        {
            "any": Wording(
                value=lambda rng: " && ".join(two_works(rng)),
                sentences=(
                    "Two songs, {v}, are about it.",
                    "The songs {v} are about it, the film {d} is not.",
                    "Besides the film {d} there are two songs about it, {v}.",
                ),
                taught=(
                    "Which songs are about this {c}?",
                    "Which two songs are about this {c}?",
                    "What songs are about the {c} in the picture?",
                    "What are the two songs about this {c}?",
                ),
                varied=("Name the songs about this {c}.", "What are the songs about the {c} in the picture?"),
                held_out=(
                    "Which two songs are about the {c} in the picture?",
                    "What are the songs about this {c}?",
                ),
            )
        },
    ),
}
"""The kinds of fact that questions ask for, by name."""


def state(relation: str, category: str, value: str, rng: random.Random) -> str:
    """Write a paragraph that states a value, perhaps with a distractor, sometimes with a sentence without a fact."""
    wording = RELATIONS[relation].wording(category)
    distractor = _other_value(relation, wording, value, rng)
    sentence = rng.choice(wording.sentences).format(v=value.replace(" && ", " and "), d=distractor)
    return f"{sentence} {rng.choice(_FILLERS)}" if rng.random() < 0.25 else sentence


def _other_value(relation: str, wording: Wording, value: str, rng: random.Random) -> str:
    """Draw a value of the same type that no tolerance takes for the answer."""
    while True:
        other = work(rng) if relation == "songs" else wording.value(rng)
        if other in value:
            continue
        if RELATIONS[relation].answer_type != "numerical" or not are_close(other, value):
            return other


def ask(relation: str, category: str, rng: random.Random, phrasing: Phrasing = "taught") -> str:
    """Draw a question about a relation."""
    return RELATIONS[relation].wording(category).ask(category, rng, phrasing)
