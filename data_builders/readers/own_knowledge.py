"""A user's knowledge base: `knowledge.jsonl` or Parquet, an article per row.

Fields: `id` (kept in composed letters, NFC) and `title`; `text`, or `sections` as a list of `{"title", "text"}`;
optionally `summary`, `url`, `image` and `images` (paths, or the bytes of files; `image` comes first).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from pathlib import Path

from reflectune.core.rejected import Reject, stop
from reflectune.core.types import Entry, Section
from reflectune.data_builders.readers.files import read_by_extension, read_jsonl, read_parquet
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.json_documents import read_json_array
from reflectune.data_builders.readers.rows import SourceRow, identifier, rows, text

_KINDS = {".jsonl": read_jsonl, ".parquet": read_parquet, ".json": read_json_array}


def read_source(source: Path, reject: Reject = stop) -> Iterator[tuple[int, SourceRow]]:
    """Yield the rows of the file.

    Raises:
        UserError: The file is missing, or has an unknown extension.
    """
    return read_by_extension(source, _KINDS, "a knowledge base", reject)


def entry(row: SourceRow, images: ImageFolder) -> Entry:
    """Make an entry of a row."""
    row.id_field = "id"
    sections = _sections(row)
    first = [row["image"]] if row.get("image") not in (None, "") else []
    others = row.get("images") or []
    if not isinstance(others, list):
        raise row.bad("images", f"is {type(others).__name__}", "it should be a list; one image alone goes into `image`")
    named = [*(("image", image) for image in first), *(("images", image) for image in others)]
    return Entry(
        id=unicodedata.normalize("NFC", identifier(row, "id")),
        title=text(row, "title"),
        url=text(row, "url", default=""),
        summary=text(row, "summary", default="") or sections[0].text.split("\n")[0],
        images=tuple(dict.fromkeys(path for field, image in named if (path := images.keep(row, field, image)))),
        sections=sections,
    )


def _sections(row: SourceRow) -> tuple[Section, ...]:
    """Return the article's sections; a plain `text` is a section without a heading."""
    if row.get("sections"):
        if row.get("text"):
            fix = "leave one out, and put the rest of `text` into a section"
            raise row.bad("text", "is given in addition to `sections`", fix)
        parts = rows(row, "sections")
        return tuple(Section(text(part, "title", default=""), text(part, "text", empty=True)) for part in parts)
    return (Section("", text(row, "text")),)
