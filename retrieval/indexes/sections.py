"""View a knowledge base as pairs of an image and a section (MI-RAG, §3.4 and appendix D), the rows of an index.

A pair's image is its entry's first one, and its text is the section's summary. Gold ids are still those of entries.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from reflectune.core.hashing import fingerprint
from reflectune.core.types import Entry, Passage
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.formats.passages import lead_sentences, split_passages
from reflectune.retrieval.indexes.near_duplicates import NOTHING, Omission

SECTION_ENTRIES: Final = "section_entries.npy"
SECTIONS: Final = "sections.npy"
"""Files of an index of sections: each pair's position of the entry in the knowledge base, and index of the section."""
UNIT: Final = "unit"
"""Key of the manifest, with the value `sections`; missing in an index of entries."""


class SectionKnowledge(KnowledgeBase):
    """A knowledge base with an entry for each section with prose in `kb`.

    A section's entry has the id of its article and the title `pair_text`. An index of sections is never extended, so
    `fingerprint_of` matches nothing.

    Args:
        kb: The knowledge base.
        leave_out: Images to exclude.

    Attributes:
        articles: Position of each section's entry in `kb`, shape (sections,).
        sections: Index of each section in its entry, shape (sections,).
    """

    def __init__(self, kb: KnowledgeBase, leave_out: Omission = NOTHING) -> None:
        super().__init__(kb.folder)
        self._kb, self._leave_out = kb, leave_out
        articles, sections = array("i"), array("i")
        for position, entry in enumerate(kb):
            for section in sections_of(entry):
                articles.append(position)
                sections.append(section.section)
        self.articles, self.sections = np.array(articles, dtype=np.int32), np.array(sections, dtype=np.int32)

    @property
    def fingerprint(self) -> str:
        """Hash of the knowledge base as sections."""
        return sections_fingerprint(self._kb)

    def fingerprint_of(self, entries: int) -> str:
        """Return "": no index of sections is extended."""
        return ""

    def __len__(self) -> int:
        return len(self.articles)

    def __iter__(self) -> Iterator[Entry]:
        for entry in self._leave_out.without(self._kb):
            for section in sections_of(entry):
                yield dataclasses.replace(entry, title=pair_text(section), images=entry.images[:1])

    def image_counts(self) -> Iterator[int]:
        """Yield 1 for each section of an entry with an image, else 0."""
        counts = list(self._kb.image_counts())
        return (min(counts[article], 1) for article in self.articles)

    def place(self, position: int) -> tuple[Path, int]:
        """Return the shard of a section's article, and the number of its row (from 1)."""
        return self._kb.place(int(self.articles[position]))


def sections_fingerprint(kb: KnowledgeBase) -> str:
    """Return the fingerprint of a knowledge base as sections."""
    return fingerprint([kb.fingerprint, "sections"])


def sections_of(entry: Entry) -> list[Passage]:
    """Return an entry's sections with prose in order, each as one passage."""
    return split_passages(entry, cut="sections")


def pair_text(section: Passage) -> str:
    """Return the text of a pair: the article's title, the heading, and the section's first three sentences (Lead-3)."""
    return ". ".join(filter(None, (section.title, section.heading, lead_sentences(section.text))))
