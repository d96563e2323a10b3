"""ReflectiVA's 100k knowledge base for InfoSeek (`Wiki100k_ver_1_0-all.json`): a JSON dict of rows of Wiki6M."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from reflectune.core.types import Entry
from reflectune.data_builders.readers.base import Images, Reject, Row, each, read_json_dict, stop, text
from reflectune.data_builders.readers.wiki6m import article

read_source = partial(read_json_dict, key="key")


def entries(source: Path, *, images: Images | None = None, reject: Reject = stop) -> Iterator[Entry]:
    """The entities of the dict, each called by its name in the dict (which ReflectiVA's index refers to).

    Args:
        source: The JSON dict.
        images: The folder that holds `wikipedia_images_full` or is it; an entity without an image there has none.
        reject: What to do with a bad row.
    """
    return each(read_source(source, reject), partial(entry, images=images or Images()), reject)


def entry(row: Row, images: Images) -> Entry:
    """One member of the dict; one without a title of its own is called by its name."""
    name = text(row, "key")
    titled = Row({**row, "wikipedia_title": row.get("wikipedia_title") or name}, row.file, row.line)
    return article(titled, name, images)
