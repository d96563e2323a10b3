"""The curriculum of a miniature base model: lessons in order, and the images that they are about.

Short, dense, small-batch stages, one skill each, each replaying what came before: copying before reading, seeing
before matching, one attribute before four.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers.image_processing_utils import BaseImageProcessor

from reflectune.examples.miniature.models.architecture import Family
from reflectune.examples.miniature.models.batches import Lesson
from reflectune.examples.miniature.models.pretraining import Stage, VisionStage
from reflectune.examples.miniature.world.drawing import draw
from reflectune.examples.miniature.world.entities import (
    ALL_LOOKS,
    ATTRIBUTES,
    BALLOONS,
    VALUES,
    Entity,
    Looks,
    famous_entities,
    random_looks,
)
from reflectune.examples.miniature.world.lessons import DrawnImage, Teacher

IMAGES_PER_LOOKS = 6
IMAGES_PER_FAMOUS = 24


Pixels = list[dict[str, Tensor]]
"""Vision inputs of each image, as the processor returns them, in half precision."""


def draw_pool(image_processor: BaseImageProcessor, rng: random.Random) -> tuple[list[DrawnImage], Pixels, list[Entity]]:
    """Draw the images of the lessons, with looks that training may use; famous entities have more of them.

    Returns:
        The content of each image, its pixels, and the famous entities.
    """
    famous = famous_entities()
    looks = [looks for looks in ALL_LOOKS if not looks.held_out] * IMAGES_PER_LOOKS
    looks += [entity.looks for entity in famous] * IMAGES_PER_FAMOUS
    return *_draw(looks, image_processor, rng), famous


def draw_exam(image_processor: BaseImageProcessor, rng: random.Random) -> tuple[Pixels, list[Lesson]]:
    """Draw lessons about looks that are held out of all training."""
    shown, pixels = _draw([random_looks(rng, held_out=True) for _ in range(200)], image_processor, rng)
    teacher = Teacher(shown, [], rng)
    lessons = [(teacher.look, 100), (teacher.match, 30), (lambda: teacher.read(with_image=True), 100)]
    lessons += [
        (teacher.read_article, 50),
        (lambda: teacher.read_article(2), 50),
        (lambda: teacher.read_articles(5), 200),
    ]
    return pixels, [lesson() for lesson, count in lessons for _ in range(count)]


def _draw(
    all_looks: Sequence[Looks], image_processor: BaseImageProcessor, rng: random.Random
) -> tuple[list[DrawnImage], Pixels]:
    shown = [DrawnImage(looks, rng.choice(BALLOONS)) for looks in all_looks]
    pixels = []
    for image in shown:
        vision = dict(image_processor(images=[draw(image.looks, image.balloons, rng)], return_tensors="pt"))
        pixels.append(vision | {"pixel_values": vision["pixel_values"].half()})
    return shown, pixels


def _vision_stage(shown: Sequence[DrawnImage], family: Family, scale: float) -> VisionStage:
    """Return the stage of naming every attribute's value and the number of balloons."""
    labels = [
        [*(VALUES[name].index(getattr(image.looks, name)) for name in ATTRIBUTES), BALLOONS.index(image.balloons)]
        for image in shown
    ]
    names = [*(VALUES[name] for name in ATTRIBUTES), tuple(str(count) for count in BALLOONS)]
    steps, batch = (1400, 64) if family == "llava" else (900, 32)  # Qwen2-VL reads four patches per image token
    return VisionStage("vision", max(1, round(steps * scale)), batch, 1.5e-3, torch.tensor(labels), names)


