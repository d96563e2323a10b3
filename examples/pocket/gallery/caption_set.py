"""Training data of stage 1 for a gallery: captions and visual questions, none about the gallery's test images."""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from reflectune.core.hashing import file_fingerprint, fingerprint, sha256_of
from reflectune.core.images import open_image
from reflectune.core.types import Question
from reflectune.examples.data_sets import begin, count_questions, finish
from reflectune.examples.pocket.gallery.build import GallerySettings, draw_counted, make_linked_entities, read_images
from reflectune.examples.pocket.gallery.captions import (
    FLAG_PROMPTS,
    SENTENCE_PROMPTS,
    WORD_PROMPTS,
    Caption,
    read_captions,
)
from reflectune.examples.pocket.gallery.collecting import Collection
from reflectune.examples.pocket.gallery.entities import Look
from reflectune.examples.pocket.gallery.linking import read_reviewed
from reflectune.examples.pocket.gallery.questions import SPLITS, image_path
from reflectune.examples.pocket.gallery.visual_questions import Visual, visuals
from reflectune.formats.dataset import Dataset, load_manifest, write_questions

VERSION: Final = 2
"""Raise it when the same gallery gives different captions."""
HELD_OUT: Final = 0.1
"""Share of the captioned things that validation alone shows."""
WORDINGS: Final = {
    **dict.fromkeys(("kind", "style"), 2),
    **dict.fromkeys(("colour", "count", "top", "bottom", "left", "has"), 3),
    "name": 1,
}
"""Wordings of each visual question of an image; flags are asked for their name alone."""
TRAINED: Final = ("train", "two_hop_train")
"""Splits of the gallery whose images training may use."""


def build_captions(folder: Path, gallery: Path, sources: Collection, settings: GallerySettings) -> dict[str, Any]:
    """Write a gallery's data set of captions, or return the manifest of one that is written already.

    Its splits: `train` has the captions, as a sentence and as a word; `visual` has the other visual questions of the
    same images, in several wordings; `val` has the captions of things that neither of them shows. The images are
    the gallery's. None is of an entity of the gallery's validation or test, and none has the content of an image that
    a question of these splits is about.

    Args:
        folder: Output folder.
        gallery: Folder of the gallery.
        sources: Sources of the gallery.
        settings: Settings of the gallery.

    Returns:
        The manifest.

    Raises:
        UserError: The folder holds a different data set, or a source has a bad image.
    """
    known = load_manifest(gallery)
    key = fingerprint({"version": VERSION, "gallery": [known["settings"], known["fingerprint"]], "settings": settings})
    if built := begin(folder, key):
        return built
    splits = _ask(gallery, sources, settings)
    for split, questions in splits.items():
        write_questions(folder, split, questions)
    manifest = {
        "name": f"captions of {known['name']}",
        "metric": "exact_match",
        "seed": settings.seed,
        "settings": key,
        "image_root": Path(os.path.relpath(gallery.resolve(), folder.resolve())).as_posix(),
        "fingerprint": file_fingerprint(*sorted((folder / "questions").glob("*.parquet"))),
        "counts": count_questions(splits),
        "images": {split: len({question.image for question in asked}) for split, asked in splits.items()},
    }
    finish(folder, manifest)
    return manifest


def _ask(gallery: Path, sources: Collection, settings: GallerySettings) -> dict[str, list[Question]]:
    linked = make_linked_entities(gallery, sources, settings)
    captions = list(read_captions(sources.images, linked.links, linked.entities, sources.countries, read_reviewed()))
    captions = [caption for caption in captions if caption.entity is None or caption.entity.role not in ("val", "test")]
    known = {link.image.id for link in linked.links.made}
    unread = [caption.image for caption in captions if caption.image.id not in known]
    others, _ = read_images(gallery, unread)
    return _Splits(gallery, linked.looks | others, settings.seed).of(captions)


