"""Replace entries' summaries by captions of their images: the modalities C and IC of entries in mRAG (§3.1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from reflectune.core.durable import read_row
from reflectune.core.errors import UserError
from reflectune.core.hashing import sha256_of
from reflectune.core.types import Entry
from reflectune.formats.knowledge_base import KnowledgeBase

CAPTION_FILE: Final = "captions.jsonl"
"""Output file of `reflectune caption`, with rows `{"entry_id": …, "caption": …}`."""
CAPTIONS: Final = "captions_fingerprint"
"""Key of the manifest for the hash of the captions' file; missing if no captions were indexed."""


class CaptionedKnowledge(KnowledgeBase):
    """A knowledge base whose entries have their captions as summaries; an entry without a caption has its title.

    Args:
        kb: The knowledge base.
        path: File of captions.

    Attributes:
        captions_fingerprint: Hash of the captions' file.

    Raises:
        UserError: A row lacks an entry or a caption, or the entry is not in the knowledge base.
    """

    def __init__(self, kb: KnowledgeBase, path: str | Path) -> None:
        super().__init__(kb.folder)
        self._kb, self._captions = kb, _read(kb, path)
        self.captions_fingerprint = sha256_of(Path(path))[:16]

    def __iter__(self) -> Iterator[Entry]:
        for entry in self._kb:
            yield dataclasses.replace(entry, summary=self._captions.get(entry.id, entry.title))

    def fingerprint_of(self, entries: int) -> str:
        """Compute the fingerprint of the first entries with their original summaries."""
        return self._kb.fingerprint_of(entries)


def captions_of(kb: KnowledgeBase) -> str:
    """Return the hash of a knowledge base's captions; "" without captions."""
    return kb.captions_fingerprint if isinstance(kb, CaptionedKnowledge) else ""


def _read(kb: KnowledgeBase, path: str | Path) -> dict[str, str]:
    captions = {}
    for number, line in enumerate(Path(path).read_bytes().splitlines(), start=1):
        row = read_row(line, where := f"{path}, line {number}")
        entry_id, caption = row.get("entry_id"), row.get("caption")
        if not isinstance(entry_id, str) or not isinstance(caption, str) or not caption.strip():
            raise UserError(f'{where}: found {str(row)[:80]}, expected {{"entry_id": …, "caption": …}}')
        if entry_id not in kb:
            raise UserError(
                f"{where}: the knowledge base {kb.folder} has no entry {entry_id}; give captions of its images"
            )
        captions[entry_id] = caption
    return captions