def stages_for(family: Family, teacher: Teacher | None, scale: float = 1.0) -> list[Stage | VisionStage]:
    """Return the stages of a family's pre-training. Without a teacher they can be listed, not run."""
    t: Any = teacher or Teacher([], [], random.Random(0))

    def steps(count: int) -> int:
        return max(1, round(count * scale))

    copying, reading = (1.0, t.copy), (1.0, lambda: t.read_many(5))
    judging = [(0.6, lambda: t.read(with_image=False, evidence_weight=3.0)), (0.3, reading[1]), (0.1, t.copy)]
    searching = [
        (0.55, lambda: t.read_article(with_image=False)),
        (0.20, lambda: t.read(with_image=False, evidence_weight=3.0)),
        (0.20, reading[1]),
        (0.05, t.copy),
    ]
    mixture = [
        (0.07, t.recall),
        (0.06, t.look),
        (0.08, t.match),
        (0.05, lambda: t.read(with_image=False)),
        (0.08, lambda: t.read_many(4)),
        (0.02, t.copy),
        (0.34, lambda: t.read(with_image=True)),
        (0.18, t.read_article),
        (0.12, lambda: t.read_article(2)),
    ]
    polish = [
        (0.55, t.look),
        (0.20, lambda: t.read(with_image=True)),
        (0.15, t.read_article),
        (0.05, t.match),
        (0.05, t.recall),
    ]
    rehearsal = [
        (0.25, t.look),
        (0.45, lambda: t.read(with_image=True)),
        (0.20, t.read_article),
        (0.05, t.match),
        (0.05, t.recall),
    ]
    several = [
        (0.08, lambda: t.read_articles(2)),
        (0.10, lambda: t.read_articles(3)),
        (0.34, lambda: t.read_articles(5)),
        (0.18, lambda: t.read(with_image=True)),
        (0.04, t.read_article),
        (0.14, t.look),
        (0.06, t.match),
        (0.06, t.recall),
    ]
    articles = [
        (0.30, lambda: t.read_articles(5)),
        (0.30, t.read_article),
        (0.22, lambda: t.read(with_image=True)),
        (0.10, t.look),
        (0.04, t.match),
        (0.04, t.recall),
    ]
    is_llava = family == "llava"
    looking = Stage("look", steps(350), 16, 2e-3, [(1.0, t.look)], vision_factor=0.5)
    if is_llava:  # its tower forgets the balloons' number unless it rests until the language model has read it
        looking = replace(looking, steps=steps(1200), vision_factor=0.0, until=("visual", 0.97))
    finish = [  # the mixture has cost it the count; then the evidence again
        Stage("polish", steps(1000), 8, 1e-3, polish, vision_factor=0.1),
        Stage("rehearsal", steps(800), 8, 8e-4, rehearsal, vision_factor=0.1),
    ]
    # after as many steps as LLaVA's it found fewer of five articles where a question was phrased differently
    again = [Stage("several again", steps(1200), 8, 1.2e-3, several, vision_factor=0.1, skill="read_articles")]
    if family == "qwen3_5":  # with few layers of full attention it still found fewer facts in one article and in five
        again += [
            Stage(name, steps(count), 8, 1.2e-3, articles, vision_factor=0.1, skill="read_articles")
            for name, count in (("articles", 700), ("articles again", 800))
        ]
    matching, factor = [(0.9, t.match), (0.1, reading[1])], 0.0 if is_llava else 1.0
    return [
        Stage("copy", steps(450), 16, 2e-3, [copying], vision_factor=0.0),
        Stage("read", steps(700), 8, 2e-3, [(0.25, t.copy), (0.75, reading[1])], vision_factor=0.0),
        Stage("judge", steps(4000), 8, 2e-3, judging, vision_factor=0.0, until=("evidence", 0.96)),
        Stage("search", steps(2500), 8, 1.5e-3, searching, vision_factor=0.0, until=("read_article", 0.92)),
        _vision_stage(t.images, family, scale),
        looking,
        Stage("match", steps(3000), 4, 1.5e-3, matching, vision_factor=factor, until=("match", 0.95)),
        Stage("mixture", steps(1500), 8, 1.6e-3, mixture, vision_factor=0.1 if is_llava else 0.3),
        *(finish if is_llava else []),
        Stage("several", steps(900), 8, 1.2e-3, several, vision_factor=0.1, skill="read_articles"),
        *([] if is_llava else again),
    ]
