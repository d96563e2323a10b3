"""What an encyclopedia says: relations, their values, the sentences that state them, and the questions they answer.

Every relation has phrasings that training may use and phrasings held out for validation and test. A sentence may carry
a distractor `{d}`: another value of the same type that is not the answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from reflectune.core.types import AnswerType

_NAME_STARTS = (
    "Bal Cor Dra El Fen Gar Hol Is Jor Kel Lor Mar Nor Or Pel Quin Ras Sel Tor Ul Ven Wes Yar Zan Ald Bren Cas Dun "
    "Fal Gri"
).split()
_NAME_ENDS = (
    "mar den vik tha lin rok sha bur wen dal fer gan hel mir nor pol ris sten tur vel wick yor zel bek cra dor eth "
    "fin gol hem"
).split()
_FIRST_NAMES = (
    "Ada Bruno Clara David Edith Felix Greta Hugo Irene Jonas Karin Leo Maria Nils Olga Peter Rosa Simon Tilda Viktor "
    "Anna Boris Cora Emil Frida"
).split()
_LAST_NAMES = (
    "Abel Berg Castell Dorn Ekman Falk Graf Holm Iversen Jung Keller Lind Moser Nash Otter Pohl Quist Roth Stahl "
    "Thorn Ulrich Vogt Weber Young Zeller"
).split()
_BODIES = "Trust Society Council Guild Museum Bank Order Company".split()
_MONTHS = "January February March April May June July August September October November December".split()
_MATERIALS = "granite oak marble brick steel sandstone copper limestone slate bronze timber glass".split()
_FOODS = "clover barley berries beetles moss acorns snails seeds worms grapes lichen crabs".split()
_SCENTS = "honey mint lemon vanilla cedar pepper ginger lavender cocoa almond thyme pine".split()
_TITLE_STARTS = "Silent Golden Distant Broken Winter Scarlet Hidden Little Endless Northern Paper Midnight".split()
_TITLE_ENDS = "Harbour Road Lantern River Garden Feast Mirror Voyage Letter Morning Orchard Bell".split()
_FILLERS = (
    "Little has changed since.",
    "Guides like to tell the story.",
    "A small plaque records it.",
    "Local people are proud of this.",
    "Older books say less about it.",
)


def town(rng: random.Random) -> str:
    """An invented town."""
    return rng.choice(_NAME_STARTS) + rng.choice(_NAME_ENDS)


def name(rng: random.Random) -> str:
    """An invented proper name of two or three syllables."""
    return town(rng) + (rng.choice(_NAME_ENDS) if rng.random() < 0.3 else "")


def _year(rng: random.Random) -> str:
    return str(rng.randint(1500, 1999))


def _person(rng: random.Random) -> str:
    return f"{rng.choice(_FIRST_NAMES)} {rng.choice(_LAST_NAMES)}"


def _body(rng: random.Random) -> str:
    return f"{rng.choice(_LAST_NAMES)} {rng.choice(_BODIES)}"


def _work(rng: random.Random) -> str:
    return f"{rng.choice(_TITLE_STARTS)} {rng.choice(_TITLE_ENDS)}"


def _number_with(unit: str) -> Callable[[random.Random], str]:
    return lambda rng: f"{rng.randint(10, 99)} {unit}"


def _one_of(words: list[str]) -> Callable[[random.Random], str]:
    return lambda rng: rng.choice(words)


@dataclass(frozen=True)
class Wording:
    """How a relation is worded for a category of things.

    Attributes:
        value: Draws a value.
        sentences: Templates with `{v}` for the value and perhaps `{d}` for a distractor.
        taught: Questions that a base model is taught; `{c}` is the category.
        varied: Further ones, which a world's training split has besides.
        held_out: Questions that only validation and test ask.
    """

    value: Callable[[random.Random], str]
    sentences: tuple[str, ...]
    taught: tuple[str, ...]
    varied: tuple[str, ...]
    held_out: tuple[str, ...]


@dataclass(frozen=True)
class Relation:
    """One kind of fact: the heading it stands under, the type of its answers, and its wordings by category."""

    heading: str
    answer_type: AnswerType
    wordings: dict[str, Wording]

    def wording(self, category: str) -> Wording:
        """The wording for a category, `any` standing for those without one of their own."""
        return self.wordings.get(category) or self.wordings["any"]


def _founding(verb: str) -> Wording:
    return Wording(
        value=_year,
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
        value=_person,
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
        value=_number_with(unit),
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
    value=_one_of(_MATERIALS),
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
    value=_one_of(_FOODS),
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
    value=_one_of(_SCENTS),
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
        value=_one_of(_MONTHS),
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
        value=_body,
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
                value=_number_with("thousand"),
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
                value=lambda rng: " && ".join(_two_works(rng)),
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


def _two_works(rng: random.Random) -> tuple[str, str]:
    first = _work(rng)
    second = _work(rng)
    while second == first:
        second = _work(rng)
    return first, second


def state(relation: str, category: str, value: str, rng: random.Random) -> str:
    """A paragraph that states a value: a sentence, perhaps with a distractor, and sometimes one without a fact."""
    wording = RELATIONS[relation].wording(category)
    distractor = _other_value(relation, wording, value, rng)
    sentence = rng.choice(wording.sentences).format(v=value.replace(" && ", " and "), d=distractor)
    return f"{sentence} {rng.choice(_FILLERS)}" if rng.random() < 0.25 else sentence


def _other_value(relation: str, wording: Wording, value: str, rng: random.Random) -> str:
    """A value of the same type, so different that no tolerance takes it for the answer."""
    while True:
        other = _work(rng) if relation == "songs" else wording.value(rng)
        if other in value:
            continue
        if RELATIONS[relation].answer_type != "numerical" or not _close(other, value):
            return other


def _close(one: str, other: str) -> bool:
    a, b = (int(text.split()[0]) for text in (one, other))
    return abs(a - b) <= 0.15 * max(a, b)


Phrasing = Literal["taught", "train", "held_out"]
"""Whose words a question is asked in: a base model's lessons, a training split (these and further ones), or neither."""