class _Splits:
    """Divides captions into splits, and writes their questions.

    Args:
        gallery: Folder of the gallery, which has the images.
        looks: Look of each usable image, by id.
        seed: Seed of every draw.
    """

    def __init__(self, gallery: Path, looks: Mapping[str, Look], seed: int) -> None:
        self._gallery, self._looks, self._seed = gallery, looks, seed
        self._numbers = defaultdict[str, Iterator[int]](itertools.count)
        dataset = Dataset(gallery)
        tested = {q.image for split in SPLITS if split not in TRAINED for q in dataset.questions(split)}
        self._tested = {sha256_of(gallery / image) for image in tested}  # as `Look.pixels`

    def of(self, captions: Sequence[Caption]) -> dict[str, list[Question]]:
        """Return the questions of each split."""
        captions = self._free(captions)
        things = sorted({caption.thing for caption in captions})
        rng = random.Random(f"{self._seed}/captions")
        held_out = set(rng.sample(things, round(HELD_OUT * len(things))))
        val = [caption for caption in captions if caption.thing in held_out]
        shown = {name.lower() for caption in val for name in (caption.sentence, *caption.names)}
        train = [
            caption
            for caption in captions
            if caption.thing not in held_out and not shown & {caption.sentence.lower(), caption.names[0].lower()}
        ]
        return {
            "train": [question for caption in train for question in self._caption(caption, "train")],
            "visual": [question for caption in train for question in self._looking(caption)],
            "val": [question for caption in val for question in self._caption(caption, "val")],
        }

    def _free(self, captions: Sequence[Caption]) -> list[Caption]:
        """Return the captions whose image is usable, in no test question, and not a copy of an earlier one."""
        seen = set(self._tested)
        free = []
        for caption in captions:
            look = self._looks.get(caption.image.id)
            if look is not None and look.pixels not in seen:
                seen.add(look.pixels)
                free.append(caption)
        return free

    def _caption(self, caption: Caption, split: str) -> Iterator[Question]:
        """Return the questions for an image's caption, as a sentence and as a word."""
        rng = random.Random(f"{self._seed}/caption/{caption.image.id}")
        sentence = rng.choice(SENTENCE_PROMPTS)
        word = rng.choice(FLAG_PROMPTS if caption.image.category == "flag" else WORD_PROMPTS)
        base = Question(
            id=self._next_id(split),
            image=image_path(caption.image),
            text=sentence,
            answers=(caption.sentence,),
            answer_type="free_form",
            split=split,
            requires_retrieval=False,
            entity_ids=(caption.entity.id,) if caption.entity else (),
            meta={"attribute": "caption", **_about(caption)},
        )
        yield base
        yield dataclasses.replace(
            base,
            id=self._next_id(split),
            text=word,
            answers=caption.names,
            answer_type="string",
            meta={"attribute": "name", **_about(caption)},
        )

    def _looking(self, caption: Caption) -> Iterator[Question]:
        """Return an image's other visual questions, in several wordings; the caption asks for the name already."""
        image = caption.image
        kind = caption.entity.category if caption.entity else image.category
        rng = random.Random(f"{self._seed}/looking/{image.id}")
        path = image_path(image)
        for visual in list(visuals(kind, caption.names, image, open_image(self._gallery / path), path, rng)):
            if visual.attribute != "name" or kind == "flag":
                yield from self._visual(caption, visual, rng)
        counted = draw_counted(self._gallery, kind, [image], rng)
        if counted and sha256_of(self._gallery / counted.image) not in self._tested:
            yield from self._visual(caption, counted, rng)

    def _visual(self, caption: Caption, visual: Visual, rng: random.Random) -> Iterator[Question]:
        for text in visual.ask_variously(rng, WORDINGS[visual.attribute]):
            yield Question(
                id=self._next_id("visual"),
                image=visual.image,
                text=text,
                answers=visual.answers,
                split="visual",
                requires_retrieval=False,
                entity_ids=(caption.entity.id,) if caption.entity else (),
                meta={"attribute": visual.attribute, **_about(caption)},
            )

    def _next_id(self, split: str) -> str:
        return f"captions_{split}_{next(self._numbers[split]):06d}"


def _about(caption: Caption) -> dict[str, str]:
    image = caption.image
    return {"kind": image.category, "thing": caption.thing, "source": image.source, "style": image.style}
