"""Kinds of things of the gallery: their names in questions, and the senses of WordNet that they may have."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Category:
    """A kind of thing.

    Attributes:
        noun: Its name in a question.
        kind: Answers to "what kind of thing is this?"; empty: not asked.
        files: Numbers of the WordNet files (lexnames) that its sense may be in.
    """

    noun: str
    kind: tuple[str, ...]
    files: frozenset[int]


def _category(noun: str, kind: str, *files: int) -> Category:
    return Category(noun, tuple(kind.split("/")) if kind else (), frozenset(files))


CATEGORIES: dict[str, Category] = {
    "flag": _category("flag", "flag/a flag"),
    "animal": _category("animal", "animal/an animal", 5),
    "bird": _category("bird", "bird/animal/a bird", 5),
    "reptile": _category("reptile", "reptile/animal/amphibian", 5),
    "sea animal": _category("animal", "animal/sea animal", 5),
    "insect": _category("animal", "insect/animal/bug", 5),
    "plant": _category("plant", "plant/a plant", 20, 13),
    "flower": _category("flower", "flower/plant", 20),
    "fruit": _category("fruit", "fruit/food/a fruit", 13, 20),
    "vegetable": _category("vegetable", "vegetable/food/plant", 13, 20),
    "food": _category("food", "food/dish", 13, 20, 27),
    "drink": _category("drink", "drink/beverage", 13),
    "instrument": _category("instrument", "musical instrument/instrument", 6),
    "vehicle": _category("vehicle", "vehicle/means of transport", 6),
    "boat": _category("vessel", "boat/ship/vessel/vehicle", 6),
    "aircraft": _category("craft", "aircraft/vehicle", 6),
    "building": _category("building", "building/structure", 6, 14, 15),
    "landmark": _category("landmark", "landmark/monument/building", 6, 15, 17),
    "place": _category("place", "place/landscape", 6, 15, 17, 19),
    "sky": _category("thing", "", 17, 19, 11, 27, 23),
    "planet": _category("celestial body", "planet/celestial body", 17),
    "sport": _category("sport", "sport/game", 4),
    "game": _category("game", "game/toy", 4, 6),
    "clothing": _category("garment", "clothing/garment/clothes", 6),
    "tool": _category("tool", "tool/utensil", 6),
    "device": _category("device", "device/machine", 6),
    "object": _category("object", "object/thing", 6, 9, 10, 13, 17, 21, 27),
    "body": _category("part of the body", "body part/part of the body/organ", 8),
    "creature": _category("creature", "imaginary creature/mythical creature/creature", 18, 9, 5),
    "activity": _category("activity", "activity/sport", 4),
    "word": _category("thing", "", 5, 6, 8, 13, 20),
}

EMOJI_CATEGORIES: dict[str, str] = {
    "animal-mammal": "animal",
    "animal-bird": "bird",
    "animal-amphibian": "reptile",
    "animal-reptile": "reptile",
    "animal-marine": "sea animal",
    "animal-bug": "insect",
    "plant-flower": "flower",
    "plant-other": "plant",
    "food-fruit": "fruit",
    "food-vegetable": "vegetable",
    "food-prepared": "food",
    "food-asian": "food",
    "food-marine": "sea animal",
    "food-sweet": "food",
    "drink": "drink",
    "dishware": "tool",
    "place-geographic": "place",
    "place-building": "building",
    "place-religious": "building",
    "place-other": "place",
    "transport-ground": "vehicle",
    "transport-water": "boat",
    "transport-air": "aircraft",
    "sky-weather": "sky",
    "time": "device",
    "event": "object",
    "sport": "sport",
    "game": "game",
    "arts-crafts": "object",
    "clothing": "clothing",
    "sound": "device",
    "music": "device",
    "musical-instrument": "instrument",
    "phone": "device",
    "computer": "device",
    "light-video": "device",
    "book-paper": "object",
    "money": "object",
    "mail": "object",
    "writing": "tool",
    "office": "object",
    "lock": "object",
    "tool": "tool",
    "science": "device",
    "medical": "device",
    "household": "object",
    "other-object": "object",
    "body-parts": "body",
    "hand-fingers-open": "body",
    "hand-prop": "body",
    "person-fantasy": "creature",
    "person-sport": "activity",
    "person-activity": "activity",
    "monkey-face": "animal",
    "place-map": "planet",
    "face-negative": "body",
    "face-costume": "creature",
}
"""Category of each of the emoji's subgroups that is used."""

STAMP_CATEGORIES: dict[str, str] = {
    "animals/birds": "bird",
    "animals/fish": "sea animal",
    "animals/shellfish": "sea animal",
    "animals/insects": "insect",
    "animals/amphibians": "reptile",
    "animals/lizards": "reptile",
    "animals": "animal",
    "clothes": "clothing",
    "food/fruit": "fruit",
    "food/nuts": "fruit",
    "food/vegetables": "vegetable",
    "food/spices": "plant",
    "food": "food",
    "hobbies/music": "instrument",
    "hobbies": "device",
    "household/tools": "tool",
    "household": "object",
    "medical": "device",
    "naturalforces": "sky",
    "people/body_parts": "body",
    "plants/flowers": "flower",
    "plants": "plant",
    "seasonal/halloween": "word",
    "seasonal/christmas": "object",
    "space/planets": "planet",
    "space/moon": "planet",
    "sports": "sport",
    "town/monuments": "landmark",
    "town/houses": "building",
    "vehicles/flight": "aircraft",
    "vehicles/ship": "boat",
    "vehicles": "vehicle",
}
"""Category of each of the stamps' folders that is used; the first whose name fits."""

PREFERRED = ("fruit", "vegetable", "sport", "planet", "landmark")
"""Categories in order of preference for an entity with images of several; else it has the first image's."""
