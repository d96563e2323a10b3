"""HTML page on which a person marks labels right or wrong. One file that contains its images and needs no network."""

from __future__ import annotations

import base64
import io
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar

from reflectune.core.durable import write_atomically
from reflectune.core.errors import UserError
from reflectune.core.html import read_asset, render
from reflectune.core.images import load_image
from reflectune.core.paths import Roots
from reflectune.core.tokens import UNSPACED, VOWEL_SIGNS
from reflectune.core.types import Passage

Item = TypeVar("Item")

PAGE_EXAMPLES: Final = 50
"""Number of random examples on the page of a split."""

LONGEST_SIDE = 320
"""Longest side of an image in pixels. Larger images are scaled down."""


@dataclass(frozen=True)
class PageLabel:
    """A label to judge.

    Attributes:
        token: The label, e.g. `[Relevant]`.
        kind: Its colour; `none` is neutral.
        answer: Answer printed in bold after the token.
        details: Facts printed after the answer.
        passage: The labelled passage, if any.
        subject: Name of the labelled item in the list of labels marked wrong; the passage's id if unset.
        is_judged: False to show a passage without a label.
    """

    token: str
    kind: Literal["relevant", "irrelevant", "none"] = "none"
    answer: str = ""
    details: Sequence[str] = ()
    passage: Passage | None = None
    subject: str = ""
    is_judged: bool = True

    @property
    def facts(self) -> list[str]:
        """The details that aren't empty, and the passage's title, heading and id."""
        passage = self.passage
        place = [" › ".join(filter(None, (passage.title, passage.heading))), passage.id] if passage else []
        return [fact for fact in (*self.details, *place) if fact]


@dataclass(frozen=True)
class PageArticle:
    """An image with its labels.

    Attributes:
        id: Id of the question or image.
        image: Path of the image.
        heading: The question or title.
        meta: Facts below the heading.
        labels: The labels.
        answers: Texts to mark in the passages.
        note: Sentence below the labels.
    """

    id: str
    image: str
    heading: str
    meta: Sequence[str]
    labels: Sequence[PageLabel]
    answers: Sequence[str] = ()
    note: str = ""


def write_page(
    path: Path,
    items: Sequence[Item],
    article: Callable[[Item], PageArticle],
    roots: Roots,
    title: str,
    *,
    count: int | None = None,
    seed: int = 0,
) -> None:
    """Write the page. It counts the labels marked right or wrong, and lists the wrong ones to copy.

    Args:
        path: The HTML file.
        items: Examples to draw from.
        article: Makes an example's article.
        roots: The folders that image paths may lead into; relative ones start at the first.
        title: A few words about the items.
        count: Number of random items to show; None shows all.
        seed: Seed of the draw.
    """
    is_drawn = count is not None and count < len(items)
    shown = random.Random(seed).sample(list(items), count or 0) if is_drawn else items
    page = render(
        "data_builders/annotators/templates/proofreading.html",
        title=title,
        note=f"{len(shown):,} of {len(items):,} shown" + (f", drawn at random (seed {seed})." if is_drawn else "."),
        articles=[(made, *_image(made.image, roots)) for made in map(article, shown)],
        marked=marked,
        style=read_asset("data_builders/annotators/proofreading.css"),
        script=read_asset("data_builders/annotators/proofreading.js"),
    )
    write_atomically(path, page)


def marked(text: str, answers: Sequence[str]) -> list[tuple[str, bool]]:
    """Split a text into pieces, each with True if it is an answer or an item of a list of answers."""
    parts = {part.strip() for answer in answers for part in answer.split("&&") if part.strip()}
    if not parts:
        return [(text, False)]
    longest_first = "|".join(_whole_word(part) for part in sorted(parts, key=len, reverse=True))
    pieces = re.split(f"({longest_first})", text, flags=re.IGNORECASE)
    return [(piece, bool(i % 2)) for i, piece in enumerate(pieces)]


def _whole_word(part: str) -> str:
    """Return a pattern that matches an answer as whole words, except at an edge in a script without spaces."""
    before, after = ("" if re.match(f"[{UNSPACED}]", edge) else f"[^\\W{UNSPACED}]" for edge in (part[0], part[-1]))
    return (f"(?<!{before})" if before else "") + re.escape(part) + (f"(?!{after}|[{VOWEL_SIGNS}])" if after else "")


def _image(path: str, roots: Roots) -> tuple[str, str]:
    """Return a small copy of an image as a data URI, and ""; or "" and the reason why it can't be read.

    The copy has the pixels alone, without the file's metadata.
    """
    try:
        image = load_image(path, root=roots)
    except UserError as error:
        return "", str(error)
    image.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    buffer = io.BytesIO()
    image.save(buffer, format="WEBP", quality=82)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode(), ""
