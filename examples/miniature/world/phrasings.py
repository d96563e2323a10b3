"""Phrasings of questions, and the questions that the image answers."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

Phrasing = Literal["taught", "train", "held_out"]
"""Set of phrasings: of a base model's lessons, of a training split (these and further ones), or of neither."""


@dataclass(frozen=True)
class Phrasings:
    """Phrasings of one question.

    Attributes:
        taught: Questions that a base model is taught; `{c}` is the category.
        varied: Further questions of a world's training split.
        held_out: Questions of validation and test alone.
    """

    taught: tuple[str, ...]
    varied: tuple[str, ...]
    held_out: tuple[str, ...]

    def ask(self, category: str, rng: random.Random, phrasing: Phrasing) -> str:
        """Draw a question of this set of phrasings."""
        choices = {"taught": self.taught, "train": self.taught + self.varied, "held_out": self.held_out}
        return rng.choice(choices[phrasing]).format(c=category)


VISUAL_QUESTIONS: dict[str, Phrasings] = {
    "kind": Phrasings(
        (
            "What kind of {c} is this?",
            "Which type of {c} is this?",
            "What kind of {c} is shown?",
            "Which kind of {c} can be seen?",
        ),
        ("What is the kind of the {c} in the picture?", "What kind of {c} is in the picture?"),
        ("Which kind of {c} is this?", "What type of {c} is shown?"),
    ),
    "colour": Phrasings(
        (
            "What colour is this {c}?",
            "Which colour is the {c} in the picture?",
            "What is the colour of this {c}?",
            "Which colour does this {c} have?",
        ),
        ("What is the colour of the {c} in the picture?", "In what colour is this {c}?"),
        ("What colour is the {c} in the picture?", "Which colour is this {c}?"),
    ),
    "ground": Phrasings(
        (
            "What is this {c} standing on?",
            "What lies under the {c} in the picture?",
            "On what is this {c} standing?",
            "What is under this {c}?",
        ),
        ("What is the ground that the {c} in the picture stands on?", "What is below this {c}?"),
        ("What is the {c} in the picture standing on?", "What lies under this {c}?"),
    ),
    "mark": Phrasings(
        (
            "Which shape is on the sign?",
            "What is painted on the sign?",
            "What shape is on the sign beside this {c}?",
            "Which shape does the sign show?",
        ),
        ("What is the shape on the sign in the picture?", "Which shape can be seen on the sign?"),
        ("Which shape is painted on the sign?", "What shape does the sign beside this {c} show?"),
    ),
    "count": Phrasings(
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
"""Questions that the image answers, by attribute."""


def ask_visual(attribute: str, category: str, rng: random.Random, phrasing: Phrasing = "taught") -> str:
    """Draw a visual-dependent question about an attribute (or `count`)."""
    return VISUAL_QUESTIONS[attribute].ask(category, rng, phrasing)
