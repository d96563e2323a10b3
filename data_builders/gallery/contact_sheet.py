"""A sheet of drawn questions with their pictures and answers, to look at."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from reflectune.core.durable import write_atomically
from reflectune.core.images import open_image
from reflectune.core.types import Question

FILE = "contact_sheet.png"
_COLUMNS, _ROWS, _SIDE, _TEXT = 5, 4, 224, 96


def write_contact_sheet(folder: Path, questions: Sequence[Question], seed: int) -> None:
    """Write 20 questions, drawn at random, each below its picture.

    Args:
        folder: The data set, in which the pictures lie; the sheet goes there.
        questions: To draw from.
        seed: Of the draw.
    """
    rng = random.Random(f"{seed}/contact sheet")
    shown = rng.sample(list(questions), min(_COLUMNS * _ROWS, len(questions)))
    sheet = Image.new("RGB", (_COLUMNS * _SIDE, _ROWS * (_SIDE + _TEXT)), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    for number, question in enumerate(shown):
        left, top = number % _COLUMNS * _SIDE, number // _COLUMNS * (_SIDE + _TEXT)
        picture = open_image(folder / question.image).resize((_SIDE - 8, _SIDE - 8))
        sheet.paste(picture, (left + 4, top + 4))
        lines = textwrap.wrap(question.text, 36) + textwrap.wrap("= " + " / ".join(question.answers[:3]), 36)
        draw.multiline_text((left + 4, top + _SIDE), "\n".join(lines[:6]), fill="black", font=font)
    partial = folder / f".{FILE}"
    sheet.save(partial, format="PNG")
    write_atomically(folder / FILE, partial.read_bytes())
    partial.unlink()
