"""Build the gallery into a data set folder: images, knowledge base, questions, and pages for proof-reading."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from reflectune.core.durable import write_atomically, write_json
from reflectune.core.hashing import file_fingerprint, fingerprint, sha256_of
from reflectune.core.images import open_image
from reflectune.core.progress import progress_bar
from reflectune.core.types import Entry, Question
from reflectune.examples.data_sets import begin, content_fingerprint, count_questions, finish, save_jpeg
from reflectune.examples.pocket.gallery.card import card
from reflectune.examples.pocket.gallery.collecting import Collection, collect_facts
from reflectune.examples.pocket.gallery.entities import GalleryEntity, Look, make_entities
from reflectune.examples.pocket.gallery.facts import entry_of
from reflectune.examples.pocket.gallery.linking import Links, link_images, read_reviewed
from reflectune.examples.pocket.gallery.pages import write_link_page
from reflectune.examples.pocket.gallery.questions import GalleryInterviewer, image_path
from reflectune.examples.pocket.gallery.sources.categories import CATEGORIES
from reflectune.examples.pocket.gallery.sources.images import SourceImage, Unusable, read_image
from reflectune.examples.pocket.gallery.two_hop import Chains
from reflectune.examples.pocket.gallery.visual_questions import Visual, count_question, names_of, repeated, visuals
from reflectune.formats.dataset import LOOK_ALIKES, write_questions
from reflectune.formats.knowledge_base import write_knowledge_base

VERSION = 1
"""Raise it when the same settings and sources give a different gallery."""

LINK_PAGE, CARD, IMAGES = "links.html", "README.md", "images.jsonl"


@dataclass(frozen=True)
class GallerySettings:
    """Settings that determine a gallery together with its sources.

    Attributes:
        seed: Seed of every draw.
        limit: Maximum entities of each kind of thing; 0: all.
    """

    seed: int = 0
    limit: int = 0


def build_gallery(folder: Path, sources: Collection, settings: GallerySettings, flags: float = 1.0) -> dict[str, Any]:
    """Build a gallery, or return the manifest of one that is built already.

    Images that exist are kept, so that an interrupted build resumes. dataset.json is written last: a folder that has
    it is complete.

    Args:
        folder: Output folder.
        sources: Images, articles and the works that facts come from.
        settings: Seed and sizes.
        flags: Maximum share of flags among the knowledge questions of each split; see `thin_flags`.

    Returns:
        The manifest.

    Raises:
        UserError: The folder holds a different data set, or a source has a bad image or article.
    """
    made_of = {"version": VERSION, "settings": settings, "sources": sources.described, "reviewed": read_reviewed()}
    key = fingerprint({**made_of, **({"flags": flags} if flags < 1 else {})})
    if built := begin(folder, key):
        return built
    return _write(folder, key, sources, settings, make_linked_entities(folder, sources, settings), flags)


@dataclass(frozen=True)
class LinkedEntities:
    """The sources' images with their articles and entities.

    Attributes:
        links: Links of images to articles.
        looks: Look of each linked image that can be used, by id.
        entities: Subjects of linked articles.
        unusable: Linked images that can't be used.
    """

    links: Links
    looks: dict[str, Look]
    entities: Sequence[GalleryEntity]
    unusable: int


def make_linked_entities(folder: Path, sources: Collection, settings: GallerySettings) -> LinkedEntities:
    """Link the images, write those that aren't in the folder yet, and make entities of them."""
    reviewed = read_reviewed()
    links = link_images(sources.images, sources.articles, sources.wordnet, sources.countries, reviewed)
    looks, unusable = read_images(folder, [link.image for link in links.made])
    entities = make_entities(links.made, sources.articles, reviewed, looks, settings.seed, settings.limit)
    return LinkedEntities(links, looks, entities, len(unusable))


def _write(
    folder: Path, key: str, sources: Collection, settings: GallerySettings, linked: LinkedEntities, flags: float
) -> dict[str, Any]:
    reviewed, links, entities = read_reviewed(), linked.links, linked.entities
    facts = collect_facts(entities, sources, reviewed)
    shown = {entity.article.title: (image_path(entity.shown),) for entity in entities}
    entries = {
        title: entry_of(article, facts.get(title, ()), shown.get(title, ()))
        for title, article in sources.articles.items()
    }
    visual = {entity.article.title: list(_visuals(folder, entity, settings.seed)) for entity in entities}
    chains = Chains(facts, entries, sources.articles)
    two_hop = {
        entity.article.title: chains.of(entity.article.title, CATEGORIES[entity.category].noun) for entity in entities
    }
    interviewer = GalleryInterviewer(entities, facts, entries, visual, two_hop, settings.seed)
    splits = {split: thin_flags(asked, flags, settings.seed) for split, asked in interviewer.ask_all().items()}
    for split, questions in splits.items():
        write_questions(folder, split, questions)
    write_knowledge_base(folder / "knowledge", entries.values(), name=f"gallery-{settings.seed}", image_root="..")
    _write_images(folder, entities)
    look_alikes = _look_alikes(reviewed.look_alikes, entries)
    write_json(folder / LOOK_ALIKES, look_alikes)
    write_link_page(folder / LINK_PAGE, folder, links, entities)
    manifest = {
        "name": f"gallery (seed {settings.seed})",
        "metric": "infoseek",
        "seed": settings.seed,
        "settings": key,
        "fingerprint": content_fingerprint(folder),
        "files": {LOOK_ALIKES: file_fingerprint(folder / LOOK_ALIKES)},
        "counts": count_questions(splits),
        "kinds": {split: _kinds(asked) for split, asked in splits.items()},
        "entries": len(entries),
        "entities": dict(Counter(entity.role for entity in entities)),
        "links": {"made": len(links.made), "refused": len(links.refused), "unusable": linked.unusable},
        "unstated": dict(interviewer.unstated),
        "sources": sources.described,
    }
    write_atomically(folder / CARD, card(manifest, sources.names, entities))
    finish(folder, manifest)
    return manifest


