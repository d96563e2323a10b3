"""M2KR's passages (`<NAME>_passages`, Parquet): every passage an entry, since the questions name passages by id.

Passages are of text alone. A title is the column `title`, or is read off a text of the form "title: X content: Y".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from reflectune.core.types import Entry, Section
from reflectune.data_builders.readers.base import Images, Reject, Row, each, read_parquet, stop, text

read_source = read_parquet

_TITLED = re.compile(r"\s*title:\s*(?P<title>.*?)\s+content:\s*(?P<content>.*)", re.DOTALL)


def entries(source: Path, *, images: Images | None = None, reject: Reject = stop) -> Iterator[Entry]:
    """The passages.

    Args:
        source: A Parquet file, or a folder of them.
        images: A folder with an image named by the passage's id, where a user has made one.
        reject: What to do with a bad row.
    """
    return each(read_source(source, reject), partial(entry, images=images or Images()), reject)


def entry(row: Row, images: Images) -> Entry:
    """One passage."""
    passage_id, content = text(row, "passage_id"), text(row, "passage_content")
    title = text(row, "title", default="")
    titled = _TITLED.fullmatch(content)
    if titled:
        title, content = title or titled["title"], titled["content"]
    image = images.find_for(row, "passage_id", passage_id)
    return Entry(
        id=passage_id,
        title=title or passage_id,
        images=(image,) if image else (),
        sections=(Section("", content),),
    )
