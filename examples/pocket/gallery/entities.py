"""The gallery's entities: articles whose subject is depicted, and the use of each image."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from reflectune.examples.pocket.gallery.linking import Link, Reviewed, category_of
from reflectune.examples.pocket.gallery.sources.images import SourceImage
from reflectune.examples.pocket.gallery.sources.reference_works import Article

Role = Literal["train", "val", "test", "shown"]
SHARES: Mapping[Role, float] = {"val": 0.2, "test": 0.2}
"""Shares of the entities of each kind that training doesn't show."""

NEARLY_EQUAL = 9.0
"""Mean difference of grey levels, of 255, below which two images are copies of one."""


@dataclass(frozen=True)
class Look:
    """A summary of an image's look.

    Attributes:
        pixels: Hash of its file.
        small: Grey levels of a copy of 16 by 16 pixels.
    """

    pixels: str
    small: bytes

    def is_like(self, other: Look) -> bool:
        """Return True if two images are copies of one, perhaps in other sizes."""
        return sum(abs(a - b) for a, b in zip(self.small, other.small, strict=True)) < NEARLY_EQUAL * len(self.small)


@dataclass(frozen=True)
class GalleryEntity:
    """An article whose subject is depicted.

    Attributes:
        article: The article.
        category: Kind of thing of its subject.
        names: Its names, the article's before the images'.
        shown: The image in the knowledge base.
        asked: Images of questions, by other hands; empty if there are none.
        role: Splits that ask about it; `shown`: none, it is in the knowledge base alone.
    """

    article: Article
    category: str
    names: tuple[str, ...]
    shown: SourceImage
    asked: tuple[SourceImage, ...]
    role: Role

    @property
    def id(self) -> str:
        """Id of the article."""
        return self.article.id


def make_entities(
    links: Iterable[Link],
    articles: Mapping[str, Article],
    reviewed: Reviewed,
    usable: Mapping[str, Look],
    seed: int,
    limit: int,
) -> list[GalleryEntity]:
    """Group links by article, and draw each entity's image for the knowledge base, and its role.

    Args:
        links: Links of images to titles.
        articles: Articles, by title.
        reviewed: Reviewed list, with kinds of things that are wrong in the sources.
        usable: Look of each usable image, by id; the first of equal ones is kept.
        seed: Seed of the draws.
        limit: Maximum entities of each kind; 0: all.

    Returns:
        The entities, by title.
    """
    grouped: dict[str, list[SourceImage]] = {}
    seen = set[str]()
    for link in links:
        look = usable.get(link.image.id)
        if look is not None and look.pixels not in seen:
            seen.add(look.pixels)
            grouped.setdefault(link.title, []).append(link.image)
    drawn = [_draw(articles[title], images, reviewed, usable, seed) for title, images in sorted(grouped.items())]
    kinds: dict[str, list[GalleryEntity]] = {}
    for entity in drawn:
        kinds.setdefault(entity.category, []).append(entity)
    return sorted(
        (entity for kind, of_kind in kinds.items() for entity in _with_roles(kind, of_kind, seed, limit)),
        key=lambda entity: entity.article.title,
    )


def _draw(
    article: Article, images: Sequence[SourceImage], reviewed: Reviewed, usable: Mapping[str, Look], seed: int
) -> GalleryEntity:
    rng = random.Random(f"{seed}/picture/{article.title}")
    shown = rng.choice([rng.choice(of_hand) for of_hand in _by_hand(images)])
    asked = tuple(
        image
        for image in images
        if image.hand != shown.hand and (image.category == "flag" or not usable[image.id].is_like(usable[shown.id]))
    )
    category = reviewed.categories.get(article.title) or category_of(images)
    spoken = [] if category == "flag" else [image.name.lower().split(",")[0] for image in images]
    names = tuple(dict.fromkeys([article.title.split(" (")[0], *(name.removesuffix(" face") for name in spoken)]))
    return GalleryEntity(article, category, names, shown, asked, "shown")


def _by_hand(images: Sequence[SourceImage]) -> list[list[SourceImage]]:
    hands: dict[str, list[SourceImage]] = {}
    for image in images:
        hands.setdefault(image.hand, []).append(image)
    return list(hands.values())


def _with_roles(kind: str, entities: Sequence[GalleryEntity], seed: int, limit: int) -> Iterable[GalleryEntity]:
    """Draw the roles of the entities of one kind; those without an image for questions keep theirs."""
    several = [entity for entity in entities if entity.asked]
    random.Random(f"{seed}/roles/{kind}").shuffle(several)
    if limit:
        several = several[:limit]
    roles: dict[str, Role] = {}
    start = 0
    for role, share in SHARES.items():
        count = round(share * len(several))
        roles |= {entity.article.title: role for entity in several[start : start + count]}
        start += count
    chosen = {entity.article.title for entity in several}
    for entity in entities:
        title = entity.article.title
        yield dataclasses.replace(entity, role=roles.get(title, "train") if title in chosen else "shown")