def thin_flags(questions: Sequence[Question], share: float, seed: int) -> list[Question]:
    """Draw out knowledge questions about flags until at most this share of a split's knowledge questions is about them.

    Questions keep their ids, their order and their entities' split. Visual questions all stay.
    """
    knowledge = [question for question in questions if question.is_knowledge_based]
    about_flags = [question for question in knowledge if question.meta["style"] == "flag"]
    most = len(about_flags) if share == 1 else int(share * (len(knowledge) - len(about_flags)) / (1 - share))
    rng = random.Random(f"{seed}/flags/{questions[0].split if questions else ''}")
    left_out = {q.id for q in rng.sample(about_flags, max(0, len(about_flags) - most))}
    return [question for question in questions if question.id not in left_out]


def read_images(folder: Path, images: Sequence[SourceImage]) -> tuple[dict[str, Look], list[str]]:
    """Write every image that isn't in the folder yet.

    Returns:
        The look of each usable image, by id; and the ids of those that are too small or not in their font.
    """
    usable: dict[str, Look] = {}
    left_out: list[str] = []
    for image in progress_bar(images, desc="images", unit="image", mininterval=1.0):
        path = folder / image_path(image)
        try:
            if not path.exists():
                save_jpeg(read_image(image), path)
        except Unusable:
            left_out.append(image.id)
            continue
        small = open_image(path).convert("L").resize((16, 16), Image.Resampling.BOX).tobytes()
        usable[image.id] = Look(sha256_of(path), small)
    return usable, left_out


def _visuals(folder: Path, entity: GalleryEntity, seed: int) -> Iterator[Visual]:
    """Return the visual questions of an entity; for each attribute those of one image."""
    if entity.role == "shown":
        return
    rng = random.Random(f"{seed}/looking/{entity.article.title}")
    by_attribute: dict[str, list[Visual]] = {}
    for source in entity.asked:
        image = open_image(folder / image_path(source))
        names = names_of(entity, source)
        for visual in visuals(entity.category, names, source, image, image_path(source), rng):
            by_attribute.setdefault(visual.attribute, []).append(visual)
    for same in by_attribute.values():
        yield rng.choice(same)
    if counted := draw_counted(folder, entity.category, entity.asked, rng):
        yield counted


def draw_counted(folder: Path, kind: str, images: Sequence[SourceImage], rng: random.Random) -> Visual | None:
    """Return the visual question of `count_question`, and write its composed image; None if there is none."""
    if not (counted := count_question(kind, images, rng)):
        return None
    visual, count = counted
    path, whole = folder / visual.image, repeated(read_image(visual.source), count, rng)
    if not path.exists():
        save_jpeg(whole, path)
    return visual


def _write_images(folder: Path, entities: Sequence[GalleryEntity]) -> None:
    """Write one line an image: its entity, source and use."""
    lines = []
    for entity in entities:
        uses: list[tuple[SourceImage, str]] = [(entity.shown, "knowledge base")]
        uses += [(image, entity.role) for image in entity.asked]
        for image, use in uses:
            row = {
                "image": image_path(image),
                "entity": entity.id,
                "name": entity.names[0] if entity.category == "flag" else image.name,
                "kind": entity.category,
                "source": image.source,
                "hand": image.hand,
                "style": image.style,
                "use": use,
            }
            lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    write_atomically(folder / IMAGES, "".join(lines))


def _look_alikes(groups: Sequence[Sequence[str]], entries: Mapping[str, Entry]) -> list[list[str]]:
    """Return the reviewed groups as ids of entries with an image, without groups of one."""
    known = [[entries[title].id for title in group if title in entries and entries[title].images] for group in groups]
    return [group for group in known if len(group) > 1]


def _kinds(questions: Sequence[Question]) -> dict[str, int]:
    """Count the questions of each sort: knowledge by kind of thing, visual by attribute."""
    named = ("visual: " + q.meta["attribute"] if "attribute" in q.meta else q.meta["kind"] for q in questions)
    return dict(sorted(Counter(named).items()))
