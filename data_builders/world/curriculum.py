"""The curriculum of a miniature base model: which lessons, in which order, and the pictures that they are about.

Short, dense, small-batch stages, one skill each, each replaying what came before: copying before reading, seeing
before matching, one attribute before four.
"""

from __future__ import annotations

import functools
import random
from typing import Any

import torch
from torch import Tensor
from transformers.image_processing_utils import BaseImageProcessor

from reflectune.data_builders.world.drawing import draw
from reflectune.data_builders.world.entities import Entity
from reflectune.data_builders.world.famous import famous_entities
from reflectune.data_builders.world.lessons import Picture, Teacher, corpus
from reflectune.data_builders.world.looks import ALL_LOOKS, ATTRIBUTES, BALLOONS, VALUES
from reflectune.models.miniature.pretraining import Stage

PICTURES_PER_LOOKS = 6
PICTURES_PER_FAMOUS = 24


def corpus_for(rng: random.Random) -> list[str]:
    """The corpus that every miniature's tokenizer is trained on."""
    return corpus(4000, rng)


def draw_pool(
    image_processor: BaseImageProcessor, rng: random.Random
) -> tuple[list[Picture], list[dict[str, Tensor]], list[Entity]]:
    """Draw the pictures that lessons are about, with looks that training may use, more of them for famous entities.

    Returns:
        What each picture shows, its vision inputs (pixel values in half precision), and the famous entities.
    """
    famous = famous_entities()
    looks = [looks for looks in ALL_LOOKS if not looks.held_out] * PICTURES_PER_LOOKS
    looks += [entity.looks for entity in famous] * PICTURES_PER_FAMOUS
    shown = [Picture(look, rng.choice(BALLOONS)) for look in looks]
    pixels = []
    for picture in shown:
        vision = dict(image_processor(images=[draw(picture.looks, picture.balloons, rng)], return_tensors="pt"))
        pixels.append(vision | {"pixel_values": vision["pixel_values"].half()})
    return shown, pixels, famous


def labels_of(shown: list[Picture]) -> tuple[Tensor, list[int]]:
    """For the vision stage: each picture's attribute values as indices (pictures, 5), and how many values each has."""
    rows = [
        [*(VALUES[name].index(getattr(picture.looks, name)) for name in ATTRIBUTES), BALLOONS.index(picture.balloons)]
        for picture in shown
    ]
    return torch.tensor(rows), [*(len(VALUES[name]) for name in ATTRIBUTES), len(BALLOONS)]


def stages_for(teacher: Teacher | None, scale: float = 1.0) -> list[Stage]:
    """The stages after the vision tower's own. Without a teacher they can be listed, not run."""
    t: Any = teacher or Teacher([], [], random.Random(0))

    def steps(count: int) -> int:
        return max(1, round(count * scale))

    copying, reading = (1.0, t.copy), (1.0, lambda: t.read_many(5))
    matches = [functools.partial(t.match, level, 12) for level in (1, 2, 3, 4)]
    judging = [(0.6, lambda: t.read(with_picture=False, evidence_weight=3.0)), (0.3, reading[1]), (0.1, t.copy)]
    mixture = [
        (0.07, t.recall),
        (0.05, t.look),
        (0.08, lambda: t.match(4)),
        (0.07, lambda: t.read(with_picture=False)),
        (0.13, lambda: t.read_many(4)),
        (0.03, t.copy),
        (0.37, lambda: t.read(with_picture=True)),
        (0.12, t.read_article),
        (0.08, lambda: t.read_article(2)),
    ]
    polish = [
        (0.12, t.recall),
        (0.07, t.look),
        (0.08, lambda: t.match(4)),
        (0.20, lambda: t.read_many(4)),
        (0.03, t.copy),
        (0.30, lambda: t.read(with_picture=True)),
        (0.12, t.read_article),
        (0.08, lambda: t.read_article(2)),
    ]
    return [
        Stage("copy", steps(450), 16, 2e-3, [copying], vision_factor=0.0),
        Stage("read", steps(700), 8, 2e-3, [(0.25, t.copy), (0.75, reading[1])], vision_factor=0.0),
        Stage("judge", steps(1200), 8, 2e-3, judging, vision_factor=0.0, until=("evidence", 0.96)),
        Stage("look", steps(350), 16, 2e-3, [(1.0, t.look)], vision_factor=0.5),
        *(
            Stage(f"match {level}", steps(most), 4, 1.5e-3, [(0.9, match), (0.1, reading[1])], until=("match", share))
            for level, most, match, share in (
                (1, 2500, matches[0], 0.93),
                (2, 300, matches[1], 0.93),
                (3, 300, matches[2], 0.93),
                (4, 400, matches[3], 0.95),
            )
        ),
        Stage("mixture", steps(1100), 8, 1.6e-3, mixture, vision_factor=0.3),
        Stage("polish", steps(350), 8, 1.0e-3, polish, vision_factor=0.3),
    ]
