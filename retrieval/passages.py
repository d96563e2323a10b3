"""Passages: an article cut into natural paragraphs, as mR²AG reads it (arXiv 2411.15041, §3.1.2)."""

from __future__ import annotations

import re
from typing import Literal

from reflectune.core.types import Entry, Passage

Lead = Literal["none", "first_sentence"]

_PARAGRAPHS = re.compile(r"\n\s*\n|\n(?=\S)")
_SENTENCE_END = re.compile(r"[.!?][\"”’)\]]*(?=\s|$)")
_ABBREVIATIONS = "St Mt Ft Dr Mr Mrs Ms Prof Jr Sr No Nos ca approx cf esp fl pron sp spp ssp subsp syn var vs".split()
_NO_END = re.compile(rf"(?:^|[\s(\[.])(?:[A-Za-z]|{'|'.join(_ABBREVIATIONS)})\.$")
"""A full stop after an initial or an abbreviation: "J. R. R. Tolkien", "St. Gallen", "(syn. Quercus pedunculata)"."""

_WITHOUT_EVIDENCE = {"references", "external links", "see also", "notes", "further reading", "bibliography"}


def split_passages(entry: Entry, *, lead: Lead = "none") -> list[Passage]:
    """Cut an entry into natural paragraphs, in the article's order.

    A paragraph ends at a blank line, or at a line break if the next line is not indented: dumps of Wikipedia have one
    paragraph a line. An entry without sections is read from its summary. Sections that hold no prose ("References",
    "External links"…) are left out, empty paragraphs too.

    Args:
        entry: The article.
        lead: `first_sentence` puts the first sentence of the entry's summary before each paragraph: it says what the
            article is about, which a paragraph alone often doesn't.
    """
    if not entry.sections:
        return _paragraphs(entry, 0, "", entry.summary, "")
    opening = first_sentence(entry.summary) if lead == "first_sentence" else ""
    return [
        passage
        for index, section in enumerate(entry.sections)
        if section.title.strip().lower() not in _WITHOUT_EVIDENCE
        for passage in _paragraphs(entry, index, section.title, section.text, opening)
    ]


def first_sentence(text: str) -> str:
    """The first sentence of a text, or all of it where none ends.

    A full stop after an initial or a common abbreviation ends none, so a sentence that ends in one ("vitamin C.") takes
    the next with it.
    """
    text = " ".join(text.split())
    ends = (found.end() for found in _SENTENCE_END.finditer(text))
    return next((text[:end] for end in ends if not _NO_END.search(text[:end])), text)


def _paragraphs(entry: Entry, section: int, heading: str, text: str, lead: str) -> list[Passage]:
    texts = [" ".join(part.split()) for part in _PARAGRAPHS.split(text)]
    texts = [part for part in texts if part]
    return [Passage(entry.id, section, i, entry.title, lead, heading, part) for i, part in enumerate(texts)]
