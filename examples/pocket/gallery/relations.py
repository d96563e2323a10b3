"""Relations and their questions: in words that training may use, and in words held out from it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from reflectune.examples.pocket.gallery.facts import Fact
from reflectune.examples.pocket.gallery.sources.categories import CATEGORIES


@dataclass(frozen=True)
class FactRelation:
    """The questions of a relation.

    Attributes:
        train: Questions of the training split; `{it}` is the subject.
        held_out: Questions of validation and test alone.
        cue: Pattern of words of a sentence that states the fact; "": only the fact's own section is evidence.
    """

    train: tuple[str, ...]
    held_out: tuple[str, ...]
    cue: str = ""


RELATIONS: dict[str, FactRelation] = {
    "capital": FactRelation(
        ("What is the capital of {it}?", "Which city is the capital of {it}?", "Name the capital of {it}."),
        ("What city is the capital of {it}?", "Which capital city does {it} have?"),
        "capital",
    ),
    "region": FactRelation(
        ("In which part of the world is {it}?", "Where in the world does {it} lie?", "Which region is {it} in?"),
        ("In what region of the world is {it} found?", "Which part of the world does {it} belong to?"),
        "country in|located in|lies in|territory|nation in|island",
    ),
    "area": FactRelation(
        ("What is the total area of {it}?", "Tell me the total area of {it}.", "Which is the total area of {it}?"),
        ("{It}: what is its total area?", "What total area does {it} have?"),
    ),
    "highest_point": FactRelation(
        (
            "What is the highest point of {it}?",
            "Which is the highest place in {it}?",
            "What is the highest spot of {it}?",
        ),
        ("Which point of {it} is the highest?", "At which place is {it} highest?"),
        "highest",
    ),
    "elevation": FactRelation(
        ("How high is the highest point of {it}?", "What is the height of the highest point of {it}?"),
        ("To what height does {it} rise at its highest point?", "What elevation does the top of {it} reach?"),
    ),
    "coastline": FactRelation(
        ("How long is the coastline of {it}?", "What is the length of the coast of {it}?"),
        ("How many kilometres of coastline does {it} have?", "What length does the coast of {it} have?"),
    ),
    "neighbours": FactRelation(
        ("Which countries border {it}?", "Which countries are the neighbours of {it}?"),
        ("What countries does {it} share a border with?", "Name the countries next to {it}."),
        "border",
    ),
    "longest_border": FactRelation(
        (
            "With which country does {it} have its longest land border?",
            "Which neighbour shares the longest border with {it}?",
        ),
        ("The longest land border of {it} is with which country?", "Which country has the longest border with {it}?"),
    ),
    "population": FactRelation(
        ("How many people live in {it}?", "What is the population of {it}?", "How large is the population of {it}?"),
        ("How many inhabitants does {it} have?", "What number of people live in {it}?"),
    ),
    "demonym": FactRelation(
        ("What is something from {it} called?", "Which adjective is used for things from {it}?"),
        ("What adjective describes things from {it}?", "How do you call something that comes from {it}?"),
    ),
    "language": FactRelation(
        (
            "What is the main language of {it}?",
            "Which language is spoken in {it}?",
            "What language do people speak in {it}?",
        ),
        ("Which is the main language in {it}?", "What is the chief tongue of {it}?"),
        "language",
    ),
    "religion": FactRelation(
        ("What is the most common religion in {it}?", "Which religion do most people of {it} have?"),
        ("Which faith is the most common in {it}?", "What is the main religion of {it}?"),
    ),
    "median_age": FactRelation(
        ("What is the median age in {it}?", "How old is the median person of {it}?"),
        ("Which median age do the people of {it} have?", "What is the median age of the people in {it}?"),
    ),
    "government": FactRelation(
        ("What form of government does {it} have?", "How is {it} governed?", "What is the form of government of {it}?"),
        ("Which kind of government does {it} have?", "What type of state is {it}?"),
    ),
    "independence": FactRelation(
        ("When did {it} become independent?", "In which year did {it} become independent?"),
        ("What year brought independence to {it}?", "Since when is {it} independent?"),
        "independen",
    ),
    "anthem": FactRelation(
        ("What is the national anthem of {it}?", "Which song is the national anthem of {it}?"),
        ("What is the anthem of {it} called?", "Name the anthem of {it}."),
    ),
    "holiday": FactRelation(
        ("What is the national holiday of {it}?", "Which day is the national holiday of {it}?"),
        ("What is the name of the national holiday of {it}?", "Which national holiday does {it} have?"),
    ),
    "symbol": FactRelation(
        ("What is the national symbol of {it}?", "Which symbol stands for {it}?"),
        ("What does {it} have as its national symbol?", "Name the national symbol of {it}."),
    ),
    "currency": FactRelation(
        ("What is the currency of {it}?", "Which currency is used in {it}?", "What money do people use in {it}?"),
        ("In what currency do people pay in {it}?", "What is the money of {it} called?"),
        "currency",
    ),
    "export": FactRelation(
        ("What is the most important export of {it}?", "Which product does {it} export most?"),
        ("What does {it} export the most of?", "What is the main export of {it}?"),
    ),
    "partner": FactRelation(
        ("Where do most exports of {it} go?", "Which country buys most of the exports of {it}?"),
        ("To which country does {it} export most?", "Which country is the chief export market of {it}?"),
    ),
    "crop": FactRelation(
        ("What is the main agricultural product of {it}?", "Which product do the farmers of {it} produce most?"),
        ("What do the farms of {it} mainly produce?", "Which is the chief farm product of {it}?"),
    ),
    "genus": FactRelation(
        ("To which genus does {it} belong?", "What is the genus of {it}?"),
        ("Which genus is {it} a member of?", "In what genus is {it} placed?"),
        "genus",
    ),
    "family": FactRelation(
        ("To which family does {it} belong?", "What is the scientific family of {it}?"),
        ("Which family is {it} a member of?", "In what family do scientists place {it}?"),
        "family|member of",
    ),
    "subfamily": FactRelation(
        ("To which subfamily does {it} belong?", "What is the subfamily of {it}?"),
        ("Which subfamily is {it} a member of?", "In what subfamily is {it} placed?"),
    ),
    "order": FactRelation(
        ("To which order does {it} belong?", "What is the scientific order of {it}?"),
        ("Which order is {it} a member of?", "In what order do scientists place {it}?"),
        "order",
    ),
    "class": FactRelation(
        ("To which class does {it} belong?", "What is the scientific class of {it}?"),
        ("Which class is {it} a member of?", "In what class do scientists place {it}?"),
        "class",
    ),
    "kind": FactRelation(
        ("What wider kind of thing is {it}?", "What sort of thing does {it} count as?"),
        ("Among what sort of things is {it} counted?", "What wider sort of thing is {it} one of?"),
    ),
    "native_to": FactRelation(
        ("Where is {it} native to?", "Which part of the world is {it} native to?", "Where does {it} come from?"),
        ("In which region is {it} native?", "What is the native region of {it}?"),
        "native|endemic|indigenous",
    ),
    "origin": FactRelation(
        ("Where did {it} originate?", "Where does {it} originally come from?"),
        ("In which part of the world did {it} originate?", "What is the place of origin of {it}?"),
        "originat|domesticat",
    ),
    "species_count": FactRelation(
        ("How many species of {it} are there?", "How many species are known of {it}?"),
        ("What is the number of species of {it}?", "Into how many species is {it} divided?"),
        "species",
    ),
    "diet": FactRelation(
        ("What kind of eater is {it}?", "By its diet, what is {it}?"),
        ("What is {it} called by what it eats?", "Which kind of diet does {it} have?"),
    ),
    "other_name": FactRelation(
        ("What is another name of {it}?", "What else is {it} called?", "By what other name is {it} known?"),
        ("Under which other name is {it} known?", "What other name does {it} have?"),
        "called|known as|referred",
    ),
    "domesticated_when": FactRelation(
        ("When was {it} domesticated?", "How long ago was {it} domesticated?"),
        ("At what time did people domesticate {it}?", "Since when is {it} domesticated?"),
    ),
    "word_origin": FactRelation(
        ("From which language does the name of {it} come?", "What language is the name of {it} from?"),
        ("The name of {it} stems from which language?", "In which language does the word for {it} have its root?"),
    ),
    "inventor": FactRelation(("Who designed {it}?", "Who was the maker of {it}?"), ("By whom was {it} designed?",)),
    "made_when": FactRelation(
        ("When was {it} made?", "In which year was {it} made?"),
        ("What year was {it} made in?", "In what year did {it} come into being?"),
        "invented|built|completed|constructed",
    ),
    "strings": FactRelation(
        ("How many strings does {it} have?",), ("What is the number of strings of {it}?",), "string"
    ),
    "players": FactRelation(
        ("How many players are there on each side of {it}?", "How many players does a side have in {it}?"),
        ("What number of players makes a side in {it}?",),
        "player",
    ),
    "legs": FactRelation(
        ("How many limbs does {it} have by its article?",), ("What number of limbs does {it} have?",), "legs|arms"
    ),
    "cuisine": FactRelation(
        ("Which cuisine does {it} belong to?", "From which cuisine does {it} come?"),
        ("Of what cuisine is {it} a part?", "Which national cuisine has {it} in it?"),
    ),
    "city": FactRelation(("In which city is {it}?", "Where does {it} stand?"), ("What city is {it} in?",), "in"),
    "country": FactRelation(("In which country is {it}?",), ("What country is {it} in?",), "in"),
    "planet_place": FactRelation(
        (
            "What number does {it} have among the planets, counted from the Sun?",
            "Which place from the Sun does {it} have?",
        ),
        ("What is the place of {it} among the planets from the Sun?",),
        "planet from",
    ),
    "height": FactRelation(("How tall is {it}?", "What is the height of {it}?"), ("What height does {it} have?",)),
    "diameter": FactRelation(
        ("What is the diameter of {it}?", "How large is {it} across?"), ("What diameter does {it} have?",)
    ),
}
"""All relations, by key; a reviewed fact (`note`) brings its own questions."""

SUBJECTS = {
    "flag": (
        ("the country with this flag", "the country that this flag belongs to", "the place with this flag"),
        ("the country whose flag is shown", "the land of the flag in the picture"),
    ),
    "other": (
        ("this {c}", "the {c} in the picture", "the {c} shown here"),
        ("the {c} that is shown", "the pictured {c}"),
    ),
}
"""Names of a question's subject, of a flag and of other images: in training, and in held-out phrasings."""


def ask(fact: Fact, category: str, rng: random.Random, held_out: bool) -> str:
    """Draw a question for a fact.

    Args:
        fact: The fact.
        category: Kind of thing of its subject.
        rng: Generator of the words.
        held_out: True takes words that training doesn't have.
    """
    noun = CATEGORIES[category].noun
    subject = rng.choice(SUBJECTS["flag" if category == "flag" else "other"][held_out]).format(c=noun)
    relation = RELATIONS.get(fact.relation)
    texts = fact.asked if relation is None else (relation.train, relation.held_out)
    return fill(rng.choice(texts[held_out]), subject)


def fill(text: str, subject: str) -> str:
    """Insert the subject into a question."""
    return text.format(it=subject, It=subject[:1].upper() + subject[1:])


def cue_of(relation: str) -> str:
    """Return the pattern of words that a different section needs, in addition to the answer, to be evidence."""
    return RELATIONS[relation].cue if relation in RELATIONS else ""
