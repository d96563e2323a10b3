"""Pages for proof-reading a gallery: all links of images to articles, and a sheet of drawn questions."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from reflectune.core.durable import write_atomically
from reflectune.core.images import open_image
from reflectune.core.types import Question
from reflectune.data_builders.annotators.proofreading import PageArticle, PageLabel, write_page
from reflectune.examples.pocket.gallery.entities import GalleryEntity
from reflectune.examples.pocket.gallery.linking import Links
from reflectune.examples.pocket.gallery.questions import image_path
from reflectune.examples.pocket.gallery.sources.images import SourceImage
from reflectune.formats.passages import first_sentence

CONTACT_SHEET = "contact_sheet.png"
_COLUMNS, _ROWS, _SIDE, _TEXT = 5, 4, 224, 96


def write_contact_sheet(folder: Path, questions: Sequence[Question], seed: int) -> None:
    """Write 20 questions, drawn at random, each below its image.

    Args:
        folder: Folder of the data set, which has the images; the sheet goes there.
        questions: Questions to draw from.
        seed: Seed of the draw.
    """
    rng = random.Random(f"{seed}/contact sheet")
    shown = rng.sample(list(questions), min(_COLUMNS * _ROWS, len(questions)))
    sheet = Image.new("RGB", (_COLUMNS * _SIDE, _ROWS * (_SIDE + _TEXT)), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    for number, question in enumerate(shown):
        left, top = number % _COLUMNS * _SIDE, number // _COLUMNS * (_SIDE + _TEXT)
        image = open_image(folder / question.image).resize((_SIDE - 8, _SIDE - 8))
        sheet.paste(image, (left + 4, top + 4))
        lines = textwrap.wrap(question.text, 36) + textwrap.wrap("= " + " / ".join(question.answers[:3]), 36)
        draw.multiline_text((left + 4, top + _SIDE), "\n".join(lines[:6]), fill="black", font=font)
    partial = folder / f".{CONTACT_SHEET}"
    sheet.save(partial, format="PNG")
    write_atomically(folder / CONTACT_SHEET, partial.read_bytes())
    partial.unlink()


def write_link_page(path: Path, folder: Path, links: Links, entities: Sequence[GalleryEntity]) -> None:
    """Write one HTML file with every image, the title, and the article's first sentence of each entity.

    Args:
        path: Output file.
        folder: Folder of the data set, which has the images.
        links: Links of the images.
        entities: Depicted articles.
    """
    rules = {link.image.id: link.rule for link in links.made}

    def article(item: tuple[GalleryEntity, SourceImage]) -> PageArticle:
        entity, image = item
        title, topic = entity.article.title, entity.article.description or entity.article.topic
        use = "knowledge base" if image is entity.shown else entity.role
        label = PageLabel(rules[image.id], "relevant", image.name, [topic], subject=f"→ {title}")
        note = first_sentence(entity.article.summary)
        meta = [image.hand, image.style, use]
        return PageArticle(image.id, image_path(image), title, meta, [label], note=note)

    images = [(entity, image) for entity in entities for image in (entity.shown, *entity.asked)]
    title = f"links of images to {len(entities):,} articles, {len(links.refused):,} images refused"
    write_page(path, images, article, folder, title)