def ask(relation: str, category: str, rng: random.Random, phrasing: Phrasing = "taught") -> str:
    """A question for a relation."""
    return _phrased(RELATIONS[relation].wording(category), category, rng, phrasing)


def _phrased(known: Wording | VisualPhrasings, category: str, rng: random.Random, phrasing: Phrasing) -> str:
    choices = {"taught": known.taught, "train": known.taught + known.varied, "held_out": known.held_out}
    return rng.choice(choices[phrasing]).format(c=category)


@dataclass(frozen=True)
class VisualPhrasings:
    """Ways to ask about an attribute: those that a base model is taught, those that a world's training split has
    besides, and those that are held out for validation and test."""

    taught: tuple[str, ...]
    varied: tuple[str, ...]
    held_out: tuple[str, ...]


VISUAL_QUESTIONS: dict[str, VisualPhrasings] = {
    "kind": VisualPhrasings(
        (
            "What kind of {c} is this?",
            "Which type of {c} is this?",
            "What kind of {c} is shown?",
            "Which kind of {c} can be seen?",
        ),
        ("What is the kind of the {c} in the picture?", "What kind of {c} is in the picture?"),
        ("Which kind of {c} is this?", "What type of {c} is shown?"),
    ),
    "colour": VisualPhrasings(
        (
            "What colour is this {c}?",
            "Which colour is the {c} in the picture?",
            "What is the colour of this {c}?",
            "Which colour does this {c} have?",
        ),
        ("What is the colour of the {c} in the picture?", "In what colour is this {c}?"),
        ("What colour is the {c} in the picture?", "Which colour is this {c}?"),
    ),
    "ground": VisualPhrasings(
        (
            "What is this {c} standing on?",
            "What lies under the {c} in the picture?",
            "On what is this {c} standing?",
            "What is under this {c}?",
        ),
        ("What is the ground that the {c} in the picture stands on?", "What is below this {c}?"),
        ("What is the {c} in the picture standing on?", "What lies under this {c}?"),
    ),
    "mark": VisualPhrasings(
        (
            "Which shape is on the sign?",
            "What is painted on the sign?",
            "What shape is on the sign beside this {c}?",
            "Which shape does the sign show?",
        ),
        ("What is the shape on the sign in the picture?", "Which shape can be seen on the sign?"),
        ("Which shape is painted on the sign?", "What shape does the sign beside this {c} show?"),
    ),
    "count": VisualPhrasings(
        (
            "How many balloons are there?",
            "How many balloons can be seen?",
            "What is the number of balloons?",
            "How many balloons are over this {c}?",
        ),
        ("What is the number of balloons in the picture?", "How many balloons does the picture have?"),
        ("How many balloons are in the picture?", "What number of balloons can be seen?"),
    ),
}
"""Questions that looking answers, by attribute."""


def ask_visual(attribute: str, category: str, rng: random.Random, phrasing: Phrasing = "taught") -> str:
    """A visual-dependent question about an attribute (or `count`)."""
    return _phrased(VISUAL_QUESTIONS[attribute], category, rng, phrasing)
