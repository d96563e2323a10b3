"""A page for proof-reading reflection data: random examples with image, question, and passages coloured by label."""

from __future__ import annotations

import base64
import io
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from reflectune.core.durable import write_atomically
from reflectune.core.errors import UserError
from reflectune.core.html import read_asset, render
from reflectune.core.images import load_image
from reflectune.core.paths import Roots
from reflectune.metrics.judging.cover import UNSPACED, VOWEL_SIGNS
from reflectune.models.schemes.examples import ReflectionExample

LONGEST_SIDE = 320
"""Pixels: larger images are scaled down to this."""


def write_page(
    path: Path, examples: Sequence[ReflectionExample], roots: Roots, title: str, count: int = 50, seed: int = 0
) -> None:
    """Write one HTML file with random examples; it holds its images and needs no network.

    A reader marks each label right or wrong; the page counts, and lists the wrong ones to copy. The answers of the
    example are marked wherever they stand, so that one in an irrelevant passage is seen at once.

    Args:
        path: The file to write.
        examples: The examples to draw from.
        roots: The folders that their image paths may lead into; relative ones start at the first.
        title: What they are, in a few words.
        count: How many to show.
        seed: Of the draw.
    """
    shown = list(examples) if len(examples) <= count else random.Random(seed).sample(list(examples), count)
    note = f"{len(shown)} of {len(examples):,} examples, drawn at random (seed {seed})."
    write_articles(path, [_example(example, roots) for example in shown], title, note)


def write_articles(path: Path, articles: Sequence[Markup], title: str, note: str) -> None:
    """Write one HTML file of articles, each of a picture and of labels, as the macros of `templates/parts.html` make.

    Args:
        path: The file to write.
        articles: Their HTML.
        title: What they are, in a few words.
        note: How many of how many they are, as a sentence.
    """
    page = render(
        "data_builders/proofreading/templates/proofreading.html",
        title=title,
        note=note,
        articles=articles,
        style=read_asset("data_builders/proofreading/page.css"),
        script=read_asset("data_builders/proofreading/page.js"),
    )
    write_atomically(path, page)


def marked(text: str, answers: Sequence[str]) -> list[tuple[str, bool]]:
    """The text in pieces, and of each whether it is an answer, or part of a list of answers."""
    parts = {part.strip() for answer in answers for part in answer.split("&&") if part.strip()}
    if not parts:
        return [(text, False)]
    longest_first = "|".join(_whole(part) for part in sorted(parts, key=len, reverse=True))
    pieces = re.split(f"({longest_first})", text, flags=re.IGNORECASE)
    return [(piece, bool(i % 2)) for i, piece in enumerate(pieces)]


def _whole(part: str) -> str:
    """The pattern of an answer that is no part of a word; in a script without spaces nothing is told of words."""
    before, after = ("" if re.match(f"[{UNSPACED}]", edge) else f"[^\\W{UNSPACED}]" for edge in (part[0], part[-1]))
    return (f"(?<!{before})" if before else "") + re.escape(part) + (f"(?!{after}|[{VOWEL_SIGNS}])" if after else "")


@dataclass(frozen=True)
class Picture:
    """An image of a page.

    Attributes:
        name: Whose image it is.
        uri: A small copy, as a data URI; "" if the image can't be read.
        problem: Why it can't be read, or "".
    """

    name: str
    uri: str = ""
    problem: str = ""


def picture(path: str, roots: Roots, name: str) -> Picture:
    """A small copy of an image, made from its pixels, so that nothing else of the file comes along."""
    try:
        image = load_image(path, root=roots)
    except UserError as error:
        return Picture(name, problem=str(error))
    image.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    buffer = io.BytesIO()
    image.save(buffer, format="WEBP", quality=82)
    return Picture(name, "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode())


def _example(example: ReflectionExample, roots: Roots) -> Markup:
    answers = [branch.answer for branch in example.branches if branch.relevant] or [example.answer]
    evidence_first = sorted(example.branches, key=lambda branch: not branch.relevant)
    return render(
        "data_builders/proofreading/templates/example.html",
        example=example,
        picture=picture(example.image, roots, example.id),
        branches=[(branch, marked(branch.passage.text, answers)) for branch in evidence_first],
    )
