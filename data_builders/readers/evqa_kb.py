"""Encyclopedic-VQA's knowledge base (`encyclopedic_kb_wiki.json`, or the zip file that it comes in), read as a stream.

EchoSight's 100k subsets for E-VQA and InfoSeek have the same format. Sections keep their places, since E-VQA's
`evidence_section_id` counts them; the first one is the article's opening and is headed by its title.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import unquote

from reflectune.core.types import Entry, Section
from reflectune.data_builders.readers.base import Images, Reject, Row, each, read_json_dict, stop, text, texts

read_source = partial(read_json_dict, key="key")


def entries(source: Path, *, images: Images | None = None, reject: Reject = stop) -> Iterator[Entry]:
    """The articles, each called by its URL.

    Args:
        source: The JSON dict, also zipped.
        images: A folder with the articles' images, each named as in the last part of its URL; an image that is not
            there is left out, as about 1.25 M of them can't be had any more.
        reject: What to do with a bad row.
    """
    return each(read_source(source, reject), partial(entry, images=images or Images()), reject)


def entry(row: Row, images: Images) -> Entry:
    """One member of the dict."""
    titles, bodies = _strings(row, "section_titles"), _strings(row, "section_texts")
    if len(titles) != len(bodies):
        problem = f"has {len(bodies)} texts for {len(titles)} titles"
        raise row.bad("section_texts", problem, "the two lists must be of one length: download the file again")
    urls = texts(row, "image_urls", default=(), empty=True)
    found = (images.find_for(row, "image_urls", _file_name(url)) for url in urls)
    return Entry(
        id=text(row, "key"),
        title=text(row, "title"),
        url=text(row, "url", default=row["key"]),
        summary=bodies[0].strip() if bodies else "",
        images=tuple(dict.fromkeys(path for path in found if path)) if images.root else (),
        sections=tuple(map(Section, titles, bodies)),
    )


def _strings(row: Row, field: str) -> list[str]:
    """A list of texts as it stands: an empty one keeps its place."""
    value = row.get(field)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise row.bad(field, f"is {type(value).__name__}", "it should be a list of texts")
    return value


def _file_name(url: str) -> str:
    return unquote(url).rsplit("/", 1)[-1]
