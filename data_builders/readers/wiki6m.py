"""Wiki6M, InfoSeek's knowledge base (`Wiki6M_ver_1_0.jsonl`, `.gz` too): an entity of Wikidata per line.

An article is one string with section marks and without line breaks: "…top teams.## Qualification.Two teams…". The marks
are parsed into sections. Line breaks are restored where no space follows the end of a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from reflectune.core.types import Entry, Section
from reflectune.data_builders.readers.files import read_jsonl
from reflectune.data_builders.readers.images import EXTENSIONS, ImageFolder, address_extension
from reflectune.data_builders.readers.rows import SourceRow, text

read_source = read_jsonl

_MARK = re.compile(r"\s*#{2,6} ")
_HEADING_END = re.compile(r"(?<!\b[A-Z])\.(?=\S|$)")
"""The full stop that closes a heading has no space after it: "Semifinal.Tuesday", not "1 vs. 2" and not "U.S."."""
_ENTITY = re.compile(r"Q\d{1,20}")
_LOST_BREAK = re.compile(r"(?<=[a-z0-9)\]][.!?])(?=[A-Z][a-z ])")


def entry(row: SourceRow, images: ImageFolder) -> Entry:
    """Make an entry of a line; `image_path`, an addition of PMSR's copy, is preferred.

    Images are in the folder that is or contains `wikipedia_images_full`.
    """
    return article(row, text(row, "wikidata_id"), images)


def images(row: SourceRow) -> Iterator[tuple[str, str]]:
    """Yield the URL of an entity's image, if it has one, with its path below the folder of images."""
    url, name = text(row, "wikipedia_image_url", default=""), text(row, "wikidata_id")
    if url and _ENTITY.fullmatch(name):
        ending = address_extension(row, "wikipedia_image_url", url)
        yield url, f"{name[:4]}/{name}{ending if ending in EXTENSIONS else '.jpg'}"


def article(row: SourceRow, entry_id: str, images: ImageFolder) -> Entry:
    """Make an entry of a row with the fields `wikipedia_title`, `wikipedia_content` and `wikipedia_summary`."""
    title = text(row, "wikipedia_title")
    named = images.find_for(row, "image_path", text(row, "image_path", default=""))
    image = named or images.find_for(row, "wikidata_id", entry_id)
    return Entry(
        id=entry_id,
        title=title,
        url=text(row, "wikipedia_url", default=""),
        summary=text(row, "wikipedia_summary", default=""),
        images=(image,) if image else (),
        sections=parse_sections(text(row, "wikipedia_content", default="")),
    )


def parse_sections(content: str) -> tuple[Section, ...]:
    """Parse the sections of an article with inline marks; text before the first mark has no heading.

    A mark without text is an empty section, so that indices are those of the article.

    Example:
        >>> parse_sections("A village.## History.It is old.")
        (Section(title='', text='A village.'), Section(title='History', text='It is old.'))
    """
    lead, *marked = _MARK.split(content)
    sections = [Section("", _with_breaks(lead))] if lead.strip() else []
    for part in marked:
        end = _HEADING_END.search(part)
        heading, body = (part[: end.start()], part[end.end() :]) if end else (part, "")
        sections.append(Section(heading.strip(), _with_breaks(body)))
    return tuple(sections)


def _with_breaks(body: str) -> str:
    return _LOST_BREAK.sub("\n", body).strip()
