"""A page for proof-reading reflection data: random examples with image, question, and passages coloured by label."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import random
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template

from reflectune.core.durable import write_atomically
from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.core.paths import Roots
from reflectune.models.schemes.examples import Branch, ReflectionExample

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


def write_articles(path: Path, articles: Sequence[str], title: str, note: str) -> None:
    """Write one HTML file of articles, each of a picture and of labels that `judged` made.

    Args:
        path: The file to write.
        articles: Their HTML.
        title: What they are, in a few words.
        note: How many of how many they are, as a sentence.
    """
    style, script = _asset("page.css"), _asset("page.js")
    page = Template(_asset("page.html")).substitute(
        title=html.escape(title),
        note=html.escape(note),
        examples="\n".join(articles),
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
    )
    write_atomically(path, page)


def _example(example: ReflectionExample, roots: Roots) -> str:
    answers = [branch.answer for branch in example.branches if branch.relevant] or [example.answer]
    if example.retrieve:
        body = "\n".join(_passage(example, branch, answers) for branch in sorted(example.branches, key=_evidence_first))
    else:
        body = judged("none", f"{example.id} [No Retrieval]", "[No Retrieval]", html.escape(example.answer), "")
        body += "".join(
            f"<h2>{html.escape(later.question)}</h2>"
            + judged("none", f"{example.id} [No Retrieval] {number}", "[No Retrieval]", html.escape(later.answer), "")
            for number, later in enumerate(example.follow_ups, start=2)
        )
    several = ' <span class="badge">several answers, &amp;&amp;</span>' if example.style == "list" else ""
    return (
        f'<article><div class="picture">{picture(example.image, roots, example.id)}</div><div>'
        f"<h2>{html.escape(example.question)}{several}</h2>"
        f'<p class="meta">{html.escape(example.id)} · {html.escape(example.source)}</p>{body}</div></article>'
    )


def _evidence_first(branch: Branch) -> bool:
    return not branch.relevant


def _passage(example: ReflectionExample, branch: Branch, answers: Sequence[str]) -> str:
    passage = branch.passage
    place = html.escape(" › ".join(filter(None, [passage.title, passage.heading])))
    said = f"<b>{html.escape(branch.answer)}</b> · " if branch.relevant else ""
    lead = f'<span class="lead">{html.escape(passage.lead)}</span> ' if passage.lead else ""
    return judged(
        "relevant" if branch.relevant else "irrelevant",
        f"{example.id} {passage.id} {'[Relevant]' if branch.relevant else '[Irrelevant]'}",
        "[Relevant]" if branch.relevant else "[Irrelevant]",
        f"{said}{html.escape(branch.source)} · {place} · {html.escape(passage.id)}",
        f"<p>{lead}{marked(passage.text, answers)}</p>",
    )


def judged(kind: str, name: str, label: str, said: str, text: str) -> str:
    """A label with what it was given to, and the two buttons of the proof-reader."""
    buttons = "".join(
        f'<button type="button" value="{verdict}" aria-pressed="false">{verdict}</button>'
        for verdict in ("right", "wrong")
    )
    return (
        f'<section class="label {kind}" data-name="{html.escape(name)}">'
        f'<p class="said"><span class="token">{html.escape(label)}</span> {said}</p>{text}'
        f'<p class="verdict">{buttons}</p></section>'
    )


def marked(text: str, answers: Sequence[str]) -> str:
    """The text as HTML, with every answer, or part of a list of answers, in `<mark>`."""
    parts = {part.strip() for answer in answers for part in answer.split("&&") if part.strip()}
    if not parts:
        return html.escape(text)
    longest_first = "|".join(re.escape(part) for part in sorted(parts, key=len, reverse=True))
    pieces = re.split(rf"(?<!\w)({longest_first})(?!\w)", text, flags=re.IGNORECASE)
    return "".join(
        f"<mark>{html.escape(piece)}</mark>" if i % 2 else html.escape(piece) for i, piece in enumerate(pieces)
    )


def picture(path: str, roots: Roots, name: str) -> str:
    """A small copy of an image as HTML, made from its pixels, so that nothing else of the file comes along."""
    try:
        image = load_image(path, root=roots)
    except UserError as error:
        return f'<p class="missing">{html.escape(str(error))}</p>'
    image.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    buffer = io.BytesIO()
    image.save(buffer, format="WEBP", quality=82)
    uri = "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()
    return f'<img src="{uri}" alt="The image of {html.escape(name)}">'


def _asset(name: str) -> str:
    return resources.files("reflectune.data_builders.proofreading").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
