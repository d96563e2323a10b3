"""FlashRAG's `wiki18_100w.jsonl` (`.gz` too): 21 million passages of 100 words, each an entry.

A row is `{"id", "contents"}`. The first line of `contents` is the article's title in quotation marks, with inner ones
doubled as in CSV.
"""

from __future__ import annotations

from reflectune.core.types import Entry, Section
from reflectune.data_builders.readers.files import read_jsonl
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.rows import SourceRow, text

read_source = read_jsonl


def entry(row: SourceRow, images: ImageFolder) -> Entry:
    """Make an entry of a line, without images."""
    title, line_break, body = text(row, "contents").partition("\n")
    if not line_break:
        raise row.bad("contents", "has one line", "its first line should be the title, the rest the passage")
    title = title.strip()
    if len(title) > 1 and title[0] == title[-1] == '"':
        title = title[1:-1].replace('""', '"')
    return Entry(id=text(row, "id"), title=title, sections=(Section("", body.strip()),))
